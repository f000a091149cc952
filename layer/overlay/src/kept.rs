//! [`StateMemory`]: block states in memory that outlives the process, as a keeper retains it when the server
//! is killed. Unflushed data is then in the redo log's file and its states in this memory, and both are lost
//! only when the host fails, as on any disk.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use tombolo_mem::{MapError, OutOfBounds, Region};

use crate::layout::{PAGE_BYTES, SEGMENT_BYTES};
use crate::{Header, OverlayError};

/// Identity of a redo log, chosen by the program that opens it: the inode number of its file, for example.
pub type Identity = [u8; 24];

/// Memory for the states of one overlay, of [`Header::kept_bytes`]: zeroes, or the states left by an earlier
/// process.
#[derive(Clone, Debug)]
pub struct StateMemory {
    /// Written only by the successive processes that open this overlay.
    pub memory: Region,
    /// Identity of the redo log; any other is refused.
    pub identity: Identity,
}

// Offsets in the first page, whose numbers are in native byte order: all processes are on one host.
const MARK: usize = 0;
const SIZE: usize = 8;
const IDENTITY: usize = 16;
/// Offset of a bitmap of the segments with pages, lowest bit first; the pages follow.
const USED: usize = PAGE_BYTES as usize;

/// Number at [`MARK`] if the states are valid, in version 1 of this layout; 0 in empty memory.
const VALID: u64 = u64::from_be_bytes(*b"TOMBOST1");

const fn pages_at(segments: u64) -> usize {
    USED + (segments.div_ceil(8) as usize).next_multiple_of(PAGE_BYTES as usize)
}

impl Header {
    /// Returns the length of memory for an overlay's states, in bytes; its pages are allocated when written.
    pub fn kept_bytes(&self) -> usize {
        let segments = self.size_bytes.div_ceil(SEGMENT_BYTES);
        pages_at(segments) + segments as usize * PAGE_BYTES as usize
    }
}

impl StateMemory {
    /// Maps an unnamed file of [`Header::kept_bytes`], which must not be truncated.
    pub fn map(memory: impl AsFd, header: &Header, identity: Identity) -> Result<Self, MapError> {
        Ok(Self { memory: Region::map(memory, 0, header.kept_bytes())?, identity })
    }

    /// Returns `true` if the memory has the states left by an earlier process, `false` if it is still empty.
    /// Fails if it belongs to another overlay or another version of this layout.
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
        let is_same = mark == VALID && load(SIZE)? == header.size_bytes && identity == self.identity;
        if is_same { Ok(true) } else { Err(OverlayError::OtherMemory) }
    }

    /// Records the overlay's identity and size in the memory, and marks the states as valid.
    pub(crate) fn begin(&self, header: &Header) -> Result<(), OverlayError> {
        let begun = || {
            self.memory.write_at(IDENTITY, &self.identity)?;
            self.memory.store_u64(SIZE, header.size_bytes, Ordering::Relaxed)?;
            self.memory.store_u64(MARK, VALID, Ordering::Release)
        };
        begun().map_err(|_| OverlayError::OtherMemory)
    }

    /// Returns the offset of a segment's page in the memory.
    pub(crate) fn page_at(&self, segment: u64, segments: u64) -> usize {
        pages_at(segments) + segment as usize * PAGE_BYTES as usize
    }

    pub(crate) fn uses(&self, segment: u64) {
        // Cannot fail: the length was checked.
        let _ = self.memory.set_bits(USED + segment as usize / 8, 1 << (segment % 8), Ordering::AcqRel);
    }

    /// Returns `true` if a segment's page is used. Unused pages must not be accessed, because an access would
    /// allocate them.
    pub(crate) fn is_used(&self, segment: u64) -> bool {
        let mut bits = [0];
        let found = self.memory.read_at(USED + segment as usize / 8, &mut bits);
        found.is_ok() && bits[0] & 1 << (segment % 8) != 0
    }
}
