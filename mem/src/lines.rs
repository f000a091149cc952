use crate::error::OutOfBounds;
use crate::region::Region;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;
/// Words of eight bytes in a cache line.
pub const WORDS_PER_LINE: usize = 8;

/// Cache lines of a region, each as eight words that are loaded by atomics; a power of two of them.
///
/// Line and word numbers wrap around, so no access can leave the lines and none has to be checked. Values are
/// in the host's byte order. Others may change the words at any time.
#[derive(Clone, Debug)]
pub struct Lines {
    start: NonNull<[AtomicU64; WORDS_PER_LINE]>,
    mask: usize,
    /// Keeps the memory alive.
    region: Region,
}

// SAFETY: an address inside of `region`, which is Send itself; all access is by atomics.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// `count` lines from `offset` on. Fails if they do not lie inside the region, do not begin on a line, or
    /// are not a power of two.
    pub fn new(region: &Region, offset: usize, count: usize) -> Result<Lines, OutOfBounds> {
        let len = count.saturating_mul(LINE_BYTES);
        let at = region.aligned_span(offset, len, LINE_BYTES)?;
        match NonNull::new(at.cast()) {
            Some(start) if count.is_power_of_two() => {
                Ok(Lines { start, mask: count - 1, region: region.clone() })
            }
            _ => Err(OutOfBounds { offset, len, region_len: region.len() }),
        }
    }

    /// How many lines there are.
    pub fn count(&self) -> usize {
        self.mask + 1
    }

    /// Loads a word of a line in one access; both numbers wrap. The ordering must be one that loads know.
    #[inline(always)]
    pub fn load(&self, line: usize, word: usize, order: Ordering) -> u64 {
        self.word(line, word).load(order)
    }

    /// Whether the memory lost its file: see [`Region::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.region.is_poisoned()
    }

    /// The address of a line, for an instruction that watches it. The number wraps. Valid while these lines
    /// live; others may write there: never make a reference of it.
    #[inline]
    pub fn address(&self, line: usize) -> *const u8 {
        // SAFETY: the masked number is less than the count of lines that `new` found inside the region.
        unsafe { self.start.add(line & self.mask) }.as_ptr().cast()
    }

    /// Begins to fetch a line, which is going to be read. The number wraps. Changes nothing that can be seen.
    #[inline(always)]
    pub fn fetch(&self, line: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint; it reads nothing that could be seen, and faults at no address.
        unsafe {
            std::arch::asm!("prefetcht0 [{}]", in(reg) self.address(line), options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }

    #[inline(always)]
    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        // SAFETY: the masked number is less than the count of lines that `new` found inside the region.
        let line = unsafe { self.start.add(line & self.mask) };
        // SAFETY: aligned to a line, alive by `region`; an atomic may be changed by others at any time.
        let line = unsafe { line.as_ref() };
        &line[word % WORDS_PER_LINE]
    }
}

/// [`Lines`] that we may write.
#[derive(Clone, Debug)]
pub struct LinesMut(Lines);

impl LinesMut {
    /// As [`Lines::new`]; fails on a read-only region too.
    pub fn new(region: &Region, offset: usize, count: usize) -> Result<LinesMut, OutOfBounds> {
        region.writable(offset, count.saturating_mul(LINE_BYTES))?;
        Lines::new(region, offset, count).map(LinesMut)
    }

    /// The same lines, to be read.
    pub fn as_lines(&self) -> Lines {
        self.0.clone()
    }

    /// Stores a word of a line in one access; both numbers wrap. The ordering must be one that stores know.
    #[inline(always)]
    pub fn store(&self, line: usize, word: usize, value: u64, order: Ordering) {
        self.0.word(line, word).store(value, order);
    }

    /// Adds to a word of a line in one step; both numbers wrap, and so does the sum. What it was.
    #[inline(always)]
    pub fn add(&self, line: usize, word: usize, n: u64, order: Ordering) -> u64 {
        self.0.word(line, word).fetch_add(n, order)
    }

    /// Begins to take a line away from other processors, since it is going to be stored to. The number wraps.
    /// Changes nothing that can be seen.
    #[inline(always)]
    pub fn claim(&self, line: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint; it changes nothing that could be seen, and faults at no address. Processors without
        // it do nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) self.address(line), options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }
}

impl std::ops::Deref for LinesMut {
    type Target = Lines;

    fn deref(&self) -> &Lines {
        &self.0
    }
}
