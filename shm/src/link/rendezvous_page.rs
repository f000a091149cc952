//! The rendezvous page: the first page of a file that both sides of a link can write, for set-up without a
//! socket (docs/formats/link.md, "In a file").
//!
//! The page is followed by the client's half and the server's half. Every word of the page has one writing
//! side, except the two that are claimed by compare-and-swap: the tokens of the owning server and of the
//! client. A phase word carries the number of its attempt, so that nothing left by an earlier client or
//! server is mistaken for the current one's.

use std::sync::atomic::{Ordering, fence};

use thiserror::Error;
use tombolo_mem::{OutOfBounds, Region, WordMut};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::link::ends::{Extent, Role};
use crate::link::layout::REGION_BYTES_MAX;
use crate::link::message::{MESSAGE_BYTES_MAX, Message, MessageError};
use crate::link::raw::raw;
use crate::link::terms::{Incarnation, VERSION};

/// Size of the rendezvous page, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Offset of the owning server's token: u32, 0 for none.
const OWNER_OFFSET: usize = 128;
/// Offset of the server's phase: u32.
const SERVER_PHASE_OFFSET: usize = 256;
/// Offset of the claiming client's token: u32, 0 for none.
const CLAIM_OFFSET: usize = 384;
/// Offset of the client's phase: u32.
const CLIENT_PHASE_OFFSET: usize = 512;
/// Offset of the client's last message.
const CLIENT_MESSAGE_OFFSET: usize = 1024;
/// Offset of the server's last message.
const SERVER_MESSAGE_OFFSET: usize = 2048;

const MAGIC: [u8; 8] = *b"TMBLPAGE";

/// The phase of one side. The numbers are those of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The side does not use the page.
    Closed = 0,
    /// The server waits for a client.
    Open = 1,
    /// The client has sent its hello; the server, its welcome.
    Greeted = 2,
    /// The client has prepared its half of the file, and the link is in use.
    Ready = 3,
    /// The server has refused.
    Refused = 4,
    /// The side has ended the attempt or the link. If it said goodbye, its last message is the goodbye, with
    /// the reason.
    Ended = 5,
}

/// The phase of one side in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) attempt: u32,
    pub(super) phase: Phase,
}

/// Mask of attempt numbers, which have 24 bits and wrap.
pub(super) const ATTEMPT_MASK: u32 = 0x00FF_FFFF;

/// The reason why a file cannot carry a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PageError {
    /// The file's size is not a number of whole pages, too small for a page and two halves, too large, or
    /// more than is mapped.
    #[error("{bytes} bytes cannot be shared: must be whole pages, at least three")]
    Size {
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// No server has initialised the page yet.
    #[error("no server has used the file yet")]
    Blank,
    /// Unsupported version.
    #[error("page version {version} is not supported, expected {VERSION}")]
    Version {
        /// Version found in the page.
        version: u32,
    },
    /// The file was truncated, or its file system is full: the mapping has been replaced by private memory.
    #[error("the shared memory was lost: its file was truncated, or its file system is full")]
    Gone,
    /// An access beyond the end, which cannot happen with a checked size.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
}

/// A mapped file with its rendezvous page, and the words of the page that change.
#[derive(Debug)]
pub(super) struct Page {
    region: Region,
    total: u64,
    pub(super) owner: WordMut,
    pub(super) claim: WordMut,
    server_phase: WordMut,
    client_phase: WordMut,
}

/// Returns the length that a server gave the file, according to its page: for a client without another
/// source. `page` contains at least the first page.
pub fn length_of(page: &Region) -> Result<u64, PageError> {
    let raw = read(page)?;
    let bytes = raw.total.get();
    halves(bytes)?;
    Ok(bytes)
}

impl Page {
    /// Returns the page of a file of `total` bytes, whose contents are not examined. Fails if `total` is no
    /// valid size, or more than is mapped.
    pub(super) fn new(region: Region, total: u64) -> Result<Page, PageError> {
        halves(total)?;
        if (region.len() as u64) < total {
            return Err(PageError::Size { bytes: region.len() as u64 });
        }
        let word = |offset| WordMut::new(&region, offset);
        Ok(Page {
            owner: word(OWNER_OFFSET)?,
            claim: word(CLAIM_OFFSET)?,
            server_phase: word(SERVER_PHASE_OFFSET)?,
            client_phase: word(CLIENT_PHASE_OFFSET)?,
            total,
            region,
        })
    }

    /// Writes the page's header. Only the owning server calls this.
    pub(super) fn format(&self, server: Incarnation) -> Result<(), OutOfBounds> {
        let raw = Raw {
            magic: MAGIC,
            version: U32::new(VERSION),
            zero: U32::ZERO,
            total: U64::new(self.total),
            server: server.0,
        };
        self.region.write_at(0, raw.as_bytes())
    }

    /// Fails once the mapping has lost its file ([`PageError::Gone`]).
    pub(super) fn check(&self) -> Result<(), PageError> {
        if self.region.is_poisoned() { Err(PageError::Gone) } else { Ok(()) }
    }

    /// Returns the incarnation of the server that formatted the page last.
    pub(super) fn server(&self) -> Result<Incarnation, PageError> {
        read(&self.region).map(|raw| Incarnation(raw.server))
    }

    /// Returns a side's half of the file behind the page.
    pub(super) fn half(&self, role: Role) -> Result<Extent, PageError> {
        let len = halves(self.total)?;
        let offset = match role {
            Role::Client => PAGE_BYTES,
            Role::Server => PAGE_BYTES + len,
        };
        Ok(Extent::new(self.region.clone(), offset, len)?)
    }

    /// Returns the phase of a side; `None` if invalid.
    pub(super) fn stage(&self, role: Role) -> Option<Stage> {
        let word = u32::from_le(self.phase(role).load(Ordering::Acquire));
        let phases = [Phase::Closed, Phase::Open, Phase::Greeted, Phase::Ready, Phase::Refused, Phase::Ended];
        let phase = phases.into_iter().find(|phase| u32::from(*phase as u8) == word & 0xFF)?;
        Some(Stage { attempt: word >> 8, phase })
    }

    /// Publishes the phase of `role`, which must be this side, after all earlier stores.
    pub(super) fn set_stage(&self, role: Role, stage: Stage) {
        let word = (stage.attempt & ATTEMPT_MASK) << 8 | u32::from(stage.phase as u8);
        // Orders all earlier stores before the word, bulk copies included. A release fence would suffice;
        // phases change too rarely for the cost to matter.
        fence(Ordering::SeqCst);
        self.phase(role).store(word.to_le(), Ordering::SeqCst);
    }

    /// Returns the message that a side has left in the page. Its bytes are copied once, and decoded from the
    /// copy.
    pub(super) fn message(&self, role: Role) -> Result<Message, MessageError> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = || MessageError::Length { bytes: 0 };
        self.region.read_at(message_offset(role), &mut bytes).map_err(|_| length())?;
        let len = bytes.get(12..16).and_then(|len| len.try_into().ok()).map_or(0, u32::from_le_bytes);
        let len = usize::try_from(len).map_err(|_| length())?;
        Message::decode(bytes.get(..len).ok_or_else(length)?)
    }

    /// Leaves a message of `role`, which must be this side, for the peer, which reads it after `set_stage`.
    pub(super) fn set_message(&self, role: Role, message: &Message) -> Result<(), OutOfBounds> {
        self.region.write_at(message_offset(role), &message.encode())
    }

    fn phase(&self, role: Role) -> &WordMut {
        match role {
            Role::Client => &self.client_phase,
            Role::Server => &self.server_phase,
        }
    }
}

/// Returns the length of each half of a file of `total` bytes. Fails if no link fits in such a file.
pub(super) fn halves(total: u64) -> Result<u64, PageError> {
    let size = PageError::Size { bytes: total };
    if !total.is_multiple_of(PAGE_BYTES) || total > 2 * REGION_BYTES_MAX {
        return Err(size);
    }
    let half = total.saturating_sub(PAGE_BYTES) / 2;
    let half = half - half % PAGE_BYTES;
    if half == 0 { Err(size) } else { Ok(half) }
}

fn read(region: &Region) -> Result<Raw, PageError> {
    let mut raw = Raw::new_zeroed();
    region.read_at(0, raw.as_mut_bytes())?;
    if raw.magic != MAGIC {
        return Err(PageError::Blank);
    }
    match raw.version.get() {
        VERSION => Ok(raw),
        version => Err(PageError::Version { version }),
    }
}

fn message_offset(role: Role) -> usize {
    match role {
        Role::Client => CLIENT_MESSAGE_OFFSET,
        Role::Server => SERVER_MESSAGE_OFFSET,
    }
}

raw! {
    struct Raw: 0..40 {
        0 magic: [u8; 8],
        8 version: U32,
        12 zero: U32,
        16 total: U64,
        24 server: [u8; 16],
    }
}

const _: () = {
    assert!(size_of::<Raw>() <= OWNER_OFFSET);
    assert!(CLIENT_PHASE_OFFSET + 4 <= CLIENT_MESSAGE_OFFSET);
    assert!(CLIENT_MESSAGE_OFFSET + MESSAGE_BYTES_MAX <= SERVER_MESSAGE_OFFSET);
    assert!(SERVER_MESSAGE_OFFSET + MESSAGE_BYTES_MAX <= PAGE_BYTES as usize);
};
