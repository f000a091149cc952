use crate::error::OutOfBounds;
use crate::region::Region;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Four bytes of a region that are loaded in one access, in the host's byte order. Others may change them at
/// any time.
#[derive(Clone, Debug)]
pub struct Word {
    at: NonNull<AtomicU32>,
    /// Keeps the memory alive.
    region: Region,
}

// SAFETY: `at` is an address inside `region`, which is itself Send; all access to it is atomic.
unsafe impl Send for Word {}
// SAFETY: a shared word only returns values and an address, no reference to the bytes; all access to them is
// atomic.
unsafe impl Sync for Word {}

impl Word {
    /// Returns the word at `offset`. Fails outside of the region and at a misaligned address.
    pub fn new(region: &Region, offset: usize) -> Result<Word, OutOfBounds> {
        let at = region.aligned_span(offset, size_of::<u32>(), align_of::<AtomicU32>())?;
        let at = NonNull::new(at.cast()).ok_or(OutOfBounds { offset, len: 4, region_len: region.len() })?;
        Ok(Word { at, region: region.clone() })
    }

    /// Returns the value. `order` must be valid for loads.
    #[inline]
    pub fn load(&self, order: Ordering) -> u32 {
        self.atomic().load(order)
    }

    /// Returns the word's address, for a system call that reads the word. The address is valid while this
    /// word lives; others may write to the word, so the address must never become a reference.
    pub fn address(&self) -> *const u32 {
        self.at.as_ptr().cast_const().cast()
    }

    /// Returns `true` if the memory lost its file: see [`Region::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.region.is_poisoned()
    }

    #[inline]
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: `new` verified that `at` is inside the region and aligned, and the region is alive; an
        // atomic may be changed by others at any time.
        unsafe { self.at.as_ref() }
    }
}

/// A writable [`Word`].
#[derive(Clone, Debug)]
pub struct WordMut(Word);

impl WordMut {
    /// Returns a word as [`Word::new`] does; also fails on a read-only region.
    pub fn new(region: &Region, offset: usize) -> Result<WordMut, OutOfBounds> {
        region.writable(offset, size_of::<u32>())?;
        Word::new(region, offset).map(WordMut)
    }

    /// Sets the value. `order` must be valid for stores.
    #[inline]
    pub fn store(&self, value: u32, order: Ordering) {
        self.0.atomic().store(value, order);
    }

    /// Replaces the value `current` by `new` atomically, with sequentially consistent ordering. Returns
    /// `true` if the value was `current`.
    pub fn replace(&self, current: u32, new: u32) -> bool {
        self.0.atomic().compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Adds to the value atomically, wrapping.
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
