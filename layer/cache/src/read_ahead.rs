//! Prediction of an opening's next reads: sequential, or at equal distances (strides).

use std::ops::Range;

/// Access pattern of a reader.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadAhead {
    /// Offset at which the next sequential read begins.
    next: u64,
    /// Start of the sequential run, and the bytes read in it.
    began: u64,
    read_bytes: u64,
    /// Number of bytes to fetch ahead of a read.
    window_bytes: u64,
    /// Start of the last read, its distance from the start of the read before, and the number of times that
    /// the distance has recurred without a break.
    last: u64,
    stride: u64,
    strides: u32,
}

/// Ranges predicted to be read: of equal length, at equal distances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    first: Range<u64>,
    stride: u64,
    count: u64,
    file_end: u64,
}

/// Criterion of sequential reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Gaps allowed: skipped parts are mostly read soon.
    Loose,
    /// Contiguous, except that a few reads may overtake each other, as a kernel's do.
    Strict,
}

/// Initial window of a sequential reader, in bytes. Each further read doubles it, up to the caller's maximum.
const WINDOW_BYTES_MIN: u64 = 256 << 10;

/// Maximum distance of a sequential read from the expected offset: kernels send read-ahead out of order.
const SLACK_BYTES: u64 = 1 << 20;

/// Maximum number of concurrent reads that overtake each other, under [`Order::Strict`].
const OVERTAKING: u64 = 8;

/// Maximum ratio of the length of a sequential run to the bytes read in it, under [`Order::Loose`].
const SPARSE: u64 = 4;

/// Maximum number of strides ahead of a reader.
const STRIDES_MAX: u32 = 64;

impl ReadAhead {
    /// Records a read of `range`, and adapts the window, up to `bytes_max`.
    pub(crate) fn reads(&mut self, range: &Range<u64>, order: Order, bytes_max: u64) {
        let len = range.end - range.start;
        let (slack_bytes, sparse) = match order {
            Order::Loose => (SLACK_BYTES, SPARSE),
            Order::Strict => (SLACK_BYTES.min(len.saturating_mul(OVERTAKING)), 1),
        };
        let near = self.next.saturating_sub(slack_bytes)..=self.next.saturating_add(slack_bytes);
        let (began, read_bytes) = (self.began.min(range.start), self.read_bytes + len);
        // The subtracted slack makes the first reads count as dense.
        let is_dense = (range.end - began).saturating_sub(slack_bytes) <= read_bytes.saturating_mul(sparse);
        let stride = range.start.saturating_sub(self.last);
        self.strides = if stride == self.stride && stride > len { self.strides + 1 } else { 0 };
        (self.last, self.stride) = (range.start, stride);
        if near.contains(&range.start) && is_dense {
            (self.began, self.read_bytes) = (began, read_bytes);
            self.next = self.next.max(range.end);
            self.window_bytes = self.window_bytes.saturating_mul(2).max(WINDOW_BYTES_MIN).min(bytes_max);
        } else {
            (self.began, self.read_bytes, self.next) = (range.start, len, range.end);
            let wanted = len << self.strides.min(STRIDES_MAX.ilog2());
            self.window_bytes = if self.strides > 0 { wanted.min(bytes_max) } else { 0 };
        }
    }

    /// Returns the ranges to fetch ahead of a read of `range`, which was recorded by [`ReadAhead::reads`].
    pub(crate) fn of(&self, range: &Range<u64>, file_end: u64) -> Ahead {
        let len = range.end - range.start;
        if self.strides > 0 && self.next == range.end {
            let first = range.start.saturating_add(self.stride);
            let count = self.window_bytes / len.max(1);
            return Ahead { first: first..first.saturating_add(len), stride: self.stride, count, file_end };
        }
        let first = range.end..range.end.saturating_add(self.window_bytes);
        Ahead { first, stride: 0, count: 1, file_end }
    }
}

impl Ahead {
    /// Prediction without ranges.
    pub(crate) const NONE: Self = Self { first: 0..0, stride: 0, count: 0, file_end: 0 };

    pub(crate) fn of_range(first: Range<u64>, file_end: u64) -> Self {
        Self { first, stride: 0, count: 1, file_end }
    }

    /// Returns the ranges, clipped to the file.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let ranges = (0..self.count).map_while(|index| {
            let by = self.stride.checked_mul(index)?;
            Some(self.first.start.checked_add(by)?..self.first.end.saturating_add(by))
        });
        ranges
            .take_while(|range| range.start < self.file_end)
            .map(|range| range.start..range.end.min(self.file_end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1 << 10;

    fn after(reads: impl IntoIterator<Item = Range<u64>>, bytes_max: u64) -> Vec<Range<u64>> {
        let mut ahead = ReadAhead::default();
        let mut last = 0..0;
        for range in reads {
            ahead.reads(&range, Order::Loose, bytes_max);
            last = range;
        }
        ahead.of(&last, 1 << 30).ranges().filter(|range| !range.is_empty()).collect()
    }

    #[test]
    fn sequential_read_ahead_grows_to_its_maximum() {
        let read = |count| (0..count).map(|n| n * 128 * KB..(n + 1) * 128 * KB);
        assert_eq!(after(read(1), 1 << 20).first(), Some(&(128 * KB..384 * KB)));
        assert_eq!(after(read(2), 1 << 20).first(), Some(&(256 * KB..768 * KB)));
        assert_eq!(after(read(9), 1 << 20).first(), Some(&(1152 * KB..2176 * KB)));
        assert!(after(read(9), 0).is_empty(), "if it may");
    }

    #[test]
    fn equal_distances_are_gone_on_with() {
        for distance in [100 * KB, 300 * KB, 5000 * KB] {
            let read = (10..60).map(|n| n * distance..n * distance + 4 * KB);
            let ahead = after(read, 16 << 20);
            assert!(ahead.len() >= 32, "{distance}: {ahead:?}");
            let expected = (60..).map(|n| n * distance..n * distance + 4 * KB);
            assert!(ahead.iter().cloned().eq(expected.take(ahead.len())), "{distance}: {ahead:?}");
        }
    }

    #[test]
    fn clustered_reads_are_not_strictly_sequential() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut ahead = ReadAhead::default();
        for at in (0..1000).map(|_| random.u64(0..256) * 4 * KB) {
            ahead.reads(&(at..at + 4 * KB), Order::Strict, 16 << 20);
            let wanted: u64 =
                ahead.of(&(at..at + 4 * KB), 1 << 30).ranges().map(|range| range.end - range.start).sum();
            assert!(wanted <= 512 * KB, "{wanted}");
        }
        let mut ahead = ReadAhead::default();
        for at in [0, 2, 1, 3, 4, 6, 5, 7, 8].map(|at| at * 128 * KB) {
            ahead.reads(&(at..at + 128 * KB), Order::Strict, 1 << 20);
        }
        let range = 1024 * KB..1152 * KB;
        assert_eq!(
            ahead.of(&range, 1 << 30).ranges().next(),
            Some(1152 * KB..2176 * KB),
            "some overtake others"
        );
    }

    #[test]
    fn a_reader_that_jumps_gets_nothing_ahead() {
        let mut random = fastrand::Rng::with_seed(3);
        let jumps = (0..50).map(|_| random.u64(0..1000) * 1000 * KB);
        assert!(after(jumps.map(|at| at..at + 4 * KB), 16 << 20).is_empty());
    }
}
