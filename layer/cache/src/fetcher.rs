//! Fetching of missing data of a file: by a copy of equal blocks, from another cache of the host, from a site
//! cache, or from the origin.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{Attr, ReadDone, WeakAttr};
use tombolo_core::{Error, Result, lock};
use tombolo_host_runtime::task;
use tombolo_mem::{Buffer, Sink};

use crate::cache::Cache;
use crate::data::{Data, Fetch, Fetched};
use crate::dedup::hashed;
use crate::object::Object;
use crate::origin::OriginFile;
use crate::packs;

/// A version of a file, and the opening at the origin by which its missing data are fetched.
#[derive(Clone)]
pub(crate) struct Fetcher {
    pub cache: Arc<Cache>,
    pub object: Arc<Object>,
    pub data: Arc<Data>,
    pub from: Arc<OriginFile>,
}

/// A guard that ends a fetch with an outcome. If it is dropped before, the fetch ends as failed.
struct Ending<'a> {
    data: &'a Data,
    fetch: &'a Arc<Fetch>,
}

impl Ending<'_> {
    fn with(&self, came: Fetched) {
        self.data.end(self.fetch, came);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.with(Fetched::Failed);
    }
}

impl Fetcher {
    pub(crate) fn new(
        cache: &Arc<Cache>,
        object: &Arc<Object>,
        data: &Arc<Data>,
        from: &Arc<OriginFile>,
    ) -> Self {
        Self { cache: cache.clone(), object: object.clone(), data: data.clone(), from: from.clone() }
    }

    /// Starts fetches, combined into compressed reads where that pays.
    pub(crate) fn start<'a>(&self, fetches: impl IntoIterator<Item = &'a Arc<Fetch>>) {
        let begun = fetches.into_iter().cloned();
        if !packs::are_worth_it(&self.cache, &self.data) {
            return begun.for_each(|fetch| self.start_one(fetch));
        }
        packs::start(self, begun);
    }

    pub(crate) fn start_one(&self, fetch: Arc<Fetch>) {
        let this = self.clone();
        task::spawn(async move {
            // The guard ends the fetch on a panic too, because others wait for it.
            let ending = Ending { data: &this.data, fetch: &fetch };
            let came = match this.bring(&fetch.range).await {
                Ok(came) => came,
                Err(error) => {
                    *lock(&fetch.error) = Some(error);
                    Fetched::Failed
                }
            };
            ending.with(came);
        });
    }

    /// Caches a range: by a copy of equal blocks, from another cache of the host, a site cache, or the
    /// origin.
    async fn bring(&self, range: &Range<u64>) -> Result<Fetched> {
        let Self { cache, object, data, from } = self;
        self.copy_equal(range).await;
        let Some(borrower) = cache.borrower.get() else {
            return self.fetch_missing(range).await;
        };
        // Another fetch may have cached the range in the meantime.
        if !data.missing(range).is_empty() {
            let bytes = borrower.borrow(object, data, &from.cx.identity, range).await;
            cache.counters.borrowed_bytes.add(bytes);
        }
        self.fetch_missing(range).await
    }

    /// Copies missing blocks of a range from cached blocks with the same digests.
    pub(crate) async fn copy_equal(&self, range: &Range<u64>) {
        let Self { cache, data, .. } = self;
        if !data.is_here(range) && data.advice().is_some_and(|advice| advice.has_digests()) {
            let (copier, into, range) = (cache.clone(), data.clone(), range.clone());
            let uid = self.object.state().attr.uid;
            let copy = move || copier.copy_duplicates(uid, &into, &range);
            let copied = cache.in_pool(&self.from.cx, copy).resolve().await;
            copied.unwrap_or_else(|error| cache.complain(&error));
        }
    }

    /// Reads the missing parts of a range from the site cache or the origin.
    async fn fetch_missing(&self, range: &Range<u64>) -> Result<Fetched> {
        for missing in self.data.missing(range) {
            let came = self.fetch(&missing).await?;
            if came != Fetched::Cached {
                return Ok(came);
            }
        }
        Ok(Fetched::Cached)
    }

    /// Reads a range from the site cache or the origin, verifies its version, and stores it.
    async fn fetch(&self, range: &Range<u64>) -> Result<Fetched> {
        // Data damaged in transit match the sidecar on the second attempt; otherwise the sidecar is wrong.
        for _ in 0..2 {
            let came = self.fetch_once(range).await?;
            if came != Fetched::DigestMismatch {
                return Ok(came);
            }
        }
        self.cache.disbelieve(&self.object, &self.data);
        Ok(Fetched::Changed)
    }

    async fn fetch_once(&self, range: &Range<u64>) -> Result<Fetched> {
        let end = range.end.min(self.data.version().size);
        let len = end.saturating_sub(range.start) as usize;
        let asked = Instant::now();
        let sent = self.cache.line.sent(len as u64, asked);
        let got = self.get(&(range.start..end), asked).await;
        self.cache.line.came(sent, got.as_ref().map_or(0, |(_, read, _)| *read) as u64, Instant::now());
        let (buffer, read, attr) = got?;
        let parts = if read == len { vec![(range.start, buffer)] } else { Vec::new() };
        self.take_in((attr, asked), parts).await
    }

    /// Stores parts, each with its offset, that were received with `attr` in answer to a request made at
    /// `asked`, if they are of the fetcher's version. `parts` is empty after a short read.
    pub(crate) async fn take_in(
        &self,
        (attr, asked): (Attr, Instant),
        parts: Vec<(u64, Buffer)>,
    ) -> Result<Fetched> {
        let Self { cache, object, data, from } = self;
        if !object.learn(&attr, asked, cache.options_of(object).contract) {
            return Err(Error::Stale);
        }
        let version = data.version();
        let is_in_parts = object.is_written_in_parts(data);
        if parts.is_empty() || (WeakAttr::from(&attr) != version && !is_in_parts) {
            return Ok(Fetched::Changed);
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
            Ok(true) => Ok(Fetched::Cached),
            Ok(false) => Ok(Fetched::DigestMismatch),
            Err(error) => {
                cache.complain(&error);
                Ok(Fetched::NotStored)
            }
        }
    }

    /// Returns the data of a range, their length, and attributes no older than the data: from the site cache
    /// if the origin's digests verify its data, otherwise from the origin.
    async fn get(&self, range: &Range<u64>, asked: Instant) -> Result<(Buffer, usize, Attr)> {
        let Self { cache, object, data, from } = self;
        if let Some(middle) = cache.middle.get()
            && let Some((buffer, attr)) = Box::pin(middle.bring(cache, object, data, from, range)).await
        {
            let len = buffer.len();
            return Ok((buffer, len, attr));
        }
        let len = range.end.saturating_sub(range.start) as usize;
        let buffer = Buffer::new(len);
        let read = read_all(from, range.start, buffer.sink(0..len)).await?;
        cache.counters.fetched_bytes.add_len(read);
        let attr = match cache.origin.told(&from.cx, from.file.node, asked) {
            Some(attr) => attr,
            None => from.fs().getattr(&from.cx, from.file.node, Some(from.file)).resolve().await?,
        };
        Ok((buffer, read, attr))
    }
}

/// Stores fetched data, and registers their digests for deduplication. Returns `false`, and stores nothing,
/// if the data do not match the sidecar.
fn keep(cache: &Cache, uid: u32, data: &Arc<Data>, start: u64, mut buffer: Buffer) -> Result<bool> {
    if let Some(advice) = data.advice() {
        let hashed = buffer.as_slice().map(|bytes| hashed(&advice, start, bytes)).unwrap_or_default();
        if !advice.fits(&hashed) {
            cache.counters.refused_bytes.add_len(buffer.len());
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
