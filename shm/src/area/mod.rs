//! Allocator of bulk memory, which is for file data, in the region of one side of a link.
//!
//! The client of a link allocates the bulk memory of both regions, so the server needs no accounting and
//! frees require no message (docs/formats/link.md, "Region").

mod pages;
mod span;

pub use span::Span;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pages::Pages;

/// Alignment and granularity of spans, in bytes: a cache line. Spans of more than half a page occupy whole
/// pages.
pub const SPAN_ALIGN: u64 = pages::GRAIN_BYTES;

/// An allocator of spans in a range; clones share it. Usable from any thread.
///
/// Its state, about 8 bytes for each page of the range, is allocated at construction. Allocating a span takes
/// a lock for well under a microsecond, and longer for a fragmented range: it inspects at most each group of
/// 64 pages, and 16 partly used pages.
#[derive(Debug, Clone)]
pub struct Area(Arc<AreaInner>);

#[derive(Debug)]
struct AreaInner {
    pages: Mutex<Pages>,
    /// Offset of the first page.
    start: u64,
}

impl Area {
    /// Returns an allocator of the whole pages in a range of offsets; the spans' offsets are in that range.
    pub fn new(range: Range<u64>) -> Area {
        let start = range.start.checked_next_multiple_of(pages::PAGE_BYTES).unwrap_or(u64::MAX);
        let count = range.end.saturating_sub(start) / pages::PAGE_BYTES;
        let pages = Pages::new(usize::try_from(count).unwrap_or(usize::MAX));
        Area(Arc::new(AreaInner { pages: Mutex::new(pages), start }))
    }

    /// Allocates a span of `len` bytes. Returns `None` if no contiguous free range is large enough.
    pub fn take(&self, len: u64) -> Option<Span> {
        let at = self.0.lock().take(len)?;
        Some(Span::new(self.clone(), self.0.start + at, len))
    }

    /// Returns the number of free bytes, possibly fragmented.
    pub fn free_bytes(&self) -> u64 {
        self.0.lock().free_bytes()
    }

    /// Returns the maximum length of a span, in bytes, if nothing else is allocated.
    pub fn capacity_bytes(&self) -> u64 {
        self.0.lock().capacity_bytes()
    }

    fn give_back(&self, offset: u64, len: u64) {
        self.0.lock().give_back(offset - self.0.start, len);
    }
}

impl AreaInner {
    fn lock(&self) -> MutexGuard<'_, Pages> {
        // A panic inside is a bug that tests would reveal; the bitmaps stay usable, and at worst some memory
        // is not allocated any more.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
