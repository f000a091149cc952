//! The first page of a file that both sides of a link can write, where there is no socket: the server, the
//! claiming client, what they agree on, and how it ends (docs/formats/link.md, "In a file").
//!
//! Behind the page lie the client's half and the server's half. Every word of the page has one side that
//! writes it, but for the two that are claimed by compare-and-swap. A word of a phase carries the number of
//! its attempt, so that nothing left from an earlier client or server is taken for the present one's.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{Ordering, fence};

use thiserror::Error;
use tombolo_mem::{OutOfBounds, Region, WordMut};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::link::ends::{Extent, Role};
use crate::link::layout::REGION_BYTES_MAX;
use crate::link::message::{MESSAGE_BYTES_MAX, Message, MessageError};
use crate::link::terms::{Incarnation, VERSION};

/// The page, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Which server has the page: u32, 0 for none.
const OWNER_OFFSET: usize = 128;
/// What the server is at: u32.
const SERVER_PHASE_OFFSET: usize = 256;
/// Which client has the page: u32, 0 for none.
const CLAIM_OFFSET: usize = 384;
/// What the client is at: u32.
const CLIENT_PHASE_OFFSET: usize = 512;
/// The client's last message.
const CLIENT_MESSAGE_OFFSET: usize = 1024;
/// The server's last message.
const SERVER_MESSAGE_OFFSET: usize = 2048;

const MAGIC: [u8; 8] = *b"TMBLPAGE";

/// What a side is at. The numbers are those of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Nothing is there.
    Closed = 0,
    /// The server waits for a client.
    Open = 1,
    /// The client has said hello; the server has welcomed it.
    Said = 2,
    /// The client has made its half ready.
    Ready = 3,
    /// The server has refused.
    Refused = 4,
    /// It has ended the link, and its message says why.
    Over = 5,
}

/// What a side is at, in which attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) attempt: u32,
    pub(super) phase: Phase,
}

/// Rounds have 24 bits and start again.
pub(super) const ATTEMPT_MASK: u32 = 0x00FF_FFFF;

/// Why a file cannot carry a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PageError {
    /// It is too small for a page and two halves, or not a number of pages, or too large.
    #[error("{bytes} bytes cannot be shared: whole pages, three at least, are needed")]
    Size {
        /// Its size.
        bytes: u64,
    },
    /// No server was ever there.
    #[error("no server has been there yet")]
    Blank,
    /// A server of another version was there.
    #[error("a page of version {version}, and {VERSION} is known")]
    Version {
        /// The version that it names.
        version: u32,
    },
    /// It was truncated, or its file system had no room for it: what is mapped there now is private.
    #[error("the memory has lost its file: it was truncated, or there was no room for it")]
    Gone,
    /// An access beyond the end, which cannot happen with a checked size.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
}

/// A file with its page.
#[derive(Debug)]
pub(super) struct Page {
    region: Region,
    total: u64,
    pub(super) owner: WordMut,
    pub(super) claim: WordMut,
    server_phase: WordMut,
    client_phase: WordMut,
}

/// The length that a server gave the file, as its page says: for a client that cannot know it otherwise.
/// `page` is at least the first page.
pub fn length_of(page: &Region) -> Result<u64, PageError> {
    let raw = read(page)?;
    let bytes = raw.total.get();
    halves(bytes)?;
    Ok(bytes)
}

impl Page {
    /// The page of a file of that many bytes, whatever is in it.
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

    /// Says what the file is; for the server that has it.
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

    /// Fails once the memory is no longer that of the file.
    pub(super) fn check(&self) -> Result<(), PageError> {
        if self.region.is_poisoned() { Err(PageError::Gone) } else { Ok(()) }
    }

    /// Which server formatted the file last.
    pub(super) fn server(&self) -> Result<Incarnation, PageError> {
        read(&self.region).map(|raw| Incarnation(raw.server))
    }

    /// A side's half.
    pub(super) fn half(&self, role: Role) -> Result<Extent, PageError> {
        let len = halves(self.total)?;
        let offset = match role {
            Role::Client => PAGE_BYTES,
            Role::Server => PAGE_BYTES + len,
        };
        Ok(Extent::new(self.region.clone(), offset, len)?)
    }

    /// What a side is at; none if it is nothing that means anything.
    pub(super) fn stage(&self, role: Role) -> Option<Stage> {
        let word = u32::from_le(self.phase(role).load(Ordering::Acquire));
        let phases = [Phase::Closed, Phase::Open, Phase::Said, Phase::Ready, Phase::Refused, Phase::Over];
        let phase = phases.into_iter().find(|phase| u32::from(*phase as u8) == word & 0xFF)?;
        Some(Stage { attempt: word >> 8, phase })
    }

    /// Says what our side is at, after everything that was written before.
    pub(super) fn set_stage(&self, role: Role, stage: Stage) {
        let word = (stage.attempt & ATTEMPT_MASK) << 8 | u32::from(stage.phase as u8);
        // Full: what was written by string instructions and the word must not change places either.
        fence(Ordering::SeqCst);
        self.phase(role).store(word.to_le(), Ordering::SeqCst);
    }

    /// The message that a side has left. Copied out once.
    pub(super) fn message(&self, role: Role) -> Result<Message, MessageError> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = || MessageError::Length { bytes: 0 };
        self.region.read_at(message_offset(role), &mut bytes).map_err(|_| length())?;
        let len = bytes.get(12..16).and_then(|len| len.try_into().ok()).map_or(0, u32::from_le_bytes);
        let len = usize::try_from(len).map_err(|_| length())?;
        Message::decode(bytes.get(..len).ok_or_else(length)?)
    }

    /// Leaves a message of our side.
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

/// How long each half of a file of that many bytes is.
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

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    zero: U32,
    total: U64,
    server: [u8; 16],
}

const _: () = {
    assert!(offset_of!(Raw, version) == 8);
    assert!(offset_of!(Raw, total) == 16);
    assert!(offset_of!(Raw, server) == 24);
    assert!(size_of::<Raw>() == 40);
    assert!(size_of::<Raw>() <= OWNER_OFFSET);
    assert!(CLIENT_PHASE_OFFSET + 4 <= CLIENT_MESSAGE_OFFSET);
    assert!(CLIENT_MESSAGE_OFFSET + MESSAGE_BYTES_MAX <= SERVER_MESSAGE_OFFSET);
    assert!(SERVER_MESSAGE_OFFSET + MESSAGE_BYTES_MAX <= PAGE_BYTES as usize);
};
