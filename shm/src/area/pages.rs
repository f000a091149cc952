//! Which pages of a range, and which cache lines of the pages that are split, are given out.

/// A page, in bytes.
pub(super) const PAGE_BYTES: u64 = 4096;
/// What a split page is given out in: a cache line. A page has 64, as many as a word has bits.
pub(super) const GRAIN_BYTES: u64 = 64;
/// Spans of up to so many grains share pages.
const GRAINS_MAX: u64 = 32;
/// So many split pages are looked at for room before a whole page is split.
const SPLIT_LOOKS: usize = 16;

/// Offsets are bytes from the first page.
#[derive(Debug)]
pub(super) struct Pages {
    /// A bit per page that is whole and free; bits behind the last page are clear.
    free: Bits,
    /// A bit per page that is split and has a free grain.
    split: Bits,
    /// Of a split page: a bit per grain that is free.
    grains: Box<[u64]>,
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

    /// Takes back what `take` gave out for that length.
    pub(super) fn give_back(&mut self, at: u64, len: u64) {
        // Both were made from a page number.
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

/// What a span of some length takes.
#[derive(Clone, Copy)]
enum Size {
    Grains(u64),
    Pages(u64),
}

impl Size {
    /// At least one grain, so that no two spans begin at one place.
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

/// `count` bits, from the lowest up; 1 to 64.
fn low_bits(count: u64) -> u64 {
    u64::MAX >> (64 - count)
}

/// Where the first `count` ones in a row begin; 1 to 64.
fn run_in_word(word: u64, count: u64) -> Option<u64> {
    // A bit of `starts` stands where `have` ones in a row begin.
    let (mut starts, mut have) = (word, 1);
    while have < count {
        let more = have.min(count - have);
        starts &= starts >> more;
        have += more;
    }
    (starts != 0).then(|| u64::from(starts.trailing_zeros()))
}

/// A row of bits, searched a word at a time.
#[derive(Debug)]
struct Bits {
    words: Box<[u64]>,
    /// Words before this one have no ones.
    first: usize,
}

impl Bits {
    fn new(count: usize) -> Bits {
        let words = vec![0; count.div_ceil(64)].into_boxed_slice();
        Bits { first: words.len(), words }
    }

    /// Sets or clears `count` bits from `at` on, all inside.
    fn set_run(&mut self, at: usize, count: usize, value: bool) {
        let mut bit = at;
        let end = at + count;
        while bit < end {
            let in_word = (64 - bit % 64).min(end - bit);
            let mask = low_bits(in_word as u64) << (bit % 64);
            let word = &mut self.words[bit / 64];
            *word = if value { *word | mask } else { *word & !mask };
            bit += in_word;
        }
        if value && count > 0 {
            self.first = self.first.min(at / 64);
        }
        while self.words.get(self.first) == Some(&0) {
            self.first += 1;
        }
    }

    /// Numbers of the bits that are set, upwards.
    fn ones(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.words.iter().enumerate().skip(self.first);
        words.flat_map(|(index, &word)| {
            let next = move |rest: &u64| Some(rest & (rest - 1)).filter(|rest| *rest != 0);
            let rests = std::iter::successors(Some(word).filter(|word| *word != 0), next);
            rests.map(move |rest| index * 64 + rest.trailing_zeros() as usize)
        })
    }

    /// Where the first `count` ones in a row begin.
    fn find_run(&self, count: usize) -> Option<usize> {
        // Where the run that is being followed begins, and how long it is so far.
        let (mut start, mut have) = (0, 0);
        for (index, &word) in self.words.iter().enumerate().skip(self.first) {
            let mut bit = 0;
            while bit < 64 {
                let ones = (word >> bit).trailing_ones() as usize;
                if have == 0 {
                    start = index * 64 + bit;
                }
                have += ones;
                if have >= count {
                    return Some(start);
                }
                bit += ones;
                if bit < 64 {
                    have = 0;
                    bit += ((word >> bit).trailing_zeros() as usize).min(64 - bit);
                }
            }
        }
        None
    }
}
