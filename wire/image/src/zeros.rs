//! Which blocks of a file are zeroes: runs of them.

use std::ops::Range;

/// Blocks that are zeroes, as runs in ascending order with others between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZeroMap(Vec<Run>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    /// How many blocks of the runs before it.
    before: u64,
}

impl ZeroMap {
    /// These blocks are zeroes too. False, and nothing is changed, if they do not lie behind all others.
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

    /// How many blocks there are.
    pub fn count(&self) -> u64 {
        self.0.last().map_or(0, |last| last.before + (last.end - last.start))
    }

    /// How much memory it takes beside itself, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Run>()
    }

    /// The runs.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|run| run.start..run.end)
    }

    /// What of these blocks are zeroes.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|run| run.end <= blocks.start);
        let runs = self.0.get(first..).unwrap_or_default().iter();
        runs.take_while(move |run| run.start < blocks.end)
            .map(move |run| run.start.max(blocks.start)..run.end.min(blocks.end))
    }

    /// Which digest of a table is that of this block. `None` if the block is one of these.
    pub fn index_of(&self, block: u64) -> Option<u64> {
        let behind = self.0.partition_point(|run| run.start <= block);
        let Some(run) = behind.checked_sub(1).and_then(|at| self.0.get(at)) else { return Some(block) };
        (block >= run.end).then(|| block - run.before - (run.end - run.start))
    }
}
