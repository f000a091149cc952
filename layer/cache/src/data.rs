//! Data of one version of a file: cached parts, and fetches in progress.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{DIGESTED_BYTES, WeakAttr};
use tombolo_core::{Error, Result, lock};
use tombolo_host_runtime::promise::Promise;
use tombolo_mem::{Buffer, Source};

use crate::cache::Cache;
use crate::images::Advice;
use crate::packs::PackedSoFar;
use crate::read_ahead::Ahead;
use crate::sharing::{Borrowed, Extents};
use crate::store::DataFile;

/// Maximum length of one READ of the origin, which bounds a reader's wait for its first block. A longer range
/// is split at a multiple of [`DIGESTED_BYTES`], so that a site cache's digests cover whole parts.
const FETCH_BYTES_MAX: u64 = 1 << 20;

/// Cached data of one version of a file. A change drops them, except a local write under *exclusive*, which
/// mostly drops only the written parts (`written`).
#[derive(Debug)]
pub(crate) struct Data {
    version: Mutex<WeakAttr>,
    pub file: DataFile,
    /// Parts lent by another cache of the host.
    pub borrowed: Mutex<Option<Arc<Borrowed>>>,
    /// `true` if the whole file was prefetched on a guess (`files_ahead`) and not read since.
    guessed: AtomicBool,
    /// `true` while the whole file is being fetched.
    fetches_rest: AtomicBool,
    /// `true` once other caches of the host may read the cached parts.
    pub is_lent: AtomicBool,
    /// `true` once local writes have changed the data.
    was_written: AtomicBool,
    /// Parts prefetched by an image's trace and not read since; and `true` once there were any.
    traced: Mutex<Extents>,
    has_traced: AtomicBool,
    /// Compression achieved so far, which shows if further compressed reads pay.
    pub packed: PackedSoFar,
    /// Sidecar's entry for the file, which may describe another version.
    pub advice: Mutex<Option<Arc<Advice>>>,
    /// Fetches in progress.
    fetches: Mutex<Vec<Arc<Fetch>>>,
}

/// A fetch in progress, awaited by the readers of its range.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub range: Range<u64>,
    outcome: Arc<Promise<Fetched>>,
    /// Error of a failed fetch, until one reader has taken it.
    pub error: Mutex<Option<Error>>,
}

/// Outcome of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// The data are cached.
    Cached,
    /// Not cached: the local disk is full or faulty, or data that were offered have not arrived.
    NotStored,
    /// Not cached, to be read anew: another version at the origin, a short reply, or a wrong sidecar.
    Changed,
    /// Fetched, but not cached: the data do not match the sidecar.
    DigestMismatch,
    /// Failed; the error is for the reader that started the fetch.
    Failed,
}

/// Parts that need not be fetched, because a layer above offers their data. Readers wait for each part until
/// it is stored ([`Expected::keep`]) or the `Expected` is dropped.
pub(crate) struct Expected {
    data: Arc<Data>,
    parts: Vec<Arc<Fetch>>,
}

/// Fetches that serve a read.
pub(crate) struct Wanted {
    /// Fetches in progress that overlap the range.
    pub theirs: Vec<Arc<Fetch>>,
    /// Fetches to be started and awaited.
    pub own: Vec<Arc<Fetch>>,
    /// Fetches to be started, but not awaited.
    pub ahead: Vec<Arc<Fetch>>,
}

impl Fetch {
    fn new(range: Range<u64>) -> Arc<Self> {
        Arc::new(Self { range, outcome: Arc::default(), error: Mutex::default() })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) async fn outcome(&self) -> Fetched {
        self.outcome.clone().kept().await
    }

    /// Returns the error of a failed fetch; after the first call, a general I/O error.
    pub(crate) fn error(&self) -> Error {
        let error = lock(&self.error).take();
        error.unwrap_or(Error::Io { source: None })
    }
}

impl Data {
    pub(crate) fn new(version: WeakAttr, file: DataFile, advice: Option<Arc<Advice>>) -> Self {
        Self {
            version: Mutex::new(version),
            file,
            borrowed: Mutex::default(),
            guessed: AtomicBool::new(false),
            fetches_rest: AtomicBool::new(false),
            is_lent: AtomicBool::new(false),
            was_written: AtomicBool::new(false),
            traced: Mutex::default(),
            has_traced: AtomicBool::new(false),
            packed: PackedSoFar::default(),
            advice: Mutex::new(advice),
            fetches: Mutex::default(),
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.file.heap_bytes()
    }

    /// Returns the version of the data, except of parts written since.
    pub(crate) fn version(&self) -> WeakAttr {
        *lock(&self.version)
    }

    /// Marks the data as written locally. Which parts belong to which version is not recorded, so the data
    /// are neither lent nor used after a restart.
    pub(crate) fn set_written(&self) {
        self.was_written.store(true, Ordering::Relaxed);
        self.file.set_for_this_life();
    }

    pub(crate) fn was_written(&self) -> bool {
        self.was_written.load(Ordering::Relaxed)
    }

    /// Assigns `version` to the data and drops `parts`. Changes nothing and returns `false` if a block of
    /// `parts` is being fetched.
    pub(crate) fn forget(&self, parts: &[Range<u64>], version: WeakAttr) -> bool {
        let fetches = lock(&self.fetches);
        if fetches.iter().any(|fetch| parts.iter().any(|part| self.file.share_blocks(part, &fetch.range))) {
            return false;
        }
        parts.iter().for_each(|part| self.file.forget(part));
        *lock(&self.version) = version;
        true
    }

    pub(crate) fn set_guessed(&self) {
        self.guessed.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the file was prefetched on a guess and not read since, and clears the flag.
    pub(crate) fn was_guessed(&self) -> bool {
        self.guessed.load(Ordering::Relaxed) && self.guessed.swap(false, Ordering::Relaxed)
    }

    /// Records a fetch that an image's trace has started, and returns the number of its bytes that are new.
    pub(crate) fn trace_brings(&self, fetch: &Fetch) -> u64 {
        self.has_traced.store(true, Ordering::Relaxed);
        lock(&self.traced).add(fetch.range.clone())
    }

    /// Records a read, and returns the number of its bytes that a trace has prefetched and that are read for
    /// the first time.
    pub(crate) fn uses_trace(&self, range: &Range<u64>) -> u64 {
        if self.has_traced.load(Ordering::Relaxed) { lock(&self.traced).remove(range) } else { 0 }
    }

    /// Marks the whole file as being fetched. Returns `false` if it was already.
    pub(crate) fn begin_rest(&self) -> bool {
        !self.fetches_rest.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn end_rest(&self) {
        self.fetches_rest.store(false, Ordering::Relaxed);
    }

    /// Returns the sidecar's entry if it applies to this version and nothing was written locally.
    pub(crate) fn advice(&self) -> Option<Arc<Advice>> {
        let advice = lock(&self.advice).clone()?;
        (advice.is_of(&self.version()) && !self.was_written()).then_some(advice)
    }

    /// Returns `true` if nothing is cached or being fetched.
    pub(crate) fn is_untouched(&self) -> bool {
        lock(&self.fetches).is_empty() && self.file.is_empty()
    }

    /// Stores blocks of `range` and `ahead` that the sidecar lists as zero, unless they are being fetched.
    pub(crate) fn take_zeros(&self, range: &Range<u64>, ahead: &Ahead) {
        self.fill_zeros(range, ahead, &lock(&self.fetches));
    }

    fn fill_zeros(&self, range: &Range<u64>, ahead: &Ahead, fetches: &[Arc<Fetch>]) {
        let Some(advice) = self.advice() else { return };
        let is_coming = |block: &Range<u64>| {
            fetches.iter().any(|fetch| fetch.range.start < block.end && block.start < fetch.range.end)
        };
        for range in [range.clone()].into_iter().chain(ahead.ranges()) {
            let filled = self.file.fill_zeros(&range, |block| advice.are_zeros(block) && !is_coming(block));
            match filled {
                Ok(bytes) => advice.filled(bytes),
                // The blocks are fetched instead.
                Err(error) => tracing::debug!(%error, "cannot store zero blocks"),
            }
        }
    }

    /// Returns `true` if the whole range is cached or borrowed.
    pub(crate) fn is_here(&self, range: &Range<u64>) -> bool {
        self.file.is_here(range) || (self.borrowed().is_some() && self.missing(range).is_empty())
    }

    /// Returns the parts of a range that are neither cached nor borrowed, in whole blocks.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let borrowed = self.borrowed();
        let is_lent = |block: &Range<u64>| borrowed.as_ref().is_some_and(|borrowed| borrowed.covers(block));
        self.file.missing(range.clone(), is_lent)
    }

    /// Returns `true` if all ranges of a prediction are cached or borrowed.
    pub(crate) fn has_ahead(&self, ahead: &Ahead) -> bool {
        ahead.ranges().all(|range| self.is_here(&range))
    }

    /// Registers fetches for the missing parts of `range`, and of `ahead` up to `ahead_bytes_max`. The caller
    /// must start `own` and `ahead` of the result, as other readers wait for them from now on.
    pub(crate) fn want(&self, range: &Range<u64>, ahead: &Ahead, ahead_bytes_max: u64) -> Wanted {
        let mut fetches = lock(&self.fetches);
        self.fill_zeros(range, ahead, &fetches);
        let overlaps = |fetch: &&Arc<Fetch>| fetch.range.start < range.end && range.start < fetch.range.end;
        let theirs = fetches.iter().filter(overlaps).cloned().collect();
        let mut all = u64::MAX;
        let own = self.begin(&mut fetches, range, &mut all);
        let mut left_bytes = ahead_bytes_max;
        let ranges = ahead.ranges();
        let ahead = ranges.flat_map(|range| self.begin(&mut fetches, &range, &mut left_bytes)).collect();
        Wanted { theirs, own, ahead }
    }

    /// Registers fetches for the blocks of a range that are neither cached, borrowed nor being fetched.
    /// Subtracts their length from `left_bytes`, and stops before that would become negative.
    fn begin(
        &self,
        fetches: &mut Vec<Arc<Fetch>>,
        range: &Range<u64>,
        left_bytes: &mut u64,
    ) -> Vec<Arc<Fetch>> {
        let mut begun = Vec::new();
        for missing in self.missing(range) {
            let mut start = missing.start;
            while start < missing.end {
                let next = fetches
                    .iter()
                    .filter(|fetch| fetch.range.end > start)
                    .min_by_key(|fetch| fetch.range.start);
                let end = match next {
                    Some(fetch) if fetch.range.start <= start => {
                        start = fetch.range.end;
                        continue;
                    }
                    Some(fetch) => fetch.range.start.min(missing.end),
                    None => missing.end,
                };
                let most = (start + FETCH_BYTES_MAX) / DIGESTED_BYTES * DIGESTED_BYTES;
                let fetch = Fetch::new(start..end.min(most));
                start = fetch.range.end;
                match left_bytes.checked_sub(fetch.range.end - fetch.range.start) {
                    Some(left) => *left_bytes = left,
                    None => return begun,
                }
                fetches.push(fetch.clone());
                begun.push(fetch);
            }
        }
        begun
    }

    /// Marks missing blocks that lie wholly within a range as being fetched, for a caller that has the data.
    pub(crate) fn expect(self: &Arc<Self>, range: &Range<u64>) -> Expected {
        let mut all = u64::MAX;
        let parts = self.begin(&mut lock(&self.fetches), &self.file.whole_blocks(range), &mut all);
        Expected { data: self.clone(), parts }
    }

    /// Removes a fetch from the list, and wakes its waiters.
    pub(crate) fn end(&self, fetch: &Arc<Fetch>, outcome: Fetched) {
        lock(&self.fetches).retain(|other| !Arc::ptr_eq(other, fetch));
        fetch.outcome.keep(outcome);
    }
}

impl Expected {
    /// Stores the parts, from data that begin at `offset`.
    pub(crate) fn keep(mut self, cache: &Cache, offset: u64, from: &Source) -> Result<()> {
        while let Some(part) = self.parts.last() {
            let start = part.range.start;
            let len = part.range.end.min(self.data.version().size).saturating_sub(start) as usize;
            let (buffer, mut bytes) = (Buffer::new(len), from.clone());
            bytes.advance((start - offset) as usize);
            bytes.copy_to_sink(&buffer.sink(0..len));
            cache.write(&self.data, start, buffer)?;
            self.data.end(part, Fetched::Cached);
            self.parts.pop();
        }
        Ok(())
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| self.data.end(part, Fetched::NotStored));
    }
}
