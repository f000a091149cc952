//! Maps of zero blocks, as runs.

use std::ops::Range;

/// The zero blocks of a file, as runs in ascending order with other blocks between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZeroMap(Vec<Run>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    /// Number of zero blocks before this run.
    before: u64,
}

impl ZeroMap {
    /// Appends a run. Returns `false`, changing nothing, if it is empty or not behind the last run.
    #[must_use]
    pub fn add(&mut self, blocks: Range<u64>) -> bool {
        let before = self.count();
        match self.0.last_mut() {
            _ if blocks.is_empty() => false,
            Some(last) if blocks.start < last.end => false,
            Some(last) if blocks.start == last.end => {
                last.end = blocks.end;
                true
            }
            _ => {
                self.0.push(Run { start: blocks.start, end: blocks.end, before });
                true
            }
        }
    }

    /// Returns the number of zero blocks.
    pub fn count(&self) -> u64 {
        self.0.last().map_or(0, |last| last.before + (last.end - last.start))
    }

    /// Returns the memory allocated on the heap, in bytes, for caches that account for their memory.
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Run>()
    }

    /// Returns the runs.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|run| run.start..run.end)
    }

    /// Returns the parts of zero runs that are within these blocks.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|run| run.end <= blocks.start);
        let runs = self.0.get(first..).unwrap_or_default().iter();
        runs.take_while(move |run| run.start < blocks.end)
            .map(move |run| run.start.max(blocks.start)..run.end.min(blocks.end))
    }

    /// Returns the index of a block's digest in the table; `None` for a zero block.
    pub fn index_of(&self, block: u64) -> Option<u64> {
        let behind = self.0.partition_point(|run| run.start <= block);
        let Some(run) = behind.checked_sub(1).and_then(|at| self.0.get(at)) else { return Some(block) };
        (block >= run.end).then(|| block - run.before - (run.end - run.start))
    }
}
