//! Translation of the guest's numbers to this process's: two words for each record, allocated on demand.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::area::{Number, Records};

/// Number of records whose words are allocated together.
const CHUNK: usize = 1024;

/// The guest's number and this process's; 0 for none.
#[derive(Debug, Default)]
struct Pair {
    guest: AtomicU64,
    local: AtomicU64,
}

type Chunk = Box<[Pair]>;

/// The mapping between the guest's and this process's numbers, of nodes or of openings. Any thread may read
/// it without a lock; changes are made under the mutex of the [`RecordTable`](super::table::RecordTable).
#[derive(Debug)]
pub(super) struct Numbers {
    records: Records,
    chunks: Box<[OnceLock<Chunk>]>,
}

impl Numbers {
    pub(super) fn new(records: Records) -> Self {
        let chunks = (records.max() as usize).div_ceil(CHUNK);
        Self { records, chunks: (0..chunks).map(|_| OnceLock::new()).collect() }
    }

    /// Returns this process's number for a guest's number; `None` if it is not mapped.
    #[inline]
    pub(super) fn local(&self, number: Number) -> Option<u64> {
        let index = number.index(self.records) as usize;
        let pair = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        if number.0 == 0 || pair.guest.load(Ordering::Acquire) != number.0 {
            return None;
        }
        let local = pair.local.load(Ordering::Acquire);
        // If the record was reused in between, `local` belongs to another number.
        (pair.guest.load(Ordering::Acquire) == number.0).then_some(local)
    }

    /// Maps a guest's number to this process's, `local`.
    pub(super) fn set(&self, number: Number, local: u64) {
        if let Some(pair) = self.pair(number) {
            pair.guest.store(0, Ordering::Release);
            pair.local.store(local, Ordering::Release);
            pair.guest.store(number.0, Ordering::Release);
        }
    }

    /// Unmaps a guest's number; returns this process's, or `None` if it was not mapped.
    pub(super) fn take(&self, number: Number) -> Option<u64> {
        let local = self.local(number)?;
        self.pair(number)?.guest.store(0, Ordering::Release);
        Some(local)
    }

    /// Unmaps all numbers.
    pub(super) fn clear(&self) {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flatten().for_each(|pair| pair.guest.store(0, Ordering::Release));
    }

    fn pair(&self, number: Number) -> Option<&Pair> {
        let index = number.index(self.records) as usize;
        let chunk = self.chunks.get(index / CHUNK)?;
        chunk.get_or_init(|| (0..CHUNK).map(|_| Pair::default()).collect()).get(index % CHUNK)
    }
}
