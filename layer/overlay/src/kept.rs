//! States in memory that outlives the process: a keeper holds it, so that a server which is killed takes none
//! of them with it. What was not flushed is in the redo log's file and in here then, and goes with the
//! machine as from any disk.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use tombolo_mem::{MapError, OutOfBounds, Region};

use crate::layout::{PAGE_BYTES, SEGMENT_BYTES};
use crate::{Header, OverlayError};

/// What tells a redo log from others, as its opener likes: its file's number, say.
pub type Identity = [u8; 24];

/// Memory for one overlay's states, of [`Header::kept_bytes`]: zeroes, or what an earlier process has left.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Nothing but processes that open this overlay one after the other writes there.
    pub memory: Region,
    /// Of the redo log: another one is refused.
    pub identity: Identity,
}

// The first page, in the order of the host: programs of one host alone follow each other.
const MARK: usize = 0;
const SIZE: usize = 8;
const IDENTITY: usize = 16;
/// From here on a bit for each segment that has a page, the first the lowest of the first byte; then the
/// pages.
const USED: usize = PAGE_BYTES as usize;

/// Says that the states are here, and how: in version 1.
const HOLDS: u64 = u64::from_be_bytes(*b"TOMBOST1");

const fn pages_at(segments: u64) -> usize {
    USED + (segments.div_ceil(8) as usize).next_multiple_of(PAGE_BYTES as usize)
}

impl Header {
    /// How much memory its states need to be kept, in bytes; pages of it are used once they are written.
    pub fn kept_bytes(&self) -> usize {
        let segments = self.size_bytes.div_ceil(SEGMENT_BYTES);
        pages_at(segments) + segments as usize * PAGE_BYTES as usize
    }
}

impl Kept {
    /// Maps memory that is a file of no name, of [`Header::kept_bytes`]. It must not be cut off.
    pub fn map(memory: impl AsFd, header: &Header, identity: Identity) -> Result<Self, MapError> {
        Ok(Self { memory: Region::map(memory, 0, header.kept_bytes())?, identity })
    }

    /// Whether the states are here: an earlier process had the overlay open.
    pub(crate) fn holds(&self, header: &Header) -> Result<bool, OverlayError> {
        let other = |_: OutOfBounds| OverlayError::OtherMemory;
        if self.memory.len() != header.kept_bytes() {
            return Err(OverlayError::OtherMemory);
        }
        let load = |at| self.memory.load_u64(at, Ordering::Acquire).map_err(other);
        let mark = load(MARK)?;
        if mark == 0 {
            return Ok(false);
        }
        let mut identity = Identity::default();
        self.memory.read_at(IDENTITY, &mut identity).map_err(other)?;
        let is_same = mark == HOLDS && load(SIZE)? == header.size_bytes && identity == self.identity;
        if is_same { Ok(true) } else { Err(OverlayError::OtherMemory) }
    }

    /// They are from now on.
    pub(crate) fn begin(&self, header: &Header) -> Result<(), OverlayError> {
        let begun = || {
            self.memory.write_at(IDENTITY, &self.identity)?;
            self.memory.store_u64(SIZE, header.size_bytes, Ordering::Relaxed)?;
            self.memory.store_u64(MARK, HOLDS, Ordering::Release)
        };
        begun().map_err(|_| OverlayError::OtherMemory)
    }

    /// Where a segment's page is.
    pub(crate) fn page_at(&self, segment: u64, segments: u64) -> usize {
        pages_at(segments) + segment as usize * PAGE_BYTES as usize
    }

    /// Its page is used: something may be in it.
    pub(crate) fn uses(&self, segment: u64) {
        // The length was looked at.
        let _ = self.memory.set_bits(USED + segment as usize / 8, 1 << (segment % 8), Ordering::AcqRel);
    }

    /// Pages that are not used are not looked at, so that they take no memory.
    pub(crate) fn is_used(&self, segment: u64) -> bool {
        let mut bits = [0];
        let found = self.memory.read_at(USED + segment as usize / 8, &mut bits);
        found.is_ok() && bits[0] & 1 << (segment % 8) != 0
    }
}
