//! Binary layout of the state file (`docs/formats/replies.md`). Numbers are little-endian; there is no
//! implicit padding.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const MAGIC: [u8; 8] = *b"TMBLRPLY";

/// Version of this layout. Files of newer versions are refused, older ones are set aside.
pub const VERSION: u32 = 2;

/// Length of the header with its padding to a page; the slots follow.
pub const HEADER_BYTES: usize = 4096;

/// Maximum number of slots of a kind in a valid file, which limits the memory for reading it.
pub const SLOTS_MAX: u32 = 1 << 20;

/// Maximum length of a stored handle, in bytes. Operations with longer ones are not recorded.
pub const HANDLE_MAX_LEN: usize = 64;

/// States of a slot.
pub mod state {
    /// Empty, whatever the other bytes contain.
    pub const FREE: u16 = 0;
    /// A complete intent.
    pub const INTENT: u16 = 1;
    /// A complete outcome.
    pub const OUTCOME: u16 = 2;
}

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
    /// Boot id of the kernel that wrote the file.
    pub boot: [u8; 16],
    /// File system of the handles.
    pub volume: [u8; 16],
    /// The root of the export.
    pub root: Handle,
}

/// A persistent handle of `len` bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Handle {
    pub kind: I32,
    pub len: U16,
    pub zero: U16,
    pub bytes: [u8; HANDLE_MAX_LEN],
}

/// Total length of a request's client id and key, in bytes.
pub const REQUEST_KEY_BYTES: usize = 32;

/// Identification of an operation of a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Key {
    /// Kind of the key, from which its properties and the division of `request` follow: `KINDS` in `record`.
    pub kind: U32,
    pub uid: U32,
    pub gid: U32,
    /// The client id, followed by the request's key.
    pub request: [u8; REQUEST_KEY_BYTES],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Time {
    pub secs: I64,
    pub nanos: U32,
    pub zero: U32,
}

/// The node found under a name, or the node to be linked.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Mark {
    /// 0: not examined; 1: no node; 2: the node in the next fields, without birth time; 3: with birth time.
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
    /// Attributes to be set: 1 mode, 2 uid, 4 gid, 8 size, 16 atime, 32 mtime.
    pub set: U32,
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    pub size: U64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime_before: Time,
}

/// The fixed part of an intent; its names, at most two, follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Intent {
    pub state: U16,
    pub operation: U16,
    /// CRC-32C of the bytes from 8 to the end of the second name.
    pub checksum: U32,
    pub sequence: U64,
    pub key: Key,
    /// Type of the node to be created; change of an extended attribute. 0 for other operations.
    pub file_type: U32,
    pub time: Time,
    /// The directory, or the node whose attributes or data change.
    pub parent: Handle,
    /// Rename: the directory of the new name.
    pub other_parent: Handle,
    /// The node found under the name.
    pub found: Mark,
    /// Rename: the node found under the new name. Link: the node.
    pub other_found: Mark,
    pub attributes: Attributes,
    pub name_len: U16,
    pub other_name_len: U16,
    pub zero: U32,
    /// Append, change of attributes: size of the file before. Extended attribute: `ValueMark` of the value
    /// before.
    pub size_before: U64,
    /// Append: number of bytes to add. Extended attribute: `ValueMark` of the new value.
    pub len: U64,
}

/// An outcome, which occupies a whole slot.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Outcome {
    pub state: U16,
    pub operation: U16,
    /// CRC-32C of the bytes from 8 to the end.
    pub checksum: U32,
    /// Sequence number of the intent.
    pub sequence: U64,
    pub key: Key,
    /// 1: success; 2: success, `node` was created or opened; 3: failure; 4: `count` bytes were written.
    pub kind: U16,
    /// Number of the failure; stability of a write.
    pub detail: U16,
    pub time: Time,
    pub node: Handle,
    /// Digest of the claim; 0 for none.
    pub claim: U64,
    /// Next sequence number when the operation ended.
    pub ended: U64,
    /// Number of bytes written.
    pub count: U64,
}

/// Length of an intent's slot, in which the fixed part and two names of 255 bytes fit.
pub const INTENT_BYTES: usize = 1024;

pub const OUTCOME_BYTES: usize = size_of::<Outcome>();

/// Start of the part of a slot that its checksum covers, behind state, operation and checksum.
pub const CHECKED_FROM: usize = 8;

/// Start of the part of the header that its checksum covers.
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
    // Slot states are stored in one access, which requires an even address.
    assert!(
        INTENT_BYTES.is_multiple_of(2) && OUTCOME_BYTES.is_multiple_of(2) && HEADER_BYTES.is_multiple_of(2)
    );
};
