//! The allocation map of a disk.

use super::Range;

/// Allocation status and contents of a part of a disk, as in NBD's `base:allocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// The blocks are allocated, and may contain data.
    Data,
    /// The blocks are allocated, and read as zeroes.
    Zero,
    /// The blocks are not allocated, and read as zeroes.
    Hole,
}

/// A part of a disk with one allocation status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length, in bytes; never 0.
    pub len_bytes: u64,
    /// Status of all blocks in the extent.
    pub allocation: Allocation,
}

/// The extents of a range in order, from its beginning on. Adjacent extents differ.
#[derive(Debug)]
pub struct Extents {
    range: Range,
    count_max: usize,
    covered_bytes: u64,
    extents: Vec<Extent>,
}

impl Extents {
    /// Returns an empty list for the extents of `range`, which accepts `count_max` of them, but at least one.
    pub fn new(range: Range, count_max: usize) -> Self {
        Self { range, count_max: count_max.max(1), covered_bytes: 0, extents: Vec::new() }
    }

    /// Appends an extent, cut at the end of the range, or merged with the last one if the status is the same.
    /// Returns `false` if the list is too full for it, and once the range is covered.
    pub fn push(&mut self, len_bytes: u64, allocation: Allocation) -> bool {
        let len_bytes = len_bytes.min(self.range.len_bytes - self.covered_bytes);
        if len_bytes == 0 {
            return self.covered_bytes < self.range.len_bytes;
        }
        let full = self.extents.len() == self.count_max;
        match self.extents.last_mut() {
            Some(last) if last.allocation == allocation => last.len_bytes += len_bytes,
            _ if full => return false,
            _ => self.extents.push(Extent { len_bytes, allocation }),
        }
        self.covered_bytes += len_bytes;
        self.covered_bytes < self.range.len_bytes
    }

    /// Returns the offset at which the next extent begins, in bytes from the disk's beginning.
    pub fn next_offset(&self) -> u64 {
        self.range.offset + self.covered_bytes
    }

    /// Returns the extents collected.
    pub fn as_slice(&self) -> &[Extent] {
        &self.extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_merge_and_respect_range_and_count() {
        let mut extents = Extents::new(Range { offset: 100, len_bytes: 50 }, 2);
        assert!(extents.push(10, Allocation::Data));
        assert!(extents.push(5, Allocation::Data));
        assert!(extents.push(5, Allocation::Hole));
        assert_eq!(extents.next_offset(), 120);
        assert!(!extents.push(5, Allocation::Zero), "there is room for two");
        assert!(!extents.push(500, Allocation::Hole), "the range is full");
        let lengths: Vec<u64> = extents.as_slice().iter().map(|extent| extent.len_bytes).collect();
        assert_eq!(lengths, [15, 35]);
    }
}
