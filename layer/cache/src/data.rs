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
use crate::images::Advice;
use crate::object::Object;
use crate::origin::OriginFile;
use crate::packs::{self, PackedSoFar};
use crate::read_ahead::Ahead;
use crate::sharing::{Borrowed, Extents};
use crate::store::DataFile;
use crate::twins::hashed;

/// One READ of the origin brings at most so much, so that a reader of its start does not wait for long. It
/// ends with a digest.
const FETCH_BYTES_MAX: u64 = 1 << 20;

/// The data of one version of a file. It is never mixed with another's: when the version changes, this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Data {
    version: Mutex<WeakAttr>,
    pub file: DataFile,
    /// What another cache of the host has lent of it.
    pub borrowed: Mutex<Option<Arc<Borrowed>>>,
    /// It was fetched because it might be read, and was not read yet.
    guessed: AtomicBool,
    /// All of it is being fetched.
    fetches_rest: AtomicBool,
    /// Other caches of the host read what is here.
    pub is_lent: AtomicBool,
    /// It takes in what is written here.
    was_written: AtomicBool,
    /// What a trace has brought and was not read yet, and whether there is any.
    traced: Mutex<Extents>,
    has_traced: AtomicBool,
    /// What came of it compressed.
    pub packed: PackedSoFar,
    /// What a sidecar says of the file.
    advice: Mutex<Option<Arc<Advice>>>,
    /// What is on its way.
    fetches: Mutex<Vec<Arc<Fetch>>>,
}

/// A part on its way.
#[derive(Debug)]
pub(crate) struct Fetch {
    range: Range<u64>,
    came: Arc<Promise<Came>>,
    error: Mutex<Option<Error>>,
}

/// What came of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The data are here.
    Here,
    /// They came, but there is no room for them here, or no file can be as long.
    Unkept,
    /// The origin has another version by now.
    Changed,
    /// They came, and are not what a sidecar says. They are not kept.
    Unlike,
    /// It failed; the one that began it has the error.
    Failed,
}

/// Parts that need not be fetched. Others wait for them until this ends.
pub(crate) struct Expected {
    data: Arc<Data>,
    parts: Vec<Arc<Fetch>>,
}

/// What a reader waits for.
pub(crate) struct Wanted {
    /// Fetches of others that bring parts of it.
    pub theirs: Vec<Arc<Fetch>>,
    /// Those that it must begin.
    pub own: Vec<Arc<Fetch>>,
    /// More that it is to begin, and not to wait for.
    pub ahead: Vec<Arc<Fetch>>,
}

impl Fetch {
    fn new(range: Range<u64>) -> Arc<Self> {
        Arc::new(Self { range, came: Arc::default(), error: Mutex::default() })
    }

    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// How much it brings.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) async fn came(&self) -> Came {
        self.came.clone().kept().await
    }

    /// Why it failed. The first that asks gets it.
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

    /// How much memory it takes.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.file.heap_bytes()
    }

    /// The version that the data are of, but for parts that were written since.
    pub(crate) fn version(&self) -> WeakAttr {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It goes on under another version. Neither another life nor others know which parts are of which.
    pub(crate) fn set_written(&self) {
        self.was_written.store(true, Ordering::Relaxed);
        self.file.set_for_this_life();
    }

    pub(crate) fn was_written(&self) -> bool {
        self.was_written.load(Ordering::Relaxed)
    }

    /// What is here is of this version from now on, but for parts that have to be fetched anew. False if they
    /// are being fetched: then nothing is changed.
    pub(crate) fn forget(&self, parts: &[Range<u64>], version: WeakAttr) -> bool {
        let fetches = self.fetches();
        if fetches.iter().any(|fetch| parts.iter().any(|part| self.file.share_blocks(part, &fetch.range))) {
            return false;
        }
        parts.iter().for_each(|part| self.file.forget(part));
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
        true
    }

    /// It is fetched before it is read.
    pub(crate) fn set_guessed(&self) {
        self.guessed.store(true, Ordering::Relaxed);
    }

    /// It is read: whether it was fetched before, and this is the first time.
    pub(crate) fn was_guessed(&self) -> bool {
        self.guessed.load(Ordering::Relaxed) && self.guessed.swap(false, Ordering::Relaxed)
    }

    /// This is brought because a trace says so. How many bytes are new.
    pub(crate) fn trace_brings(&self, fetch: &Fetch) -> u64 {
        self.has_traced.store(true, Ordering::Relaxed);
        lock(&self.traced).add(fetch.range.clone())
    }

    /// It is read: how many bytes of it a trace has brought that were not read before.
    pub(crate) fn uses_trace(&self, range: &Range<u64>) -> u64 {
        if self.has_traced.load(Ordering::Relaxed) { lock(&self.traced).remove(range) } else { 0 }
    }

    /// All of it is to be fetched: whether that has not begun yet.
    pub(crate) fn begin_rest(&self) -> bool {
        !self.fetches_rest.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn end_rest(&self) {
        self.fetches_rest.store(false, Ordering::Relaxed);
    }

    /// From now on goes by what a sidecar says.
    pub(crate) fn set_advice(&self, advice: &Arc<Advice>) {
        *self.advice.lock().unwrap_or_else(PoisonError::into_inner) = Some(advice.clone());
    }

    /// What a sidecar says of these very data.
    pub(crate) fn advice(&self) -> Option<Arc<Advice>> {
        let advice = self.advice.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        (advice.is_of(&self.version()) && !self.was_written()).then_some(advice)
    }

    /// Whether nothing of it is here or on its way.
    pub(crate) fn is_untouched(&self) -> bool {
        self.fetches().is_empty() && self.file.is_empty()
    }

    /// Has what is known to be zeroes of a range, and of what is ahead, be here.
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
                // They are fetched then.
                Err(error) => tracing::debug!(%error, "cannot store zero blocks"),
            }
        }
    }

    /// Whether all of a range is here.
    pub(crate) fn is_here(&self, range: &Range<u64>) -> bool {
        self.file.is_here(range) || (self.borrowed().is_some() && self.missing(range).is_empty())
    }

    /// What of a range is not here, in whole blocks.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let borrowed = self.borrowed();
        let is_lent = |block: &Range<u64>| borrowed.as_ref().is_some_and(|borrowed| borrowed.covers(block));
        self.file.missing(range.clone(), is_lent)
    }

    /// Whether all of this is here.
    pub(crate) fn has_ahead(&self, ahead: &Ahead) -> bool {
        ahead.ranges().all(|range| self.is_here(&range))
    }

    /// What is to be waited for until `range` is here, and begun so that `ahead` will be, as far as so much
    /// does.
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

    /// Fetches for what is neither here nor on its way, in whole blocks, as far as `left_bytes` does.
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

    /// What of a range is neither here nor on its way, in whole blocks, is on its way from now on: its caller
    /// has it.
    pub(crate) fn expect(self: &Arc<Self>, range: &Range<u64>) -> Expected {
        let mut all = u64::MAX;
        let parts = self.begin(&mut self.fetches(), &self.file.whole_blocks(range), &mut all);
        Expected { data: self.clone(), parts }
    }

    /// Takes a fetch off the list, and tells those that wait for it.
    pub(crate) fn end(&self, fetch: &Arc<Fetch>, came: Came) {
        self.fetches().retain(|other| !Arc::ptr_eq(other, fetch));
        fetch.came.keep(came);
    }

    fn fetches(&self) -> MutexGuard<'_, Vec<Arc<Fetch>>> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expected {
    /// Keeps them, out of data that begin at `offset`.
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

/// Begins fetches, each by itself or several that travel together.
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

/// Begins a fetch.
pub(crate) fn start_one(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &Arc<OriginFile>,
    fetch: Arc<Fetch>,
) {
    let (cache, object, data, from) = (cache.clone(), object.clone(), data.clone(), from.clone());
    task::spawn(async move {
        // Also when it panics: others wait for it.
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

/// Ends a fetch.
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

/// Has a range here: it is here under another name, another cache of the host lends it, or it is fetched.
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
    // Another one's answer may have brought it.
    if !data.missing(range).is_empty() {
        let bytes = borrower.borrow(object, data, &from.cx.identity, range).await;
        cache.counters.borrowed(bytes);
    }
    fetch_missing(cache, object, data, from, range).await
}

/// Copies what is here of a range under another name.
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
        let copied = cache.in_pool(&from.cx, move || copier.copy_twins(uid, &into, &range)).resolve().await;
        copied.unwrap_or_else(|error| cache.complain(&error));
    }
}

/// Reads what is not here of a range at the origin.
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

/// Reads a range at the origin, makes sure that it is of this version, and keeps it.
async fn fetch(
    cache: &Arc<Cache>,
    object: &Arc<Object>,
    data: &Arc<Data>,
    from: &OriginFile,
    range: &Range<u64>,
) -> Result<Came> {
    // What came damaged comes right the second time. If not, it is the sidecar that is wrong.
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

/// Keeps parts that came with these attributes when asked for then, if they are of this version. No parts:
/// they did not come whole.
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
    cache.came_young(object, data, &version);
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

/// Keeps what came, and says to other files what that is. False, and nothing is kept, if it is not what the
/// sidecar says.
fn keep(cache: &Cache, uid: u32, data: &Arc<Data>, start: u64, mut buffer: Buffer) -> Result<bool> {
    if let Some(advice) = data.advice() {
        let hashed = buffer.as_slice().map(|bytes| hashed(&advice, start, bytes)).unwrap_or_default();
        if !advice.fits(&hashed) {
            cache.counters.refused(buffer.len() as u64);
            advice.tell_unlike();
            return Ok(false);
        }
        cache.write(data, start, buffer)?;
        cache.twins.add(uid, data, hashed);
    } else {
        cache.write(data, start, buffer)?;
    }
    Ok(true)
}

/// Data of a range, how many came, and what the origin says of the file at that time or later: from a cache
/// in the middle, if they are proved to be right, and else from the origin.
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

/// Fills `into`, or reads up to the end of the file.
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
