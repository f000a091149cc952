//! Set of byte ranges: the data that a file of the local disk contains.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ends of disjoint ranges with gaps between them, by their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents(BTreeMap<u64, u64>);

/// Effect of a change on the stored rows of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// Starts of removed ranges.
    pub gone: Vec<u64>,
    /// Range added in place of the removed ones, if any.
    pub new: Option<Range<u64>>,
    /// Change of the number of bytes in the set.
    pub added: i64,
}

impl Extents {
    pub(crate) fn insert(&mut self, range: Range<u64>) -> Delta {
        let mut delta = Delta::default();
        if range.is_empty() {
            return delta;
        }
        let mut new = range.clone();
        let from = self.0.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let touched: Vec<_> = self.0.range(from..=range.end).map(|(start, end)| *start..*end).collect();
        for old in touched.into_iter().filter(|old| old.end >= range.start) {
            self.0.remove(&old.start);
            delta.added -= length(&old);
            delta.gone.push(old.start);
            new = new.start.min(old.start)..new.end.max(old.end);
        }
        self.0.insert(new.start, new.end);
        delta.added += length(&new);
        delta.new = Some(new);
        delta
    }

    /// Removes everything from `end` on.
    pub(crate) fn truncate(&mut self, end: u64) -> Delta {
        let mut delta = Delta::default();
        for (start, old_end) in self.0.split_off(&end) {
            delta.gone.push(start);
            delta.added -= length(&(start..old_end));
        }
        if let Some((start, last)) = self.0.iter_mut().next_back()
            && *last > end
        {
            delta.added -= length(&(end..*last));
            *last = end;
            delta.gone.push(*start);
            delta.new = Some(*start..end);
        }
        delta
    }

    /// Returns the parts of `range` in order, with `true` for those in the set.
    pub(crate) fn parts(&self, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let from = self.0.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        for (start, end) in self.0.range(from..range.end.max(from)) {
            let (start, end) = ((*start).max(at), (*end).min(range.end));
            if start >= end {
                continue;
            }
            if at < start {
                parts.push((at..start, false));
            }
            parts.push((start..end, true));
            at = end;
        }
        if at < range.end {
            parts.push((at..range.end, false));
        }
        parts
    }

    /// Returns the span from the first to the last byte of the set in `within`; an empty range if there is
    /// none.
    pub(crate) fn span(&self, within: Range<u64>) -> Range<u64> {
        let parts = self.parts(within.clone());
        let mut here = parts.iter().filter(|(_, is_here)| *is_here).map(|(part, _)| part);
        let Some(first) = here.next() else { return within.start..within.start };
        first.start..here.next_back().unwrap_or(first).end
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }
}

fn length(range: &Range<u64>) -> i64 {
    range.end.saturating_sub(range.start).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_set_equals_a_byte_set() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut extents, mut bytes, mut rows) = (Extents::default(), [false; 64], BTreeMap::new());
        for _ in 0..2000 {
            let (start, len) = (random.usize(0..60), random.usize(0..8));
            let end = (start + len).min(64);
            let delta = match random.u8(0..4) {
                0 => {
                    bytes[start..].fill(false);
                    extents.truncate(start as u64)
                }
                _ => {
                    bytes[start..end].fill(true);
                    extents.insert(start as u64..end as u64)
                }
            };
            for start in &delta.gone {
                rows.remove(start);
            }
            rows.extend(delta.new.map(|new| (new.start, new.end)));
            assert_eq!(rows, extents.0);
            assert_eq!(extents.bytes(), bytes.iter().filter(|here| **here).count() as u64);
            let (from, to) = (random.usize(0..32), random.usize(32..64));
            let mut seen = from;
            for (part, is_here) in extents.parts(from as u64..to as u64) {
                let part = part.start as usize..part.end as usize;
                assert_eq!(part.start, seen);
                assert!(!part.is_empty() && bytes[part.clone()].iter().all(|byte| *byte == is_here));
                seen = part.end;
            }
            assert_eq!(seen, to);
        }
    }
}
