//! The state file, byte by byte (`docs/formats/replies.md`). All numbers are little-endian; nothing is
//! aligned by padding that has no name.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"TMBLRPLY";

/// The version of this layout.
pub const VERSION: u32 = 2;

/// The slots begin here.
pub const HEADER_BYTES: usize = 4096;

/// More slots of a kind are no file of ours.
pub const SLOTS_MAX: u32 = 1 << 20;

/// Longest handle that is kept, in bytes.
pub const HANDLE_MAX_LEN: usize = 64;

/// A slot's state.
pub mod state {
    /// Nothing is there, whatever the other bytes say.
    pub const FREE: u16 = 0;
    /// A whole intent.
    pub const INTENT: u16 = 1;
    /// A whole outcome.
    pub const OUTCOME: u16 = 2;
}

/// The first bytes of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: U32,
    /// CRC-32C of the bytes from 16 to the end of this structure.
    pub checksum: U32,
    pub intents: U32,
    pub intent_bytes: U32,
    pub outcomes: U32,
    pub outcome_bytes: U32,
    /// Which run of the kernel wrote it.
    pub boot: [u8; 16],
    /// Which file system the handles are of.
    pub volume: [u8; 16],
    /// The root of the export.
    pub root: Handle,
}

/// A persistent handle; its first `len` bytes count.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Handle {
    pub kind: I32,
    pub len: U16,
    pub zero: U16,
    pub bytes: [u8; HANDLE_MAX_LEN],
}

/// Client and key of a request take up so many bytes together.
pub const REQUEST_KEY_BYTES: usize = 32;

/// What tells one operation of one request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Key {
    /// What the front end promised of the key, and how the last 32 bytes are divided: `KINDS` in `record`.
    pub kind: U32,
    pub uid: U32,
    pub gid: U32,
    /// The client, and behind it what tells its requests apart.
    pub request: [u8; REQUEST_KEY_BYTES],
}

/// A point in time.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Time {
    pub secs: I64,
    pub nanos: U32,
    pub zero: U32,
}

/// What was found under a name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Mark {
    /// 0: not looked at; 1: nothing; 2: the node that follows, its birth unknown; 3: with its birth.
    pub found: U32,
    pub zero: U32,
    pub fsid: U64,
    pub fileid: U64,
    pub generation: U64,
    pub birth: Time,
}

/// A change of attributes, and the ctime before it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Attributes {
    /// Which of the following are to be set: 1 mode, 2 uid, 4 gid, 8 size, 16 atime, 32 mtime.
    pub set: U32,
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    pub size: U64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime_before: Time,
}

/// The fixed part of an intent; the two names follow it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Intent {
    pub state: U16,
    pub operation: U16,
    /// CRC-32C of the bytes from 8 to the end of the second name.
    pub checksum: U32,
    pub sequence: U64,
    pub key: Key,
    /// What a maker makes; of an extended attribute, what becomes of it. 0 for other operations.
    pub file_type: U32,
    pub time: Time,
    /// The directory, or the node whose attributes or extended attribute change, or the file that is appended
    /// to.
    pub parent: Handle,
    /// Rename: the directory of the new name.
    pub other_parent: Handle,
    /// What the name led to.
    pub found: Mark,
    /// Rename: what the new name led to. Link: the node.
    pub other_found: Mark,
    pub attributes: Attributes,
    pub name_len: U16,
    pub other_name_len: U16,
    pub zero: U32,
    /// An append, a change of attributes: size of the file before it. An extended attribute: what it was
    /// before.
    pub size_before: U64,
    /// An append: how many bytes were to be added. An extended attribute: what it was to be.
    pub len: U64,
}

/// An outcome.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Outcome {
    pub state: U16,
    pub operation: U16,
    /// CRC-32C of the bytes from 8 to the end.
    pub checksum: U32,
    /// That of the intent.
    pub sequence: U64,
    pub key: Key,
    /// 1: it succeeded; 2: so, and `node` is what it made; 3: it failed; 4: it wrote `count` bytes.
    pub kind: U16,
    /// The number of the failure; of a write its stability.
    pub detail: U16,
    pub time: Time,
    pub node: Handle,
    /// Digest of what it made or took away; 0 for neither.
    pub claim: U64,
    /// The sequence number that was next when it ended.
    pub ended: U64,
    /// How many bytes were written.
    pub count: U64,
}

/// An intent's slot: the fixed part, and two names of 255 bytes.
pub const INTENT_BYTES: usize = 1024;

/// An outcome's slot.
pub const OUTCOME_BYTES: usize = size_of::<Outcome>();

/// The checksum of a slot covers what lies behind it.
pub const CHECKED_FROM: usize = 8;

/// The checksum of the header covers what lies behind it.
pub const HEADER_CHECKED_FROM: usize = 16;

const _: () = {
    assert!(size_of::<Handle>() == 72);
    assert!(size_of::<Key>() == 44);
    assert!(size_of::<Time>() == 16);
    assert!(size_of::<Mark>() == 48);
    assert!(size_of::<Attributes>() == 72);

    assert!(offset_of!(Header, version) == 8);
    assert!(offset_of!(Header, checksum) == 12);
    assert!(offset_of!(Header, intents) == HEADER_CHECKED_FROM);
    assert!(offset_of!(Header, boot) == 32);
    assert!(offset_of!(Header, volume) == 48);
    assert!(offset_of!(Header, root) == 64);
    assert!(size_of::<Header>() == 136);

    assert!(offset_of!(Intent, checksum) == 4);
    assert!(offset_of!(Intent, sequence) == CHECKED_FROM);
    assert!(offset_of!(Intent, key) == 16);
    assert!(offset_of!(Intent, file_type) == 60);
    assert!(offset_of!(Intent, time) == 64);
    assert!(offset_of!(Intent, parent) == 80);
    assert!(offset_of!(Intent, other_parent) == 152);
    assert!(offset_of!(Intent, found) == 224);
    assert!(offset_of!(Intent, other_found) == 272);
    assert!(offset_of!(Intent, attributes) == 320);
    assert!(offset_of!(Intent, name_len) == 392);
    assert!(offset_of!(Intent, size_before) == 400);
    assert!(offset_of!(Intent, len) == 408);
    assert!(size_of::<Intent>() == 416);
    assert!(size_of::<Intent>() + 2 * 255 <= INTENT_BYTES);

    assert!(offset_of!(Outcome, checksum) == 4);
    assert!(offset_of!(Outcome, sequence) == CHECKED_FROM);
    assert!(offset_of!(Outcome, key) == 16);
    assert!(offset_of!(Outcome, kind) == 60);
    assert!(offset_of!(Outcome, time) == 64);
    assert!(offset_of!(Outcome, node) == 80);
    assert!(offset_of!(Outcome, claim) == 152);
    assert!(offset_of!(Outcome, ended) == 160);
    assert!(offset_of!(Outcome, count) == 168);
    assert!(OUTCOME_BYTES == 176);
    // A slot's state is stored in one access, which takes an even address.
    assert!(
        INTENT_BYTES.is_multiple_of(2) && OUTCOME_BYTES.is_multiple_of(2) && HEADER_BYTES.is_multiple_of(2)
    );
};
