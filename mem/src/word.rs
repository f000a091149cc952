use crate::error::OutOfBounds;
use crate::region::Region;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Four bytes of a region that are loaded by one access, in the host's byte order. Others may change them at
/// any time.
#[derive(Clone, Debug)]
pub struct Word {
    at: NonNull<AtomicU32>,
    /// Keeps the memory alive.
    region: Region,
}

// SAFETY: an address inside of `region`, which is Send itself; all access is by atomics.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// The word at `offset`. Fails outside of the region and at an address that is not aligned.
    pub fn new(region: &Region, offset: usize) -> Result<Word, OutOfBounds> {
        let at = region.aligned_span(offset, size_of::<u32>(), align_of::<AtomicU32>())?;
        let at = NonNull::new(at.cast()).ok_or(OutOfBounds { offset, len: 4, region_len: region.len() })?;
        Ok(Word { at, region: region.clone() })
    }

    /// Its value. The ordering must be one that loads know.
    #[inline]
    pub fn load(&self, order: Ordering) -> u32 {
        self.atomic().load(order)
    }

    /// Its address, for a system call that reads it. Valid while this word lives; others may write there:
    /// never make a reference of it.
    pub fn address(&self) -> *const u32 {
        self.at.as_ptr().cast_const().cast()
    }

    /// Whether the memory lost its file: see [`Region::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.region.is_poisoned()
    }

    #[inline]
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: `new` found it inside the region and aligned, and the region is alive; an atomic may be
        // changed by others at any time.
        unsafe { self.at.as_ref() }
    }
}

/// A [`Word`] that we may write.
#[derive(Clone, Debug)]
pub struct WordMut(Word);

impl WordMut {
    /// As [`Word::new`]; fails on a read-only region too.
    pub fn new(region: &Region, offset: usize) -> Result<WordMut, OutOfBounds> {
        region.writable(offset, size_of::<u32>())?;
        Word::new(region, offset).map(WordMut)
    }

    /// Sets its value. The ordering must be one that stores know.
    #[inline]
    pub fn store(&self, value: u32, order: Ordering) {
        self.0.atomic().store(value, order);
    }

    /// Sets its value to `new` if it is `current`, in one step, ordered before and after everything else;
    /// says whether it was.
    pub fn replace(&self, current: u32, new: u32) -> bool {
        self.0.atomic().compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Adds to its value, which wraps.
    #[inline]
    pub fn add(&self, n: u32, order: Ordering) {
        self.0.atomic().fetch_add(n, order);
    }
}

impl std::ops::Deref for WordMut {
    type Target = Word;

    fn deref(&self) -> &Word {
        &self.0
    }
}
