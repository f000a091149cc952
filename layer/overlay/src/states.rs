//! Block states: the source of each block.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::{Error, Result};
use tombolo_mem::Region;

use crate::kept::StateMemory;
use crate::layout::{BLOCK_BYTES, PAGE_BYTES, SEGMENT_BLOCKS};

/// State of a block. The numbers are those stored in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// In the base, or zeroes beyond its end.
    Base = 0,
    /// In the redo log.
    Log = 1,
    /// Zeroes.
    Zero = 2,
}

impl BlockState {
    fn of_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Base,
            1 => Self::Log,
            // 3 is refused when pages are read.
            _ => Self::Zero,
        }
    }

    /// Returns a word in which all blocks have this state.
    fn in_all(self) -> u64 {
        self as u64 * (u64::MAX / 3)
    }
}

/// Number of blocks with states in one word.
const WORD_BLOCKS: u64 = 32;
const PAGE_WORDS: usize = PAGE_BYTES as usize / 8;

/// The states of a segment.
struct Page {
    memory: Region,
    /// Offset of the page in `memory`.
    start: usize,
    /// `true` if changed since the last flush took the page.
    is_dirty: AtomicBool,
}

impl Page {
    /// Returns the states of 32 blocks; `index` is less than [`PAGE_WORDS`].
    fn word(&self, index: usize) -> u64 {
        self.memory.load_u64(self.start + index * 8, Ordering::Acquire).unwrap_or_default()
    }

    fn bytes(&self) -> Vec<u8> {
        (0..PAGE_WORDS).flat_map(|word| self.word(word).to_le_bytes()).collect()
    }

    /// Replaces the bits of `mask` in a word by those of `bits`. Returns `true` if any has changed.
    fn replace(&self, index: usize, mask: u64, bits: u64) -> bool {
        let before = self.memory.replace_bits(self.start + index * 8, mask, bits, Ordering::AcqRel);
        before.is_ok_and(|before| before & mask != bits & mask)
    }
}

/// The states of all blocks. Segments that were never written take no memory. The caller must not change one
/// block's state concurrently: the last change would win, whichever data were stored last.
pub(crate) struct States {
    pages: Vec<OnceLock<Box<Page>>>,
    blocks: u64,
    kept: Option<StateMemory>,
    /// `true` if a page is dirty; may also be `true` if none is.
    is_dirty: AtomicBool,
}

impl States {
    /// Creates states with all blocks in the base. `kept` is memory for the states that outlives the process.
    pub(crate) fn new(size_bytes: u64, kept: Option<StateMemory>) -> Self {
        let blocks = size_bytes.div_ceil(BLOCK_BYTES);
        let pages = (0..blocks.div_ceil(SEGMENT_BLOCKS)).map(|_| OnceLock::new()).collect();
        Self { pages, blocks, kept, is_dirty: AtomicBool::new(false) }
    }

    pub(crate) fn segments(&self) -> u64 {
        self.pages.len() as u64
    }

    fn page(&self, segment: u64) -> Option<&Page> {
        self.pages.get(segment as usize).and_then(OnceLock::get).map(|page| &**page)
    }

    fn page_to_change(&self, segment: u64) -> Option<&Page> {
        let new = || {
            let (memory, start) = match &self.kept {
                None => (Region::heap(PAGE_BYTES as usize), 0),
                Some(kept) => {
                    kept.uses(segment);
                    (kept.memory.clone(), kept.page_at(segment, self.segments()))
                }
            };
            Box::new(Page { memory, start, is_dirty: AtomicBool::new(false) })
        };
        self.pages.get(segment as usize).map(|page| &**page.get_or_init(new))
    }

    /// Adopts the states that an earlier process has left in the memory given to [`States::new`]. All their
    /// pages become dirty, because it is unknown which of them the earlier process has written.
    pub(crate) fn adopt_retained(&self) {
        let is_used = |segment: &u64| self.kept.as_ref().is_some_and(|kept| kept.is_used(*segment));
        for page in (0..self.segments()).filter(is_used).filter_map(|it| self.page_to_change(it)) {
            page.is_dirty.store(true, Ordering::Release);
            self.is_dirty.store(true, Ordering::Release);
        }
    }

    /// Loads a page as read from the redo log. Fails if it contains an invalid state.
    pub(crate) fn load(&self, segment: u64, bytes: &[u8]) -> Result<()> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let Some(page) = self.page_to_change(segment) else { return Ok(()) };
        for (word, bytes) in bytes.as_chunks().0.iter().take(PAGE_WORDS).enumerate() {
            let value = u64::from_le_bytes(*bytes);
            if value & value >> 1 & (u64::MAX / 3) != 0 {
                return Err(Error::io("the overlay is damaged: invalid block state"));
            }
            page.replace(word, u64::MAX, value);
        }
        Ok(())
    }

    /// Returns the checksum of a seal: of each non-zero page, preceded by its segment number.
    pub(crate) fn sum(&self) -> u32 {
        let pages = (0..self.segments()).filter_map(|segment| Some((segment, self.page(segment)?.bytes())));
        pages.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).fold(0, |sum, (segment, bytes)| {
            crc32c::crc32c_append(crc32c::crc32c_append(sum, &segment.to_le_bytes()), &bytes)
        })
    }

    /// Returns the state of a block, and the end of the blocks from it on with the same state, at most `end`.
    pub(crate) fn run(&self, first: u64, end: u64) -> (BlockState, u64) {
        let state = self.at(first);
        let mut block = first + 1;
        while block < end {
            let is_word = block.is_multiple_of(WORD_BLOCKS) && self.word(block) == state.in_all();
            match is_word {
                true => block += WORD_BLOCKS,
                false if self.at(block) == state => block += 1,
                false => return (state, block),
            }
        }
        (state, end)
    }

    fn word(&self, block: u64) -> u64 {
        let word = (block % SEGMENT_BLOCKS / WORD_BLOCKS) as usize;
        self.page(block / SEGMENT_BLOCKS).map_or(0, |page| page.word(word))
    }

    fn at(&self, block: u64) -> BlockState {
        BlockState::of_bits(self.word(block) >> (block % WORD_BLOCKS * 2))
    }

    /// Sets the state of blocks, whose data must be stored already.
    pub(crate) fn set(&self, blocks: std::ops::Range<u64>, state: BlockState) {
        let mut block = blocks.start;
        let end = blocks.end.min(self.blocks);
        while block < end {
            let word_end = (block / WORD_BLOCKS + 1) * WORD_BLOCKS;
            let count = word_end.min(end) - block;
            let (shift, word) = (block % WORD_BLOCKS * 2, (block % SEGMENT_BLOCKS / WORD_BLOCKS) as usize);
            let mask = (u64::MAX >> (64 - count * 2)) << shift;
            if let Some(page) = self.page_to_change(block / SEGMENT_BLOCKS)
                && page.replace(word, mask, state.in_all())
            {
                page.is_dirty.store(true, Ordering::Release);
                self.is_dirty.store(true, Ordering::Release);
            }
            block += count;
        }
    }

    /// Returns `true` if any page may be dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// Takes the dirty pages and marks them as clean. Returns the segment and contents of each.
    pub(crate) fn take_dirty(&self) -> Vec<(u64, Vec<u8>)> {
        if !self.is_dirty.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let taken = |segment: u64| {
            let page = self.page(segment)?;
            // The flag is cleared before the words are read: later changes make the page dirty again.
            page.is_dirty.swap(false, Ordering::AcqRel).then(|| (segment, page.bytes()))
        };
        (0..self.segments()).filter_map(taken).collect()
    }

    /// Marks pages as dirty again that could not be written.
    pub(crate) fn mark_dirty(&self, pages: &[(u64, Vec<u8>)]) {
        for page in pages.iter().filter_map(|(segment, _)| self.page(*segment)) {
            page.is_dirty.store(true, Ordering::Release);
        }
        if !pages.is_empty() {
            self.is_dirty.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * SEGMENT_BLOCKS * BLOCK_BYTES;

    #[test]
    fn block_states_and_runs_match_model() {
        let states = States::new(SIZE, None);
        let mut model = vec![BlockState::Base; (SIZE / BLOCK_BYTES) as usize];
        for _ in 0..300 {
            let start = fastrand::usize(0..model.len());
            let len = if fastrand::bool() { fastrand::usize(1..5) } else { fastrand::usize(1..40_000) };
            let end = model.len().min(start + len);
            let state = fastrand::choice([BlockState::Base, BlockState::Log, BlockState::Zero]).expect("one");
            states.set(start as u64..end as u64, state);
            model[start..end].fill(state);
            let first = fastrand::usize(0..model.len());
            let limit = fastrand::usize(first + 1..=model.len());
            let run = model[first..limit].iter().take_while(|state| **state == model[first]).count();
            assert_eq!(states.run(first as u64, limit as u64), (model[first], (first + run) as u64));
        }
        let again = States::new(SIZE, None);
        for (segment, bytes) in states.take_dirty() {
            again.load(segment, &bytes).expect("taken in");
        }
        assert!((0..model.len()).all(|block| again.at(block as u64) == model[block]));
    }

    #[test]
    fn dirty_state_page_is_written_until_it_succeeds() {
        let states = States::new(SIZE, None);
        assert!(!states.is_dirty() && states.take_dirty().is_empty());
        states.set(SEGMENT_BLOCKS..SEGMENT_BLOCKS + 7, BlockState::Log);
        states.set(SEGMENT_BLOCKS..SEGMENT_BLOCKS + 2, BlockState::Zero);
        let taken = states.take_dirty();
        assert_eq!(taken.iter().map(|(segment, _)| *segment).collect::<Vec<_>>(), [1]);
        states.set(SEGMENT_BLOCKS..SEGMENT_BLOCKS + 2, BlockState::Zero);
        assert!(!states.is_dirty(), "nothing has changed");
        states.mark_dirty(&taken);
        assert_eq!(states.take_dirty(), taken);
    }

    #[test]
    fn a_state_that_there_is_not_is_refused() {
        let mut bytes = vec![0; PAGE_BYTES as usize];
        bytes[9] = 0b1100;
        assert!(States::new(SIZE, None).load(1, &bytes).is_err());
    }
}
