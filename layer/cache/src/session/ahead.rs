//! Background prefetch: directories of a walk, and small neighbours of files read. `walk` and `files_ahead`
//! decide what to fetch; the tasks of this module fetch it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tombolo_core::Result;
use tombolo_core::fs::{AccessMask, FileType, OpenFlags};
use tombolo_host_runtime::task;

use super::listing::Wanted;
use super::view::View;
use crate::cache::Cache;
use crate::data::{Data, Fetch};
use crate::fetcher::Fetcher;
use crate::files_ahead::{self, Next};
use crate::names::Target;
use crate::object::Object;
use crate::openings::is_writing;
use crate::options::Prefetch;
use crate::origin::detached;
use crate::read_ahead::Ahead;
use crate::store::ObjectId;
use crate::walk::LookedIn;

/// Maximum size of a directory that is listed because of look-ups in it, in bytes as reported by the origin.
const LISTED_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a directory listed because a path leads through it: listing takes as long as few look-ups.
const SMALL_BYTES_MAX: u64 = 4096;

/// Maximum size of a directory that is listed at its open, and whose listing is awaited by look-ups and
/// opens.
const AWAITED_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of names of one directory examined for small files.
const NAMES_MAX: usize = 8192;

impl View {
    /// Records that a client lists a directory, and queues the directories to be prefetched then (`walk`).
    pub(super) fn walk_ahead(&self, dir: &Arc<Object>) {
        let cache = self.cache();
        let parent = dir.state().parent;
        if cache.options_of(dir).prefetch == Prefetch::Off {
            return;
        }
        let goes_on = cache.walk.goes_on(dir.id, parent);
        self.want_all_of(dir);
        if !goes_on {
            return;
        }
        if let Some(parent) = parent.and_then(|parent| cache.object(parent).ok()) {
            self.go_through(&parent);
        }
        self.go_through(dir);
    }

    /// Records a look-up of a name that was not cached, or was in a prefetched listing. [`LookedIn`] and the
    /// directory's size decide whether it is listed; in a walk, its siblings and subdirectories are queued
    /// too. Returns `true` if a listing for that reason has started, or was in progress.
    pub(super) fn note_look_up(&self, dir: &Arc<Object>) -> bool {
        let cache = self.cache();
        let prefetch = cache.options_of(dir).prefetch;
        if prefetch == Prefetch::Off {
            return false;
        }
        let (parent, size, is_listed) = {
            let state = dir.state();
            (state.parent, state.attr.size, state.names.is_complete())
        };
        if !is_listed {
            cache.walk.missed();
        }
        let looked_in = cache.walk.looks_in(dir.id, parent);
        let is_wanted = match looked_in {
            LookedIn::First | LookedIn::Below if prefetch == Prefetch::Tree => size <= LISTED_BYTES_MAX,
            LookedIn::First => false,
            LookedIn::Below => size <= SMALL_BYTES_MAX,
            LookedIn::Again | LookedIn::AfterAnother => size <= LISTED_BYTES_MAX,
        };
        let begins = is_wanted && !is_listed && self.may(dir, AccessMask::READ) != Some(false);
        if begins {
            self.list_now(dir);
        }
        self.want_all_of(dir);
        if looked_in == LookedIn::AfterAnother {
            if let Some(above) = parent.and_then(|parent| cache.object(parent).ok()) {
                self.go_through(&above);
            }
            self.go_through(dir);
        }
        begins
    }

    /// Records the first use of a prefetched listing, upon which the walk continues. `bytes` is the listing's
    /// size if it was a guess, which was right then, otherwise 0.
    pub(super) fn used_listing(&self, dir: &Arc<Object>, bytes: u64) {
        self.cache().counters.listing_used_bytes.add(bytes);
        let workers = self.cache().walk.used(bytes);
        self.start_walkers(workers);
        self.note_look_up(dir);
    }

    /// Queues the whole tree below a directory, once, if the options prefetch trees.
    fn want_all_of(&self, dir: &Arc<Object>) {
        let cache = self.cache();
        if cache.options_of(dir).prefetch == Prefetch::Tree && cache.walk.is_new(dir.id) {
            let workers = cache.walk.add_all_of(dir.clone());
            self.start_walkers(workers);
        }
    }

    /// Queues the subdirectories of a listed directory, once. The workers then queue those below them.
    fn go_through(&self, dir: &Arc<Object>) {
        let is_listed = dir.state().names.is_complete();
        if is_listed && self.cache().walk.is_new(dir.id) {
            let workers = self.cache().walk.add(dir.id, self.unlisted_below(dir));
            self.start_walkers(workers);
        }
    }

    /// Records a read, of which all was cached if `is_here`, for the prefetch of files (`files_ahead`).
    pub(super) fn note_read(&self, object: &Arc<Object>, data: &Data, is_here: bool) {
        let (cache, size) = (self.cache(), data.version().size);
        let prefetch = cache.options_of(object).prefetch;
        let workers = if data.was_guessed() {
            cache.counters.guess_used_bytes.add(size);
            cache.files_ahead.used(size)
        } else if !is_here && prefetch != Prefetch::Off {
            let Some(dir) = object.state().parent else { return };
            let above = cache.object(dir).ok().and_then(|dir| dir.state().parent);
            cache.files_ahead.missed(object.id, dir, above, prefetch == Prefetch::Tree)
        } else {
            return;
        };
        self.fetch_files(workers);
    }

    fn start_walkers(&self, workers: usize) {
        for _ in 0..workers {
            self.in_background(Self::walk, |cache| cache.walk.has_no_thread());
        }
    }

    fn fetch_files(&self, workers: usize) {
        for _ in 0..workers {
            self.in_background(Self::read_on, |cache| cache.files_ahead.has_no_thread());
        }
    }

    /// Starts a worker on the thread pool: with an origin that answers at once, its work would delay the
    /// caller. The worker acts as the caller's user, also for directories and files queued for others: the
    /// origin may refuse it some, but permissions are cached by user, so it lets nobody read more.
    fn in_background<F>(&self, work: fn(Self) -> F, not_begun: fn(&Cache))
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let worker = Self { session: self.session.clone(), cx: detached(&self.cx) };
        let (cache, cx) = (self.cache().clone(), worker.cx.clone());
        let begun = cache.in_pool(&cx, move || {
            task::spawn_boxed(Box::pin(work(worker)));
            Ok(())
        });
        task::spawn(async move {
            if begun.resolve().await.is_err() {
                not_begun(&cache);
            }
        });
    }

    /// Lists queued directories until none is left, or the window is full.
    async fn walk(mut self) {
        while let Some(dir) = self.cache().walk.next() {
            // For a program's own walk, several directories per call cost more bytes and saved no time
            // (docs/decisions/cache-layer.md).
            self.cx.lists_subdirectories = self.cache().options_of(&dir).prefetch == Prefetch::Tree;
            match UnderWay::begin(self.cache(), &dir) {
                // A caller will see the error itself.
                Some(_under_way) => drop(self.list_ahead(&dir, true).await),
                None => drop(self.cache().walk.wait_for(dir.id).await),
            }
            self.go_through(&dir);
        }
    }

    /// Starts a listing that a client needs now or probably soon. Returns `false` if one is in progress.
    fn list_now(&self, dir: &Arc<Object>) -> bool {
        let under_way = UnderWay::begin(self.cache(), dir);
        let begins = under_way.is_some();
        if let Some(under_way) = under_way {
            let view = Self { session: self.session.clone(), cx: detached(&self.cx) };
            let dir = dir.clone();
            task::spawn(async move {
                let _under_way = under_way;
                drop(view.list_ahead(&dir, false).await);
            });
        }
        begins
    }

    /// Waits for a listing in progress, unless the directory is large. Returns `false` if it has not waited.
    pub(super) async fn await_listing(&self, dir: &Object) -> Result<bool> {
        if dir.state().attr.size > AWAITED_BYTES_MAX {
            return Ok(false);
        }
        self.cx.interrupt.unless_raised(self.cache().walk.wait_for(dir.id)).await
    }

    /// Lists a directory at its open, if it is small and its cached listing is incomplete or too old. Returns
    /// `true` if a listing has started or is in progress.
    pub(super) fn list_at_open(&self, dir: &Arc<Object>) -> bool {
        // The options are determined before the state is locked, as that may search for the object's name.
        let options = self.cache().options_of(dir);
        let wants = {
            let state = dir.state();
            state.attr.size <= AWAITED_BYTES_MAX && state.wants_listing(options)
        };
        let begins =
            wants && options.prefetch != Prefetch::Off && self.may(dir, AccessMask::READ) != Some(false);
        if begins && self.list_now(dir) {
            self.start_walkers(self.cache().walk.came_first());
        }
        begins
    }

    /// Lists a directory ahead, if that brings anything and the index has space, and queries the user's
    /// permissions at the same time. With `is_guess` the listing counts as unused in the window of the walk.
    async fn list_ahead(&self, dir: &Arc<Object>, is_guess: bool) -> Result<()> {
        let is_full = self.cache().store.is_index_nearly_full();
        let options = self.cache().options_of(dir);
        if is_full || !dir.state().wants_listing(options) {
            return Ok(());
        }
        let origin = self.open_unasked(dir, OpenFlags::READ | OpenFlags::DIRECTORY).await?;
        let wants_tree = self.cache().options_of(dir).prefetch == Prefetch::Tree;
        let wanted = if wants_tree { Wanted::Tree } else { Wanted::Unasked };
        let (listed, _) = both(self.list(dir, &origin, wanted), self.learn_rights(dir)).await;
        let Some(bytes) = listed? else { return Ok(()) };
        let guessed = if is_guess { bytes } else { 0 };
        self.cache().counters.listed_ahead_bytes.add(guessed);
        self.cache().walk.guessed(guessed);
        dir.state().unused_listing = Some(guessed);
        Ok(())
    }

    /// Queries the permissions that a user needs to list and search a directory: both at once, then reading
    /// alone if that was denied.
    async fn learn_rights(&self, dir: &Arc<Object>) -> Result<()> {
        let all = AccessMask::READ | AccessMask::EXECUTE;
        if self.may(dir, all).is_none() && !self.ask_access(dir, all).await? {
            self.ask_access(dir, AccessMask::READ).await?;
        }
        Ok(())
    }

    /// Returns the cached subdirectories of which a listing would bring names or newer attributes.
    fn unlisted_below(&self, dir: &Object) -> Vec<Arc<Object>> {
        let names: Vec<Target> = dir.state().names.after(0).map(|(.., target)| target).collect();
        let dirs = names.into_iter().filter(|target| target.file_type == FileType::Directory);
        let dirs = dirs.filter_map(|target| self.cache().object(target.object).ok());
        dirs.filter(|dir| {
            let options = self.cache().options_of(dir);
            dir.state().wants_listing(options)
        })
        .collect()
    }

    /// Prefetches queued small files, and finds more, until none is left or the window is full.
    async fn read_on(self) {
        while let Some(next) = self.cache().files_ahead.next() {
            // A caller will see the error itself.
            let _ = match next {
                Next::File(file) => self.fetch_small(file).await,
                Next::Dir { dir, after } => self.find_files(dir, after).await,
            };
        }
    }

    /// Queues the files and subdirectories of a directory, in listing order: those behind `after`, then those
    /// before it.
    async fn find_files(&self, dir: ObjectId, after: Option<ObjectId>) -> Result<()> {
        let dir = self.cache().object(dir)?;
        match UnderWay::begin(self.cache(), &dir) {
            // No guess of the walk: the window of `files_ahead` limits the search too.
            Some(_under_way) => self.list_ahead(&dir, false).await?,
            None => drop(self.cache().walk.wait_for(dir.id).await),
        }
        let mut targets: Vec<Target> =
            dir.state().names.after(0).take(NAMES_MAX).map(|(.., target)| target).collect();
        if let Some(place) = targets.iter().position(|target| Some(target.object) == after) {
            targets.rotate_left(place);
        }
        let of_type = |wanted| {
            let targets = targets.iter().filter(move |target| target.file_type == wanted);
            targets.map(|target| target.object).filter(move |object| Some(*object) != after)
        };
        let workers = self.cache().files_ahead.add(of_type(FileType::Regular), of_type(FileType::Directory));
        self.fetch_files(workers);
        Ok(())
    }

    async fn fetch_small(&self, file: ObjectId) -> Result<()> {
        let object = self.cache().object(file)?;
        let begun = self.fetch_whole(&object, true).await?;
        if begun.is_empty() {
            return Ok(());
        }
        let came = async {
            for fetch in &begun {
                fetch.outcome().await;
            }
        };
        let may_read = async {
            match self.may(&object, AccessMask::READ) {
                Some(_) => Ok(true),
                None => self.ask_access(&object, AccessMask::READ).await,
            }
        };
        both(came, may_read).await.1.map(drop)
    }

    /// Prefetches a small file at its open for reading.
    pub(super) fn fetch_at_open(&self, object: &Arc<Object>, flags: OpenFlags) {
        let is_read = flags.contains(OpenFlags::READ) && !is_writing(flags);
        let is_off = self.cache().options_of(object).prefetch == Prefetch::Off;
        if is_off || !is_read || object.file_type != FileType::Regular {
            return;
        }
        let data = self.cache().data(object);
        if object.state().writers > 0 || !is_small_and_missing(&data) {
            return;
        }
        self.note_read(object, &data, false);
        let view = Self { session: self.session.clone(), cx: detached(&self.cx) };
        let object = object.clone();
        task::spawn(async move { drop(view.fetch_whole(&object, false).await) });
    }

    /// Starts fetches of a whole small file, unless it is cached or being fetched, and returns them.
    async fn fetch_whole(&self, object: &Arc<Object>, is_guess: bool) -> Result<Vec<Arc<Fetch>>> {
        let cache = self.cache();
        if !is_small_and_missing(&cache.data(object)) {
            return Ok(Vec::new());
        }
        let origin = self.open_unasked(object, OpenFlags::READ).await?;
        let data = cache.data(object);
        if !is_small_and_missing(&data) {
            return Ok(Vec::new());
        }
        let size = data.version().size;
        let begun = data.want(&(0..size), &Ahead::NONE, 0).own;
        if is_guess && !begun.is_empty() {
            data.set_guessed();
            cache.counters.guessed_bytes.add(size);
            cache.files_ahead.guessed(size);
        }
        Fetcher::new(cache, object, &data, &origin).start(&begun);
        Ok(begun)
    }
}

fn is_small_and_missing(data: &Data) -> bool {
    let size = data.version().size;
    (1..=files_ahead::FILE_BYTES_MAX).contains(&size) && !data.is_here(&(0..size))
}

/// A listing in progress. Dropping it wakes its waiters.
struct UnderWay {
    cache: Arc<Cache>,
    dir: ObjectId,
}

impl UnderWay {
    /// Begins a listing. Returns `None` if one is in progress.
    fn begin(cache: &Arc<Cache>, dir: &Object) -> Option<Self> {
        cache.walk.begin(dir.id).then(|| Self { cache: cache.clone(), dir: dir.id })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.cache.walk.done(self.dir);
    }
}

/// Runs two futures concurrently, and returns both results.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(context)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = other.as_mut().poll(context)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}
