//! Reads of files: from the local disk, where missing parts are stored first, or past the cache.

use std::ops::Range;
use std::sync::Arc;

use tombolo_core::fs::{File, FileType, OpenFlags, ReadDone};
use tombolo_core::{Answer, Error, Result, or_answer};
use tombolo_host_runtime::task;
use tombolo_mem::Sink;

use super::coming::Coming;
use super::view::View;
use crate::data::{Data, Fetched};
use crate::fetcher::Fetcher;
use crate::object::Object;
use crate::openings::Opening;
use crate::options::Options;
use crate::read_ahead::Ahead;

/// Maximum number of attempts at a file that changes all the time.
const TRIES_MAX: u32 = 16;

/// Divisor of the cache's capacity that limits one reader's read-ahead.
const AHEAD_PART: u64 = 8;

/// Size of the aligned part of an image that is fetched around a small read, as guest accesses cluster.
/// Unlike a kernel's, this read-around makes no reader wait for more than its page
/// (docs/decisions/clones.md).
const AROUND_BYTES: u64 = 128 << 10;

/// Maximum size of a read that counts as an access to one page, around which this host's kernel reads more.
const TOUCH_BYTES: u64 = 16 << 10;

/// Maximum size of a file that is fetched whole on its first read.
pub(super) const WHOLE_BYTES: u64 = 1 << 20;

impl View {
    pub(super) fn read(self, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        let opening = or_answer!(self.session.openings.made_for(file, OpenFlags::READ));
        match opening.object.file_type {
            FileType::Regular => {}
            FileType::Directory => return Answer::err(Error::IsDirectory),
            _ => return Answer::err(Error::InvalidArgument),
        }
        if let Some(recorder) = self.cache().recorder.get() {
            recorder.note(self.cache(), &opening.object, offset..offset.saturating_add(into.len() as u64));
        }
        // Local writes in progress are visible only in the origin's session.
        if self.is_read_past(&opening.object, offset, into.len()) {
            return Answer::later(self.pass_on(file, offset, into));
        }
        match self.read_here(&opening, offset, &into) {
            Ok(Some(done)) => Answer::ok(done),
            Ok(None) => Answer::later(self.read_there(file, opening, offset, into)),
            Err(error) => Answer::err(error),
        }
    }

    fn is_read_past(&self, object: &Object, offset: u64, len: usize) -> bool {
        let contract = self.cache().options_of(object).contract;
        object.state().is_read_past(contract, &(offset..offset.saturating_add(len as u64)))
    }

    /// Reads from the origin without caching.
    async fn pass_on(self, file: File, offset: u64, into: Sink) -> Result<ReadDone> {
        let origin = self.origin_file(file).await?;
        origin.fs().read(&self.at_origin(), origin.file, offset, into).resolve().await
    }

    /// Reads cached data from the page cache, without blocking where the file system supports that. Returns
    /// `None` if not all data are in the page cache, or if the version must be queried or read-ahead started.
    fn read_here(&self, opening: &Opening, offset: u64, into: &Sink) -> Result<Option<ReadDone>> {
        let options = self.cache().options_of(&opening.object);
        if opening.object.state().is_version_unknown(options) {
            return Ok(None);
        }
        let data = self.cache().data(&opening.object);
        let Some((range, eof)) = within(&data, offset, into.len()) else {
            return Ok(Some(ReadDone { count: 0, eof: true }));
        };
        // Read-ahead must not be evicted before it is read.
        let most_bytes =
            self.cache().line.window_bytes().min(self.cache().store.capacity_bytes() / AHEAD_PART);
        let ahead_bytes_max =
            if is_touch(&data, &range) { 0 } else { options.ahead_bytes_max.min(most_bytes) };
        let ahead = opening.reads(&range, &data, ahead_bytes_max);
        let is_here = data.is_here(&range);
        self.note_read(&opening.object, &data, is_here);
        // Read-ahead is left to `read_there`, which may wait for the origin's opening. It is not started
        // while the connection is busy.
        let begins_more = || {
            let wants_all = wants_all(options, &data) && !data.is_here(&(0..data.version().size));
            wants_all || (!data.has_ahead(&ahead) && self.cache().line.room_bytes() > 0)
        };
        if !is_here || begins_more() {
            return Ok(None);
        }
        let mut wanted = into.clone();
        let count = (range.end - range.start) as usize;
        wanted.truncate(count);
        if data.read_at_once(offset, &wanted)? != Some(count) {
            return Ok(None);
        }
        self.served(&data, &range, true);
        Ok(Some(ReadDone { count, eof }))
    }

    /// Reads after waiting for missing data to be fetched.
    async fn read_there(
        self,
        file: File,
        opening: Arc<Opening>,
        offset: u64,
        into: Sink,
    ) -> Result<ReadDone> {
        for _ in 0..TRIES_MAX {
            let options = self.cache().options_of(&opening.object);
            if self.is_read_past(&opening.object, offset, into.len()) {
                return self.pass_on(file, offset, into).await;
            }
            if opening.object.state().is_version_unknown(options) {
                self.cache().fetch_attr(&self.cx, &opening.object).await?;
                continue;
            }
            self.advise(&opening).await?;
            let data = self.cache().data(&opening.object);
            let Some((range, eof)) = within(&data, offset, into.len()) else {
                return Ok(ReadDone { count: 0, eof: true });
            };
            let was_here = data.is_here(&range);
            let came = self.bring(file, &opening, &data, &range).await?;
            if came == Fetched::NotStored {
                return self.pass_on(file, offset, into).await;
            }
            if came == Fetched::Cached {
                let count = (range.end - range.start) as usize;
                let mut wanted = into.clone();
                wanted.truncate(count);
                let read = {
                    let (data, wanted) = (data.clone(), wanted.clone());
                    move || data.read(offset, &wanted)
                };
                let read = match data.read_at_once(offset, &wanted)? {
                    Some(read) if read == count => read,
                    _ => self.cache().in_pool(&self.cx, read).resolve().await?,
                };
                // A short count means a damaged block, which is fetched again.
                if read == count {
                    self.served(&data, &range, was_here);
                    return Ok(ReadDone { count, eof });
                }
            }
        }
        Err(Error::Stale)
    }

    fn served(&self, data: &Data, range: &Range<u64>, was_here: bool) {
        let counters = &self.cache().counters;
        counters.served(range.end - range.start, was_here);
        counters.trace_used_bytes.add(data.uses_trace(range));
    }

    /// Starts the fetches for a read, and waits for those of `range`, or of all of a small file.
    async fn bring(
        &self,
        file: File,
        opening: &Arc<Opening>,
        data: &Arc<Data>,
        range: &Range<u64>,
    ) -> Result<Fetched> {
        let size = data.version().size;
        let whole = if size <= WHOLE_BYTES { 0..size } else { range.clone() };
        let options = self.cache().options_of(&opening.object);
        let ahead = opening.ahead(range, size);
        let wants_all = wants_all(options, data);
        data.take_zeros(&whole, &ahead);
        if data.is_here(&whole) && data.has_ahead(&ahead) && !wants_all {
            return Ok(Fetched::Cached);
        }
        let origin = self.origin_file(file).await?;
        let ahead = if options.ahead_bytes_max > 0 { around(data, range, ahead) } else { ahead };
        let wanted = data.want(&whole, &ahead, self.cache().line.room_bytes());
        let fetcher = Fetcher::new(self.cache(), &opening.object, data, &origin);
        if wants_all {
            fetch_rest(fetcher.clone());
        }
        for fetches in [&wanted.own, &wanted.ahead] {
            fetcher.start(fetches);
        }
        for fetch in &wanted.own {
            match self.cx.interrupt.unless_raised(fetch.outcome()).await? {
                Fetched::Cached => {}
                Fetched::Failed => return Err(fetch.error()),
                other => return Ok(other),
            }
        }
        for fetch in &wanted.theirs {
            // The failed fetch may have been of a user without permission, so this reader retries.
            match self.cx.interrupt.unless_raised(fetch.outcome()).await? {
                Fetched::Cached | Fetched::Failed => {}
                other => return Ok(other),
            }
        }
        Ok(if data.is_here(range) { Fetched::Cached } else { Fetched::Changed })
    }
}

/// Requests a whole file in order, with up to the window of read-ahead in flight.
fn fetch_rest(fetcher: Fetcher) {
    let data = fetcher.data.clone();
    if data.is_here(&(0..data.version().size)) || !data.begin_rest() {
        return;
    }
    task::spawn(async move {
        let (size, mut coming) = (data.version().size, Coming::default());
        for start in (0..size).step_by(WHOLE_BYTES as usize) {
            let wanted = data.want(&(start..size.min(start + WHOLE_BYTES)), &Ahead::NONE, 0);
            fetcher.start(&wanted.own);
            coming.add(wanted.own.into_iter().chain(wanted.theirs));
            if !coming.until_at_most(fetcher.cache.line.window_bytes()).await {
                return data.end_rest();
            }
        }
        coming.until_at_most(0).await;
        data.end_rest();
    });
}

/// Returns `true` for a small read of an image with a trace: the trace replaces read-ahead.
fn is_touch(data: &Data, range: &Range<u64>) -> bool {
    range.end - range.start <= TOUCH_BYTES && data.advice().is_some_and(|advice| advice.has_trace)
}

/// Returns the read-around ([`AROUND_BYTES`]) of a random access to an image without a trace, else `ahead`.
fn around(data: &Data, range: &Range<u64>, ahead: Ahead) -> Ahead {
    let is_image = data.advice().is_some_and(|advice| !advice.has_trace);
    let is_small = range.end - range.start <= AROUND_BYTES / 2;
    if is_image && is_small && ahead.ranges().next().is_none() {
        let start = range.start / AROUND_BYTES * AROUND_BYTES;
        return Ahead::of_range(start..start + AROUND_BYTES, data.version().size);
    }
    ahead
}

/// Returns `true` if the whole file is fetched when any of it is read.
fn wants_all(options: &Options, data: &Data) -> bool {
    options.whole_files || data.advice().is_some_and(|advice| advice.is_whole())
}

/// Returns the range that a read covers, and `true` if it reaches the end of the file; `None` if it covers
/// nothing.
fn within(data: &Data, offset: u64, len: usize) -> Option<(Range<u64>, bool)> {
    let size = data.version().size;
    let end = offset.saturating_add(len as u64).min(size);
    (offset < size && len > 0).then_some((offset..end, end == size))
}
