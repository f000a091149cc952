//! Mirrors: copies of a window for guests, each in memory that the guest can write.
//!
//! A mirror has the same counts as the window, so that a version that the server took from the window holds
//! in the mirror exactly while it holds in the window. Every addition is made to all of them under a shared
//! lock. A new mirror is copied under the exclusive lock, so that it misses no addition and has none twice.

use std::sync::{Arc, PoisonError, RwLock};

use tombolo_core::fs::WindowMirror;
use tombolo_mem::LinesMut;

use super::Counts;

/// The counts of a window and of its mirrors.
#[derive(Debug)]
pub(super) struct MirroredCounts {
    own: Counts<LinesMut>,
    all: List,
}

type List = Arc<RwLock<Vec<Arc<Counts<LinesMut>>>>>;

/// A copy of a window, in which changes are counted until this is dropped.
#[derive(Debug)]
pub struct Mirror {
    counts: Arc<Counts<LinesMut>>,
    all: List,
}

impl MirroredCounts {
    pub(super) fn new(own: Counts<LinesMut>) -> Self {
        Self { own, all: List::default() }
    }

    /// Makes the additions of `add` to each mirror and to the window. The window is the last, so that a
    /// version taken from it contains no addition that a mirror lacks: with another change of the slot,
    /// counted in the mirror only, it would seem valid.
    #[inline]
    pub(super) fn each(&self, add: impl Fn(&Counts<LinesMut>)) {
        let mirrors = self.all.read().unwrap_or_else(PoisonError::into_inner);
        mirrors.iter().for_each(|mirror| add(mirror));
        add(&self.own);
    }

    /// Makes these counts a mirror.
    pub(super) fn add(&self, mirror: Counts<LinesMut>) -> Mirror {
        let counts = Arc::new(mirror);
        let mut mirrors = self.all.write().unwrap_or_else(PoisonError::into_inner);
        counts.copy(&self.own.as_readable());
        mirrors.push(Arc::clone(&counts));
        Mirror { counts, all: Arc::clone(&self.all) }
    }
}

impl WindowMirror for Mirror {
    fn invalidate(&self) {
        self.counts.everything();
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let mut mirrors = self.all.write().unwrap_or_else(PoisonError::into_inner);
        mirrors.retain(|mirror| !Arc::ptr_eq(mirror, &self.counts));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tombolo_mem::Region;

    use super::*;
    use crate::window::{SLOTS, WINDOW_BYTES, Window, WindowReader};

    /// Returns a mirror behind a page of other data, and its reader.
    fn mirrored(window: &Window) -> (Mirror, WindowReader) {
        let region = Region::heap(4096 + usize::try_from(WINDOW_BYTES).expect("small"));
        let mirror = window.mirror(&region, 4096).expect("a mirror");
        (mirror, WindowReader::at(&region, 4096).expect("readable"))
    }

    #[test]
    fn versions_hold_in_mirror_while_they_hold_in_window() {
        let window = Window::create().expect("a window");
        (0..9).for_each(|slot| window.count(|counts| counts.changed(slot)));
        window.count(|counts| counts.begun(3));
        let (mirror, reader) = mirrored(&window);
        assert_eq!(reader.counts().version(3), None, "a change that has begun before");
        window.count(|counts| counts.ended(3));
        for slot in [0, 3, 8, 77, SLOTS - 1] {
            let version = window.readable().version(slot).expect("nothing in progress");
            assert!(reader.counts().holds(&version), "{slot}");
            window.count(|counts| counts.changed(slot));
            assert!(!reader.counts().holds(&version), "{slot}");
        }
        let version = window.readable().version(5).expect("nothing in progress");
        window.count(Counts::everything);
        assert!(!reader.counts().holds(&version));
        let version = window.readable().version(5).expect("nothing in progress");
        assert!(reader.counts().holds(&version));
        mirror.invalidate();
        assert!(!reader.counts().holds(&version), "nothing is counted in it any more");
    }

    /// Makes a change between the additions of another change to mirror and window.
    #[test]
    fn version_from_before_answered_change_never_holds() {
        let window = Window::create().expect("a window");
        let (_mirror, reader) = mirrored(&window);
        let made = Cell::new(false);
        window.count(|counts| {
            counts.changed(5);
            if !made.replace(true) {
                let version = window.readable().version(5).expect("nothing in progress");
                window.count(|counts| counts.begun(5));
                window.count(|counts| counts.ended(5));
                assert!(!reader.counts().holds(&version));
            }
        });
        let version = window.readable().version(5).expect("nothing in progress");
        assert!(reader.counts().holds(&version), "both have the same changes in the end");
    }

    #[test]
    fn mirrors_made_beside_changes_equal_the_window() {
        let (window, stop) = (Window::create().expect("a window"), AtomicBool::new(false));
        let changes = || {
            while !stop.load(Ordering::Relaxed) {
                window.count(|counts| (0..64).for_each(|slot| counts.begun(slot)));
                (0..64).for_each(|slot| window.count(|counts| counts.ended(slot)));
            }
        };
        let mirrors = std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(changes)));
            let mirrors: Vec<_> = (0..16).map(|_| mirrored(&window)).collect();
            stop.store(true, Ordering::Relaxed);
            mirrors
        });
        for slot in 0..64 {
            let version = window.readable().version(slot).expect("nothing in progress");
            assert!(mirrors.iter().all(|(_, reader)| reader.counts().holds(&version)), "{slot}");
        }
    }
}
