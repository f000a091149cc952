//! A counting allocator, for tests of code that must not allocate.
//!
//! A test program installs it; [`of_this_thread`], [`of_all_threads`] and [`live_bytes`] return its counters.
//! They count from the start of the program: use differences. In a program without it they return 0.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
//!
//! let before = tombolo_allocations::of_this_thread();
//! let boxed = std::hint::black_box(Box::new(1));
//! assert_eq!(tombolo_allocations::of_this_thread() - before, 1);
//! # drop(boxed);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The system's allocator, with counters.
#[derive(Debug)]
pub struct Counting;

static ALL: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of allocations by this thread.
pub fn of_this_thread() -> u64 {
    HERE.get()
}

/// Returns the number of allocations by all threads.
pub fn of_all_threads() -> u64 {
    ALL.load(Ordering::SeqCst)
}

/// Returns the number of allocated bytes.
pub fn live_bytes() -> usize {
    LIVE_BYTES.load(Ordering::Relaxed)
}

// SAFETY: every call is forwarded unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALL.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // A thread that is ending has no counter any more.
        let _ = HERE.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}
