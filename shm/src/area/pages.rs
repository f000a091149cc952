//! Allocation state of the pages of a range, and of the cache lines of split pages.

/// Size of a page, in bytes.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Size of a grain, the allocation unit of a split page: a cache line. A page has as many as a word has bits.
pub(super) const GRAIN_BYTES: u64 = 64;
/// Maximum number of grains of a span in a split page; a longer span occupies whole pages.
const GRAINS_MAX: u64 = 32;
/// Maximum number of split pages searched for free grains before another page is split: bounds the time.
const SPLIT_LOOKS: usize = 16;

/// Page and grain bitmaps. Offsets are in bytes from the first page.
#[derive(Debug)]
pub(super) struct Pages {
    /// Free whole pages, one bit each; bits beyond the last page are clear.
    free: Bits,
    /// Split pages with a free grain, one bit each.
    split: Bits,
    /// Free grains of each split page, one bit each.
    grains: Box<[u64]>,
    /// Number of free grains, including all those of free whole pages.
    free_grains: u64,
}

impl Pages {
    pub(super) fn new(count: usize) -> Pages {
        let mut free = Bits::new(count);
        free.set_run(0, count, true);
        let free_grains = count as u64 * u64::from(u64::BITS);
        Pages { free, split: Bits::new(count), grains: vec![0; count].into_boxed_slice(), free_grains }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.free_grains * GRAIN_BYTES
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.grains.len() as u64 * PAGE_BYTES
    }

    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let at = match Size::of(len) {
            Size::Grains(count) => self.take_grains(count),
            Size::Pages(count) => self.take_pages(usize::try_from(count).ok()?),
        }?;
        self.free_grains -= Size::of(len).grains();
        Some(at)
    }

    /// Frees a span that `take` returned for that length.
    pub(super) fn give_back(&mut self, at: u64, len: u64) {
        // The offset was computed from a page number.
        let page = (at / PAGE_BYTES) as usize;
        match Size::of(len) {
            Size::Grains(count) => self.give_grains_back(page, at % PAGE_BYTES / GRAIN_BYTES, count),
            Size::Pages(count) => self.free.set_run(page, count as usize, true),
        }
        self.free_grains += Size::of(len).grains();
    }

    fn take_pages(&mut self, count: usize) -> Option<u64> {
        let page = self.free.find_run(count)?;
        self.free.set_run(page, count, false);
        Some(page as u64 * PAGE_BYTES)
    }

    fn take_grains(&mut self, count: u64) -> Option<u64> {
        let split = self.split.ones().take(SPLIT_LOOKS);
        let found = split.filter_map(|page| Some((page, run_in_word(self.grains[page], count)?))).next();
        let (page, grain) = match found {
            Some(found) => found,
            None => (self.split_page()?, 0),
        };
        self.grains[page] &= !(low_bits(count) << grain);
        self.split.set_run(page, 1, self.grains[page] != 0);
        Some(page as u64 * PAGE_BYTES + grain * GRAIN_BYTES)
    }

    fn split_page(&mut self) -> Option<usize> {
        let page = self.free.find_run(1)?;
        self.free.set_run(page, 1, false);
        self.grains[page] = u64::MAX;
        Some(page)
    }

    fn give_grains_back(&mut self, page: usize, grain: u64, count: u64) {
        self.grains[page] |= low_bits(count) << grain;
        let whole = self.grains[page] == u64::MAX;
        self.split.set_run(page, 1, !whole);
        if whole {
            self.free.set_run(page, 1, true);
        }
    }
}

/// The space that a span occupies: grains of a split page, or whole pages.
#[derive(Clone, Copy)]
enum Size {
    Grains(u64),
    Pages(u64),
}

impl Size {
    /// Returns the space for a span of `len` bytes: at least one grain, so that no two spans have the same
    /// offset.
    fn of(len: u64) -> Size {
        let grains = len.div_ceil(GRAIN_BYTES).max(1);
        if grains <= GRAINS_MAX { Size::Grains(grains) } else { Size::Pages(len.div_ceil(PAGE_BYTES)) }
    }

    fn grains(self) -> u64 {
        match self {
            Size::Grains(count) => count,
            Size::Pages(count) => count * (PAGE_BYTES / GRAIN_BYTES),
        }
    }
}

/// Returns a word whose lowest `count` (1 to 64) bits are set.
fn low_bits(count: u64) -> u64 {
    u64::MAX >> (64 - count)
}

/// Returns the position of the first run of `count` (1 to 64) ones.
fn run_in_word(word: u64, count: u64) -> Option<u64> {
    // Invariant: bits of `starts` mark the beginnings of runs of `have` ones.
    let (mut starts, mut have) = (word, 1);
    while have < count {
        let more = have.min(count - have);
        starts &= starts >> more;
        have += more;
    }
    (starts != 0).then(|| u64::from(starts.trailing_zeros()))
}

/// A bitmap. Words without ones are skipped 64 at a time.
#[derive(Debug)]
struct Bits {
    words: Box<[u64]>,
    /// One bit for each word that has ones.
    summary: Box<[u64]>,
}

impl Bits {
    fn new(count: usize) -> Bits {
        let words = vec![0; count.div_ceil(64)].into_boxed_slice();
        Bits { summary: vec![0; words.len().div_ceil(64)].into_boxed_slice(), words }
    }

    /// Sets or clears `count` bits from `at` on, which must be in range.
    fn set_run(&mut self, at: usize, count: usize, value: bool) {
        let mut bit = at;
        let end = at + count;
        while bit < end {
            let (index, in_word) = (bit / 64, (64 - bit % 64).min(end - bit));
            set(&mut self.words[index], low_bits(in_word as u64) << (bit % 64), value);
            set(&mut self.summary[index / 64], 1 << (index % 64), self.words[index] != 0);
            bit += in_word;
        }
    }

    /// Returns the indices of the set bits, ascending.
    fn ones(&self) -> impl Iterator<Item = usize> + '_ {
        self.used_words().flat_map(|index| ones_of(self.words[index]).map(move |bit| index * 64 + bit))
    }

    /// Returns the position of the first run of `count` ones.
    fn find_run(&self, count: usize) -> Option<usize> {
        // Number of ones immediately before the word `expected`.
        let (mut before, mut expected) = (0, 0);
        for index in self.used_words() {
            let word = self.words[index];
            if index != expected {
                before = 0;
            }
            if before + word.trailing_ones() as usize >= count {
                return Some(index * 64 - before);
            }
            if count <= 64
                && let Some(bit) = run_in_word(word, count as u64)
            {
                return Some(index * 64 + bit as usize);
            }
            before = if word == u64::MAX { before + 64 } else { word.leading_ones() as usize };
            expected = index + 1;
        }
        None
    }

    /// Returns the indices of the words that have ones, ascending.
    fn used_words(&self) -> impl Iterator<Item = usize> + '_ {
        let summary = self.summary.iter().enumerate();
        summary.flat_map(|(index, &word)| ones_of(word).map(move |bit| index * 64 + bit))
    }
}

fn set(word: &mut u64, mask: u64, value: bool) {
    *word = if value { *word | mask } else { *word & !mask };
}

/// Returns the indices of the set bits of a word, ascending.
fn ones_of(word: u64) -> impl Iterator<Item = usize> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_free_run_is_found_at_any_position(
            runs in proptest::collection::vec((0usize..700, 1usize..200), 0..8),
            count in 1usize..200,
        ) {
            let mut bits = Bits::new(1000);
            let mut plain = [false; 1000];
            for (at, len) in runs {
                bits.set_run(at, len, true);
                plain[at..at + len].fill(true);
                bits.set_run(at / 2, len / 3, false);
                plain[at / 2..at / 2 + len / 3].fill(false);
            }
            let first = plain.windows(count).position(|window| window.iter().all(|bit| *bit));
            prop_assert_eq!(bits.find_run(count), first);
            let ones: Vec<usize> = (0..1000).filter(|&bit| plain[bit]).collect();
            prop_assert_eq!(bits.ones().collect::<Vec<_>>(), ones);
        }
    }
}
