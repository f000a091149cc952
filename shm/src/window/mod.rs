//! The window: change counts by which a client validates cached data without a request
//! (docs/formats/window.md).
//!
//! A server counts the changes of each file in a slot: one more in progress before a change begins, one more
//! completed when it has ended. Before a client requests data, it reads the version of the file's slot; while
//! the version holds, the data are current. The cached data themselves are in the client's own memory, so the
//! window reveals nothing but the fact of a change. Several files may share a slot, which only causes
//! superfluous requests. The server's side is [`Window`], the client's [`WindowReader`].

mod counts;
mod mirror;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_mem::{LINE_BYTES, Lines, LinesMut, OutOfBounds, Region};

pub use self::counts::Counts;
pub use self::mirror::Mirror;
use self::mirror::MirroredCounts;
use crate::region::RegionError;
use crate::region::sealed::{self, Sealed};

/// Number of slots of a window.
pub const SLOTS: u32 = 1 << 17;

const MAGIC: u64 = u64::from_ne_bytes(*b"TMBLWIN\0");
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 4096;
const HEADER_LINES: usize = HEADER_BYTES / LINE_BYTES;
const SLOT_LINES: usize = SLOTS as usize / tombolo_mem::WORDS_PER_LINE;

/// Size of a window, in bytes.
pub const WINDOW_BYTES: u64 = (HEADER_BYTES + SLOT_LINES * LINE_BYTES) as u64;

/// A server's window, which the server writes. Usable from any thread.
#[derive(Debug)]
pub struct Window {
    counts: MirroredCounts,
    readable: Counts<Lines>,
    memory: Arc<OwnedFd>,
    /// The mapping of files to slots: a secret, so that a client knows the slots of only those files whose
    /// versions it received.
    places: RandomState,
}

impl Window {
    /// Creates a window with a random epoch, so that versions of an earlier server's window probably never
    /// hold in it.
    pub fn create() -> Result<Self, RegionError> {
        let own = Sealed::create("tombolo-window", WINDOW_BYTES)?;
        let places = RandomState::new();
        // The epoch begins in the lower half of the numbers, so that incrementing it never wraps.
        let counts = format(own.region(), 0, places.hash_one(MAGIC) >> 1)?;
        let memory =
            own.as_fd().try_clone_to_owned().map_err(|error| RegionError::io("the window", error))?;
        let readable = counts.as_readable();
        Ok(Self { counts: MirroredCounts::new(counts), readable, memory: Arc::new(memory), places })
    }

    /// Returns the slot of a file, by its device and inode numbers.
    pub fn slot_of(&self, device: u64, inode: u64) -> u32 {
        self.places.hash_one((device, inode)) as u32 % SLOTS
    }

    /// Makes the additions of `add` to the window and to each mirror, all of them before it returns.
    #[inline]
    pub fn count(&self, add: impl Fn(&Counts<LinesMut>)) {
        self.counts.each(add);
    }

    /// Copies the window to the [`WINDOW_BYTES`] from `offset` of `memory`, and counts changes in both until
    /// the result is dropped. Changes block while the window is copied, for up to 1 ms. Fails if the memory
    /// is read-only or too short, or if `offset` is not aligned to a cache line.
    pub fn mirror(&self, memory: &Region, offset: usize) -> Result<Mirror, RegionError> {
        Ok(self.counts.add(format(memory, offset, 0)?))
    }

    /// Returns the counts for reading, by which the server itself takes and checks versions.
    #[inline]
    pub fn readable(&self) -> &Counts<Lines> {
        &self.readable
    }

    /// Returns the descriptor to be passed to readers, which can only read the memory.
    pub fn memory(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.memory)
    }
}

/// A client's reader of a server's window.
#[derive(Debug)]
pub struct WindowReader {
    counts: Counts<Lines>,
}

impl WindowReader {
    /// Maps a window for reading.
    pub fn map(memory: impl AsFd) -> Result<Self, RegionError> {
        Self::at(&sealed::map_peer(memory, WINDOW_BYTES)?, 0)
    }

    /// Returns the reader of the window at `offset` of a region. If other processes can write the region, the
    /// counts are as trustworthy as those processes.
    pub fn at(region: &Region, offset: usize) -> Result<Self, RegionError> {
        let head = Lines::new(region, offset, HEADER_LINES).map_err(unfit)?;
        let slots = Lines::new(region, offset.saturating_add(HEADER_BYTES), SLOT_LINES).map_err(unfit)?;
        let is_known = [MAGIC, VERSION, SLOTS.into()]
            .into_iter()
            .enumerate()
            .all(|(word, value)| head.load(0, word, Ordering::Relaxed) == value);
        if !is_known {
            return Err(RegionError::io("the window", std::io::Error::other("unsupported version")));
        }
        Ok(Self { counts: Counts::of(head, slots) })
    }

    /// Returns the counts, to take versions and to validate them.
    #[inline]
    pub fn counts(&self) -> &Counts<Lines> {
        &self.counts
    }
}

/// Writes a window's header with that epoch at `offset` of the region. The slots keep their values.
fn format(region: &Region, offset: usize, epoch: u64) -> Result<Counts<LinesMut>, RegionError> {
    let head = LinesMut::new(region, offset, HEADER_LINES).map_err(unfit)?;
    let slots = LinesMut::new(region, offset.saturating_add(HEADER_BYTES), SLOT_LINES).map_err(unfit)?;
    for (word, value) in [MAGIC, VERSION, SLOTS.into()].into_iter().enumerate() {
        head.store(0, word, value, Ordering::Relaxed);
    }
    Ok(Counts::begin(head, slots, epoch))
}

fn unfit(source: OutOfBounds) -> RegionError {
    RegionError::io("the window", std::io::Error::other(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Window, WindowReader) {
        let window = Window::create().expect("a window");
        let memory = window.memory().try_clone().expect("a descriptor");
        (window, WindowReader::map(memory).expect("mapped"))
    }

    #[test]
    fn a_version_holds_until_something_changes() {
        let (window, reader) = both();
        let (slot, other) = (window.slot_of(7, 8), SLOTS - 1);
        let version = reader.counts().version(slot).expect("nothing under way");
        assert!(reader.counts().holds(&version));
        window.count(|counts| counts.begun(slot));
        assert!(!reader.counts().holds(&version) && reader.counts().version(slot).is_none());
        window.count(|counts| counts.begun(slot));
        window.count(|counts| counts.ended(slot));
        assert_eq!(reader.counts().version(slot), None, "one of two has ended");
        window.count(|counts| counts.ended(slot));
        let next = reader.counts().version(slot).expect("nothing under way");
        assert!(reader.counts().holds(&next) && !reader.counts().holds(&version));
        window.count(|counts| counts.begun(slot));
        window.count(|counts| counts.unchanged(slot));
        assert!(reader.counts().holds(&next), "nothing has changed");
        window.count(|counts| counts.changed(other));
        assert_eq!(reader.counts().holds(&next), slot != other);
        window.count(Counts::everything);
        assert!(!reader.counts().holds(&next));
    }

    #[test]
    fn a_version_of_another_window_does_not_hold() {
        let ((window, _), (_, reader)) = (both(), both());
        let version = window.readable().version(3).expect("nothing under way");
        assert!(!reader.counts().holds(&version));
    }

    #[test]
    fn slot_mapping_differs_between_windows() {
        let ((one, _), (other, _)) = (both(), both());
        let slots = |window: &Window| (0..64).map(|inode| window.slot_of(1, inode)).collect::<Vec<_>>();
        assert_ne!(slots(&one), slots(&other));
        assert!(slots(&one).iter().all(|slot| *slot < SLOTS));
    }

    #[test]
    fn memory_that_is_no_window_is_refused() {
        let own = Sealed::create("test", WINDOW_BYTES).expect("memory");
        let memory = own.as_fd().try_clone_to_owned().expect("a descriptor");
        assert!(WindowReader::map(memory).is_err());
    }
}
