//! Data of one version of a file: cached parts, fetches in progress, and the fetching itself.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{Attr, DIGESTED_BYTES, ReadDone, WeakAttr};
use tombolo_core::{Error, Result};
use tombolo_host_runtime::lock;
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::task;
use tombolo_mem::{Buffer, Sink, Source};

use crate::cache::Cache;
use crate::dedup::hashed;
use crate::images::Advice;
use crate::object::Object;
use crate::origin::OriginFile;
use crate::packs::{self, PackedSoFar};
use crate::read_ahead::Ahead;
use crate::sharing::{Borrowed, Extents};
use crate::store::DataFile;

/// Maximum length of one READ of the origin, which bounds a reader's wait for its first block. A longer range
/// is cut at a digest's boundary.
const FETCH_BYTES_MAX: u64 = 1 << 20;

/// Cached data of one version of a file. A change of the version drops them, so versions never mix.
#[derive(Debug)]
pub(crate) struct Data {
    version: Mutex<WeakAttr>,
    pub file: DataFile,
    /// Parts lent by another cache of the host.
    pub borrowed: Mutex<Option<Arc<Borrowed>>>,
    /// `true` if the data were prefetched on a guess and not read since.
    guessed: AtomicBool,
    /// `true` while the whole file is being fetched.
    fetches_rest: AtomicBool,
    /// `true` once other caches of the host may read the cached parts.
    pub is_lent: AtomicBool,
    /// `true` once local writes have changed the data.
    was_written: AtomicBool,
    /// Parts prefetched by a trace and not read since, and a flag that there were any.
    traced: Mutex<Extents>,
    has_traced: AtomicBool,
    /// Compression achieved so far, which shows if further compressed reads pay.
    pub packed: PackedSoFar,
    /// Sidecar's entry for the file, which may describe another version.
    advice: Mutex<Option<Arc<Advice>>>,
    /// Fetches in progress.
    fetches: Mutex<Vec<Arc<Fetch>>>,
}

/// A fetch in progress, awaited by the readers of its range.
#[derive(Debug)]
pub(crate) struct Fetch {
    range: Range<u64>,
    came: Arc<Promise<Came>>,
    error: Mutex<Option<Error>>,
}

/// Outcome of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The data are cached.
    Here,
    /// Fetched, but not cached: no space, or another error of the local disk.
    Unkept,
    /// Not cached, to be read anew: another version at the origin, a short reply, or a wrong sidecar.
    Changed,
    /// Fetched, but not cached: the data do not match the sidecar.
    Unlike,
    /// Failed; the reader that started the fetch has the error.
    Failed,
}

/// Parts that need not be fetched, because a layer above offers their data. Readers wait for them until they
/// are stored or this is dropped.
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
        Arc::new(Self { range, came: Arc::default(), error: Mutex::default() })
    }

    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) async fn came(&self) -> Came {
        self.came.clone().kept().await
    }

    /// Returns the error of a failed fetch, to the first caller only.
    pub(crate) fn error(&self) -> Error {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
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

    /// Returns the memory in use, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.file.heap_bytes()
    }

    /// Returns the version of the data, except of parts written since.
    pub(crate) fn version(&self) -> WeakAttr {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Assigns `version` to the data and drops `parts`. Changes nothing and returns `false` if one of them is
    /// being fetched.
    pub(crate) fn forget(&self, parts: &[Range<u64>], version: WeakAttr) -> bool {
        let fetches = self.fetches();
        if fetches.iter().any(|fetch| parts.iter().any(|part| self.file.share_blocks(part, &fetch.range))) {
            return false;
        }
        parts.iter().for_each(|part| self.file.forget(part));
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
        true
    }

    /// Marks the data as prefetched on a guess.
    pub(crate) fn set_guessed(&self) {
        self.guessed.store(true, Ordering::Relaxed);
    }

    /// Returns `true` on the first read after a prefetch on a guess.
    pub(crate) fn was_guessed(&self) -> bool {
        self.guessed.load(Ordering::Relaxed) && self.guessed.swap(false, Ordering::Relaxed)
    }

    /// Records a prefetch by a trace, and returns the number of new bytes.
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

    pub(crate) fn set_advice(&self, advice: &Arc<Advice>) {
        *self.advice.lock().unwrap_or_else(PoisonError::into_inner) = Some(advice.clone());
    }

    /// Returns the sidecar's entry if it applies to this version and nothing was written locally.
    pub(crate) fn advice(&self) -> Option<Arc<Advice>> {
        let advice = self.advice.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        (advice.is_of(&self.version()) && !self.was_written()).then_some(advice)
    }

    /// Returns `true` if nothing is cached or being fetched.
    pub(crate) fn is_untouched(&self) -> bool {
        self.fetches().is_empty() && self.file.is_empty()
    }

    /// Stores the blocks of `range` and `ahead` that the sidecar lists as zero.
    pub(crate) fn take_zeros(&self, range: &Range<u64>, ahead: &Ahead) {
        self.fill_zeros(range, ahead, &self.fetches());
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

    /// Returns `true` if the whole range is cached or lent.
    pub(crate) fn is_here(&self, range: &Range<u64>) -> bool {
        self.file.is_here(range) || (self.borrowed().is_some() && self.missing(range).is_empty())
    }

    /// Returns the parts of a range that are neither cached nor lent, in whole blocks.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let borrowed = self.borrowed();
        let is_lent = |block: &Range<u64>| borrowed.as_ref().is_some_and(|borrowed| borrowed.covers(block));
        self.file.missing(range.clone(), is_lent)
    }

    /// Returns `true` if all ranges of a prediction are cached or lent.
    pub(crate) fn has_ahead(&self, ahead: &Ahead) -> bool {
        ahead.ranges().all(|range| self.is_here(&range))
    }

    /// Registers fetches for what is missing of `range`, and of `ahead` up to `ahead_bytes_max`; the caller
    /// must start them.
    pub(crate) fn want(&self, range: &Range<u64>, ahead: &Ahead, ahead_bytes_max: u64) -> Wanted {
        let mut fetches = self.fetches();
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

    /// Registers fetches for blocks that are neither cached, lent nor being fetched, limited to `left_bytes`.
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
        let parts = self.begin(&mut self.fetches(), &self.file.whole_blocks(range), &mut all);
        Expected { data: self.clone(), parts }
    }

    /// Removes a fetch from the list, and wakes its waiters.
    pub(crate) fn end(&self, fetch: &Arc<Fetch>, came: Came) {
        self.fetches().retain(|other| !Arc::ptr_eq(other, fetch));
        fetch.came.keep(came);
    }

    fn fetches(&self) -> MutexGuard<'_, Vec<Arc<Fetch>>> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.data.end(part, Came::Here);
            self.parts.pop();
        }
        Ok(())
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| self.data.end(part, Came::Unkept));
    }
}

/// Starts fetches, combined into compressed reads where that pays.
pub(crate) fn start<'a>(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &Arc<OriginFile>,
    fetches: impl IntoIterator<Item = &'a Arc<Fetch>>,
) {
    let begun = fetches.into_iter().cloned();
    if !packs::are_worth_it(cache, data) {
        return begun.for_each(|fetch| start_one(cache, object, data, from, fetch));
    }
    packs::start(cache, object, data, from, begun);
}

pub(crate) fn start_one(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &Arc<OriginFile>,
    fetch: Arc<Fetch>,
) {
    let (cache, object, data, from) = (cache.clone(), object.clone(), data.clone(), from.clone());
    task::spawn(async move {
        // The guard ends the fetch on a panic too, because others wait for it.
        let ending = Ending { data: &data, fetch: &fetch };
        let came = match bring(&cache, &object, &data, &from, &fetch.range).await {
            Ok(came) => came,
            Err(error) => {
                *fetch.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Came::Failed
            }
        };
        ending.with(came);
    });
}

/// A guard that ends a fetch; on drop as failed, unless it has ended.
struct Ending<'a> {
    data: &'a Data,
    fetch: &'a Arc<Fetch>,
}

impl Ending<'_> {
    fn with(&self, came: Came) {
        self.data.end(self.fetch, came);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.with(Came::Failed);
    }
}

/// Caches a range: by a copy of equal blocks, from another cache of the host, a site cache, or the origin.
async fn bring(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &OriginFile,
    range: &Range<u64>,
) -> Result<Came> {
    copy_equal(cache, object, data, from, range).await;
    let Some(borrower) = cache.borrower.get() else {
        return fetch_missing(cache, object, data, from, range).await;
    };
    // Another fetch may have cached the range in the meantime.
    if !data.missing(range).is_empty() {
        let bytes = borrower.borrow(object, data, &from.cx.identity, range).await;
        cache.counters.borrowed(bytes);
    }
    fetch_missing(cache, object, data, from, range).await
}

/// Copies missing blocks of a range from cached blocks of other files with the same digests.
pub(crate) async fn copy_equal(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &OriginFile,
    range: &Range<u64>,
) {
    if !data.is_here(range) && data.advice().is_some_and(|advice| advice.has_digests()) {
        let (copier, into, range) = (cache.clone(), data.clone(), range.clone());
        let uid = object.state().attr.uid;
        let copied =
            cache.in_pool(&from.cx, move || copier.copy_duplicates(uid, &into, &range)).resolve().await;
        copied.unwrap_or_else(|error| cache.complain(&error));
    }
}

/// Reads the missing parts of a range from the site cache or the origin.
async fn fetch_missing(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &OriginFile,
    range: &Range<u64>,
) -> Result<Came> {
    for missing in data.missing(range) {
        let came = fetch(cache, object, data, from, &missing).await?;
        if came != Came::Here {
            return Ok(came);
        }
    }
    Ok(Came::Here)
}

/// Reads a range from the site cache or the origin, verifies its version, and stores it.
async fn fetch(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &OriginFile,
    range: &Range<u64>,
) -> Result<Came> {
    // Data damaged in transit match on the second attempt. Otherwise the sidecar is wrong.
    for _ in 0..2 {
        let came = fetch_once(cache, object, data, from, range).await?;
        if came != Came::Unlike {
            return Ok(came);
        }
    }
    cache.disbelieve(object, data);
    Ok(Came::Changed)
}

async fn fetch_once(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &OriginFile,
    range: &Range<u64>,
) -> Result<Came> {
    let end = range.end.min(data.version().size);
    let len = end.saturating_sub(range.start) as usize;
    let asked = Instant::now();
    let sent = cache.line.sent(len as u64, asked);
    let got = get(cache, object, data, from, &(range.start..end), asked).await;
    cache.line.came(sent, got.as_ref().map_or(0, |(_, read, _)| *read) as u64, Instant::now());
    let (buffer, read, attr) = got?;
    let parts = if read == len { vec![(range.start, buffer)] } else { Vec::new() };
    take_in(cache, object, data, from, (attr, asked), parts).await
}

/// Stores parts received with `attr` in answer to a request made at `asked`, if they are of this version.
/// `parts` is empty after a short read.
pub(crate) async fn take_in(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &OriginFile,
    (attr, asked): (Attr, Instant),
    parts: Vec<(u64, Buffer)>,
) -> Result<Came> {
    if !object.learn(&attr, asked, cache.options_of(object).contract) {
        return Err(Error::Stale);
    }
    let version = data.version();
    let is_in_parts = object.is_written_in_parts(data);
    if parts.is_empty() || (WeakAttr::from(&attr) != version && !is_in_parts) {
        return Ok(Came::Changed);
    }
    cache.mark_recent(object, data, &version);
    let (data, keeper) = (data.clone(), cache.clone());
    let keep = move || {
        parts.into_iter().try_fold(true, |is_like, (start, buffer)| {
            keep(&keeper, attr.uid, &data, start, buffer).map(|is_kept| is_like && is_kept)
        })
    };
    let kept = cache.in_pool(&from.cx, keep).resolve().await;
    object.weigh();
    cache.make_room();
    match kept {
        Ok(true) => Ok(Came::Here),
        Ok(false) => Ok(Came::Unlike),
        Err(error) => {
            cache.complain(&error);
            Ok(Came::Unkept)
        }
    }
}

/// Stores fetched data, and registers their digests for deduplication. Returns `false`, and stores nothing,
/// if the data do not match the sidecar.
fn keep(cache: &Cache, uid: u32, data: &Arc<Data>, start: u64, mut buffer: Buffer) -> Result<bool> {
    if let Some(advice) = data.advice() {
        let hashed = buffer.as_slice().map(|bytes| hashed(&advice, start, bytes)).unwrap_or_default();
        if !advice.fits(&hashed) {
            cache.counters.refused(buffer.len() as u64);
            advice.tell_unlike();
            return Ok(false);
        }
        cache.write(data, start, buffer)?;
        cache.dedup.add(uid, data, hashed);
    } else {
        cache.write(data, start, buffer)?;
    }
    Ok(true)
}

/// Returns the data of a range, their length, and attributes no older than the data: from the site cache if
/// the origin's digests verify its data, otherwise from the origin.
async fn get(
    cache: &Cache,
    object: &Object,
    data: &Data,
    from: &OriginFile,
    range: &Range<u64>,
    asked: Instant,
) -> Result<(Buffer, usize, Attr)> {
    if let Some(middle) = cache.middle.get()
        && let Some((buffer, attr)) = Box::pin(middle.bring(cache, object, data, from, range)).await
    {
        let len = buffer.len();
        return Ok((buffer, len, attr));
    }
    let len = range.end.saturating_sub(range.start) as usize;
    let buffer = Buffer::new(len);
    let read = read_all(from, range.start, buffer.sink(0..len)).await?;
    cache.counters.fetched(read);
    let attr = match cache.origin.told(&from.cx, from.file.node, asked) {
        Some(attr) => attr,
        None => from.fs().getattr(&from.cx, from.file.node, Some(from.file)).resolve().await?,
    };
    Ok((buffer, read, attr))
}

/// Fills `into`, or reads up to the end of the file. Returns the number of bytes.
async fn read_all(from: &OriginFile, offset: u64, mut into: Sink) -> Result<usize> {
    let mut count = 0;
    while !into.is_empty() {
        let at = offset.saturating_add(count as u64);
        let done: ReadDone = from.fs().read(&from.cx, from.file, at, into.clone()).resolve().await?;
        count += done.count;
        into.advance(done.count);
        if done.eof || done.count == 0 {
            break;
        }
    }
    Ok(count)
}
