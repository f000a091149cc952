//! Sets of byte ranges of a file.

use std::ops::Range;

/// Sorted, disjoint and non-adjacent ranges.
#[derive(Debug, Default)]
pub(crate) struct Extents(Vec<Range<u64>>);

/// Maximum number of ranges per file; further ranges that touch none of them are ignored.
const EXTENTS_MAX: usize = 4096;

impl Extents {
    /// Adds a range, and returns the number of new bytes.
    pub(crate) fn add(&mut self, new: Range<u64>) -> u64 {
        let first = self.0.partition_point(|extent| extent.end < new.start);
        let count = self.0[first..].partition_point(|extent| extent.start <= new.end);
        let touched = &self.0[first..first + count];
        if new.is_empty() || (touched.is_empty() && self.0.len() >= EXTENTS_MAX) {
            return 0;
        }
        let before: u64 = touched.iter().map(|extent| extent.end - extent.start).sum();
        let start = touched.first().map_or(new.start, |extent| extent.start.min(new.start));
        let end = touched.last().map_or(new.end, |extent| extent.end.max(new.end));
        self.0.splice(first..first + count, std::iter::once(start..end));
        end - start - before
    }

    /// Removes a range, and returns the number of its bytes that were present. If too many ranges would
    /// remain, those bytes are removed too that follow it without a gap.
    pub(crate) fn remove(&mut self, old: &Range<u64>) -> u64 {
        let first = self.0.partition_point(|extent| extent.end <= old.start);
        let count = self.0[first..].partition_point(|extent| extent.start < old.end);
        let touched = &self.0[first..first + count];
        let (Some(head), Some(tail)) = (touched.first(), touched.last()) else { return 0 };
        if old.is_empty() {
            return 0;
        }
        let kept =
            [head.start..old.start, old.end..tail.end].into_iter().filter(|rest| rest.start < rest.end);
        let kept: Vec<_> = kept.take((EXTENTS_MAX + count).saturating_sub(self.0.len())).collect();
        let within = touched.iter().map(|extent| extent.end.min(old.end) - extent.start.max(old.start)).sum();
        self.0.splice(first..first + count, kept);
        within
    }

    /// Returns `true` if any byte of a range is present.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        let next = self.0.get(self.0.partition_point(|extent| extent.end <= range.start));
        next.is_some_and(|extent| extent.start < range.end)
    }

    pub(crate) fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Returns the end of the present or absent run of bytes at `at`, and `true` if the run is present.
    /// Returns `None` if nothing is present from `at` on.
    pub(super) fn from(&self, at: u64) -> Option<(u64, bool)> {
        let next = self.0.get(self.0.partition_point(|extent| extent.end <= at))?;
        Some(if next.start <= at { (next.end, true) } else { (next.start, false) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_what_was_added_to_them() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..300 {
            let (mut extents, mut bytes) = (Extents::default(), [false; 64]);
            for _ in 0..random.usize(1..30) {
                let start = random.usize(..64);
                let end = random.usize(start..=64);
                let there = bytes[start..end].iter().filter(|byte| **byte).count() as u64;
                let (range, is_removed) = (start as u64..end as u64, random.u8(..3) == 0);
                let new = (end - start) as u64 - there;
                assert!(
                    range.is_empty() || extents.overlaps(&range) == (there > 0),
                    "{range:?} of {extents:?}"
                );
                if is_removed {
                    assert_eq!(extents.remove(&range), there);
                } else {
                    assert_eq!(extents.add(range), new);
                }
                bytes[start..end].fill(!is_removed);
            }
            assert!(extents.0.windows(2).all(|two| two[0].end < two[1].start), "{extents:?}");
            for (at, byte) in bytes.iter().enumerate() {
                match extents.from(at as u64) {
                    Some((end, is_there)) => {
                        assert_eq!(is_there, *byte, "{at} of {extents:?}");
                        assert!(bytes[at..end as usize].iter().all(|other| other == byte), "{extents:?}");
                    }
                    None => assert!(!bytes[at..].contains(&true), "{at} of {extents:?}"),
                }
            }
        }
    }
}
