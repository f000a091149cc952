use crate::error::OutOfBounds;
use crate::region::Region;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a cache line, in bytes.
pub const LINE_BYTES: usize = 64;
/// Number of eight-byte words in a cache line.
pub const WORDS_PER_LINE: usize = 8;

/// Consecutive cache lines of a region; their number is a power of two. Each has eight words, which are
/// loaded atomically.
///
/// Line and word numbers wrap around, so no access can leave the lines and none needs a check. Values are in
/// the host's byte order. Others may change the words at any time.
#[derive(Clone, Debug)]
pub struct Lines {
    start: NonNull<[AtomicU64; WORDS_PER_LINE]>,
    mask: usize,
    /// Keeps the memory alive.
    region: Region,
}

// SAFETY: the pointer is an address inside `region`, which is itself Send; all access to it is atomic.
unsafe impl Send for Lines {}
// SAFETY: shared lines only return values and an address, no references to the bytes; all access to them is
// atomic.
unsafe impl Sync for Lines {}

impl Lines {
    /// Returns `count` lines from `offset` on. Fails if they are not inside the region or not aligned to a
    /// line, or if `count` is not a power of two.
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

    /// Returns the number of lines.
    pub fn count(&self) -> usize {
        self.mask + 1
    }

    /// Loads a word of a line in one access; both numbers wrap. `order` must be valid for loads.
    #[inline(always)]
    pub fn load(&self, line: usize, word: usize, order: Ordering) -> u64 {
        self.word(line, word).load(order)
    }

    /// Returns `true` if the memory lost its file: see [`Region::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.region.is_poisoned()
    }

    /// Returns the address of a line, for an instruction that monitors it. The number wraps. The address is
    /// valid while these lines live; others may write to the line, so the address must never become a
    /// reference.
    #[inline]
    pub fn address(&self, line: usize) -> *const u8 {
        // SAFETY: the masked number is less than the count of lines that `new` verified to be inside the
        // region.
        unsafe { self.start.add(line & self.mask) }.as_ptr().cast()
    }

    /// Prefetches a line for reading. The number wraps. This has no observable effect.
    #[inline(always)]
    pub fn fetch(&self, line: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint without observable effects, which faults at no address.
        unsafe {
            std::arch::asm!("prefetcht0 [{}]", in(reg) self.address(line), options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }

    #[inline(always)]
    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        // SAFETY: the masked number is less than the count of lines that `new` verified to be inside the
        // region.
        let line = unsafe { self.start.add(line & self.mask) };
        // SAFETY: the address is aligned to a line, and `region` keeps it alive; an atomic may be changed by
        // others at any time.
        let line = unsafe { line.as_ref() };
        &line[word % WORDS_PER_LINE]
    }
}

/// Writable [`Lines`].
#[derive(Clone, Debug)]
pub struct LinesMut(Lines);

impl LinesMut {
    /// Returns lines as [`Lines::new`] does; also fails on a read-only region.
    pub fn new(region: &Region, offset: usize, count: usize) -> Result<LinesMut, OutOfBounds> {
        region.writable(offset, count.saturating_mul(LINE_BYTES))?;
        Lines::new(region, offset, count).map(LinesMut)
    }

    /// Returns the same lines, restricted to reading.
    pub fn as_lines(&self) -> Lines {
        self.0.clone()
    }

    /// Stores a word of a line in one access; both numbers wrap. `order` must be valid for stores.
    #[inline(always)]
    pub fn store(&self, line: usize, word: usize, value: u64, order: Ordering) {
        self.0.word(line, word).store(value, order);
    }

    /// Adds to a word of a line atomically and returns the previous value; both numbers wrap, and so does the
    /// sum.
    #[inline(always)]
    pub fn add(&self, line: usize, word: usize, n: u64, order: Ordering) -> u64 {
        self.0.word(line, word).fetch_add(n, order)
    }

    /// Prefetches a line for writing, taking it from other processors. The number wraps. This has no
    /// observable effect.
    #[inline(always)]
    pub fn claim(&self, line: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instruction is a hint without observable effects, which faults at no address.
        // Processors that do not support it ignore it.
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
