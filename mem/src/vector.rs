use crate::copy;
use crate::error::OutOfBounds;
use crate::region::Region;
use smallvec::SmallVec;

/// Maximum number of segments that need no allocation.
pub const INLINE_SEGMENTS: usize = 8;

/// The address and length of one span, to be passed to a system call. Valid while the sink or source that
/// returned it lives.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// First byte. Others may write to it, so it must never become a reference.
    pub ptr: *mut u8,
    /// Length in bytes; not zero.
    pub len: usize,
}

/// A list of spans with the regions that keep them alive: the common part of [`Sink`](crate::Sink) and
/// [`Source`](crate::Source).
#[derive(Clone, Default)]
pub(crate) struct Vector {
    segments: SmallVec<[Segment; INLINE_SEGMENTS]>,
    regions: SmallVec<[Region; 1]>,
    /// Sum of the segments' lengths; at most `isize::MAX`.
    len: usize,
}

// SAFETY: the segments are addresses inside `regions`, which are themselves Send; their bytes are only copied
// by `copy`, which allows for concurrent access.
unsafe impl Send for Vector {}
// SAFETY: as above; a shared vector returns addresses and copies, no references to the bytes.
unsafe impl Sync for Vector {}

/// Maximum length of a vector: that of a system call or an allocation.
const LEN_MAX: usize = isize::MAX as usize;

impl Vector {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + Clone + '_ {
        self.segments.iter().copied()
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.regions.iter().any(Region::is_poisoned)
    }

    /// Returns region, offset and length of each segment; `None` unless all bytes ever added are in one
    /// region.
    pub(crate) fn within(
        &self,
    ) -> Option<(&Region, impl ExactSizeIterator<Item = (usize, usize)> + Clone + '_)> {
        // Every segment is in one of the regions.
        let [region] = &self.regions[..] else { return None };
        Some((region, self.segments.iter().map(|segment| (region.offset_of(segment.ptr), segment.len))))
    }

    pub(crate) fn push(&mut self, region: &Region, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        let ptr = region.span(offset, len)?;
        if len > LEN_MAX - self.len {
            return Err(OutOfBounds { offset, len, region_len: region.len() });
        }
        if len == 0 {
            return Ok(());
        }
        self.len += len;
        match self.segments.last_mut() {
            // A guest's pages are often adjacent, and one longer segment is cheaper in all later steps.
            Some(last) if last.ptr.wrapping_add(last.len) == ptr && region.holds(last.ptr) => last.len += len,
            _ => self.segments.push(Segment { ptr, len }),
        }
        self.add_region(region);
        Ok(())
    }

    pub(crate) fn append(&mut self, mut other: Vector) {
        other.truncate(LEN_MAX - self.len);
        self.len += other.len;
        // As in `push`: many small writes into one buffer are one segment.
        if let (Some(last), Some(first)) = (self.segments.last_mut(), other.segments.first())
            && last.ptr.wrapping_add(last.len) == first.ptr
            && other.regions.iter().any(|region| region.holds(last.ptr) && region.holds(first.ptr))
        {
            last.len += first.len;
            other.segments.remove(0);
        }
        self.segments.extend(other.segments);
        other.regions.iter().for_each(|region| self.add_region(region));
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        let (full, rest) = self.locate(len);
        if rest > 0 {
            if let Some(segment) = self.segments.get_mut(full) {
                segment.len = rest;
            }
            self.segments.truncate(full + 1);
        } else {
            self.segments.truncate(full);
        }
        self.len = len;
    }

    pub(crate) fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        let (full, rest) = self.locate(n);
        self.segments.drain(..full);
        if let Some(segment) = self.segments.first_mut() {
            *segment = segment.skip(rest);
        }
        self.len -= n;
    }

    pub(crate) fn split_off(&mut self, at: usize) -> Vector {
        let mut tail = self.clone();
        tail.advance(at);
        self.truncate(at);
        tail
    }

    /// Calls `each(address, length, bytes done before)` for each span of the `len` bytes from offset `at`,
    /// as far as the vector has them. Returns their total length.
    #[inline]
    pub(crate) fn walk(&self, at: usize, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) -> usize {
        let mut skip = at;
        let mut done = 0;
        for segment in &self.segments {
            if done == len {
                break;
            }
            if skip >= segment.len {
                skip -= segment.len;
                continue;
            }
            let n = (segment.len - skip).min(len - done);
            each(segment.ptr.wrapping_add(skip), n, done);
            done += n;
            skip = 0;
        }
        done
    }

    /// Copies `bytes` to offset `at`. Returns the number of bytes copied, less than `bytes.len()` at the
    /// vector's end.
    #[inline]
    pub(crate) fn write_at(&self, at: usize, bytes: &[u8]) -> usize {
        self.walk(at, bytes.len(), |to, n, done| {
            // SAFETY: `walk` yields spans inside the vector, which its regions keep alive, and splits `bytes`
            // by the same lengths.
            unsafe { copy::copy(bytes.as_ptr().wrapping_add(done), to, n) }
        })
    }

    /// Copies from offset `at` to `out`. Returns the number of bytes copied, less than `out.len()` at the
    /// vector's end.
    #[inline]
    pub(crate) fn read_at(&self, at: usize, out: &mut [u8]) -> usize {
        let len = out.len();
        let out = out.as_mut_ptr();
        self.walk(at, len, |from, n, done| {
            // SAFETY: `walk` yields spans inside the vector, which its regions keep alive, and splits `out`,
            // which is exclusive, by the same lengths.
            unsafe { copy::copy(from, out.wrapping_add(done), n) }
        })
    }

    pub(crate) fn zero(&self, at: usize, len: usize) -> usize {
        self.walk(at, len, |to, n, _| {
            // SAFETY: `walk` yields spans inside the vector, which its regions keep alive.
            unsafe { copy::zero(to, n) }
        })
    }

    /// Copies from this vector's beginning to the other's, up to the length of the shorter. Returns the
    /// number of bytes.
    pub(crate) fn copy_to(&self, other: &Vector) -> usize {
        let len = self.len.min(other.len);
        self.walk(0, len, |from, n, done| {
            other.walk(done, n, |to, m, offset| {
                // SAFETY: both walks yield spans inside their vectors, alive by their regions; the inner one
                // splits the outer span by the same lengths.
                unsafe { copy::copy(from.wrapping_add(offset), to, m) }
            });
        })
    }

    /// Returns the index of the segment that contains byte `at`, and the offset in the segment. If `at` is
    /// the vector's length, its maximum, returns the number of segments and 0.
    fn locate(&self, at: usize) -> (usize, usize) {
        let mut rest = at;
        for (index, segment) in self.segments.iter().enumerate() {
            if rest < segment.len {
                return (index, rest);
            }
            rest -= segment.len;
        }
        (self.segments.len(), 0)
    }

    fn add_region(&mut self, region: &Region) {
        if !self.regions.iter().any(|existing| existing.same(region)) {
            self.regions.push(region.clone());
        }
    }
}

impl Segment {
    /// Copies the first bytes to `out`, as many as exist and fit, and returns their number. Others may write
    /// to the bytes concurrently.
    ///
    /// # Safety
    /// The sink or source that returned the segment must be alive.
    pub unsafe fn read(&self, out: &mut [u8]) -> usize {
        let len = self.len.min(out.len());
        // SAFETY: the source is readable for the segment's length while its vector lives, guaranteed by the
        // caller, and `out` is writable for its own.
        unsafe { copy::copy(self.ptr, out.as_mut_ptr(), len) };
        len
    }

    fn skip(self, n: usize) -> Segment {
        Segment { ptr: self.ptr.wrapping_add(n), len: self.len - n }
    }
}

/// Implements the methods that sources and sinks have in common.
macro_rules! memory {
    ($Memory:ident) => {
        impl $Memory {
            /// Returns a value without bytes; [`push`](Self::push) adds some.
            pub fn new() -> Self {
                Self::default()
            }

            /// Returns the length, in bytes.
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// Returns `true` if there are no bytes.
            pub fn is_empty(&self) -> bool {
                self.0.len() == 0
            }

            /// Appends the other value's bytes, cut where the total would exceed `isize::MAX` bytes.
            pub fn append(&mut self, other: Self) {
                self.0.append(other.0);
            }

            /// Keeps the first `n` bytes, or all if there are fewer.
            pub fn truncate(&mut self, n: usize) {
                self.0.truncate(n);
            }

            /// Drops the first `n` bytes, or all if there are fewer.
            pub fn advance(&mut self, n: usize) {
                self.0.advance(n);
            }

            /// Keeps the bytes before `at` and returns the following ones, if any.
            pub fn split_off(&mut self, at: usize) -> Self {
                Self(self.0.split_off(at))
            }

            /// Returns the spans, for a system call. Valid as long as this value (or a clone) lives.
            pub fn segments(&self) -> impl ExactSizeIterator<Item = crate::vector::Segment> + Clone + '_ {
                self.0.segments()
            }

            /// Returns `true` if some of the memory lost its file: see [`Region::is_poisoned`].
            pub fn is_poisoned(&self) -> bool {
                self.0.is_poisoned()
            }
        }

        impl std::fmt::Debug for $Memory {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let segments = self.segments().len();
                write!(f, concat!(stringify!($Memory), "({} bytes in {} segments)"), self.len(), segments)
            }
        }
    };
}

pub(crate) use memory;
