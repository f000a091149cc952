//! Memory for bulk data, given out in spans of an end's bulk range.
//!
//! The client of a link gives out the bulk memory of both ends, so the server keeps no account of it and
//! nothing has to be said when a span is free again (docs/formats/link.md, "Region").

mod pages;
mod span;

pub use span::Span;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pages::Pages;

/// Spans begin on, and are rounded up to, so many bytes: a cache line. From half a page on they take whole
/// pages.
pub const SPAN_ALIGN: u64 = pages::GRAIN_BYTES;

/// Gives out spans of a range; a clone gives out the same ones. Any thread may take spans and give them back.
///
/// All its memory is allocated when it is made: some 8 bytes for each page of the range. Taking a span takes
/// a lock for well under a microsecond, and longer the more the range is split: at most one look at each 64
/// pages, and at some pages that are used in part.
#[derive(Debug, Clone)]
pub struct Area(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pages: Mutex<Pages>,
    /// Of the first page.
    start: u64,
}

impl Area {
    /// The whole pages in that range of offsets; spans have offsets in it.
    pub fn new(range: Range<u64>) -> Area {
        let start = range.start.checked_next_multiple_of(pages::PAGE_BYTES).unwrap_or(u64::MAX);
        let count = range.end.saturating_sub(start) / pages::PAGE_BYTES;
        let pages = Pages::new(usize::try_from(count).unwrap_or(usize::MAX));
        Area(Arc::new(Shared { pages: Mutex::new(pages), start }))
    }

    /// A span of `len` bytes that is free now, or none if there is no room for it in one piece now.
    pub fn take(&self, len: u64) -> Option<Span> {
        let at = self.0.lock().take(len)?;
        Some(Span::new(self.clone(), self.0.start + at, len))
    }

    /// How many bytes are not given out; they may lie in many pieces.
    pub fn free_bytes(&self) -> u64 {
        self.0.lock().free_bytes()
    }

    /// The longest span that can ever be had, in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.0.lock().capacity_bytes()
    }

    fn give_back(&self, offset: u64, len: u64) {
        self.0.lock().give_back(offset - self.0.start, len);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pages> {
        // A panic inside is a bug that tests would show; the bitmaps are changed by single stores, so what is
        // left is usable.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
