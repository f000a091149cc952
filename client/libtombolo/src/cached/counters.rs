//! Counters of cache hits and requests.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts of how the queries of a [`CachedTree`](super::CachedTree) were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queries answered at once from the cache.
    pub from_memory: u64,
    /// All other queries, most of which needed the server.
    pub asked: u64,
    /// Requests sent for the queries in `asked`. Reading a file counts as one, as does listing a directory.
    /// If the server does not count all changes of the tree, walking a path also counts as one.
    pub requests: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    from_memory: [Line; LINES],
    asked: AtomicU64,
    requests: AtomicU64,
}

/// Number of counters, each in a cache line of its own, over which threads are spread so that they do not
/// contend.
const LINES: usize = 16;

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Counters {
    #[inline]
    pub fn answered(&self) {
        let mut line = LINE.get();
        if line == usize::MAX {
            line = choose_line();
        }
        if let Some(line) = self.from_memory.get(line % LINES) {
            line.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn asked(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    pub fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Counts {
        Counts {
            from_memory: self.from_memory.iter().map(|line| line.0.load(Ordering::Relaxed)).sum(),
            asked: self.asked.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }
}

#[cold]
fn choose_line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let line = NEXT.fetch_add(1, Ordering::Relaxed) % LINES;
    LINE.set(line);
    line
}
