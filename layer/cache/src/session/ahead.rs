//! What callers will ask for soon, brought in the background: directories of a walk, small files beside those that were read.

use std::future::Future;
use std::sync::Arc;

use tombolo_core::Result;
use tombolo_core::fs::{FileType, OpenFlags};
use tombolo_host_runtime::task;

use super::view::View;
use crate::cache::Cache;
use crate::data::{self, Data};
use crate::files_ahead::{self, Next};
use crate::names::Target;
use crate::object::Object;
use crate::origin::detached;
use crate::read_ahead::Ahead;
use crate::store::ObjectId;
use crate::walk::{LookedIn, Step};

/// A larger directory is not listed because two names were looked up in it, in bytes as the origin counts them.
const LISTED_BYTES_MAX: u64 = 1 << 20;

/// So many names of one directory are looked at.
const NAMES_MAX: usize = 8192;

impl View {
    /// A caller lists a directory. If that is a step of a walk, has those beside and below it listed ahead.
    pub(super) fn walk_ahead(&self, dir: &Arc<Object>) {
        let cache = self.cache();
        let parent = dir.state().parent;
        if !cache.options_of(dir).walk_ahead || !cache.walk.goes_on(dir.id, parent) {
            return;
        }
        let parent = parent.and_then(|parent| cache.object(parent).ok());
        let mut below = parent.map(|parent| self.unlisted_below(&parent)).unwrap_or_default();
        below.retain(|other| other.id != dir.id);
        below.extend(self.unlisted_below(dir));
        self.list_soon(below.into_iter().map(Step::and_below));
    }

    /// A caller has asked the origin for a name. If it was not the first in this directory, has all of them listed.
    pub(super) fn list_after_lookup(&self, dir: &Arc<Object>) {
        let cache = self.cache();
        let wants = {
            let state = dir.state();
            !state.names.is_complete() && state.attr.size <= LISTED_BYTES_MAX
        };
        if !wants || !cache.options_of(dir).walk_ahead {
            return;
        }
        let parent = dir.state().parent;
        match cache.walk.looks_in(dir.id, parent) {
            LookedIn::First => {}
            LookedIn::Again => self.list_soon([Step::alone(dir.clone())]),
            LookedIn::AfterAnother => {
                let above = parent.and_then(|parent| cache.object(parent).ok());
                let beside = above.map(|above| self.unlisted_below(&above)).unwrap_or_default();
                let below = self.unlisted_below(dir);
                self.list_soon([dir.clone()].into_iter().chain(below).chain(beside).map(Step::and_below));
            }
        }
    }

    /// A caller reads a file, of which all that it wants is here, or not. If files beside it were read as well, has others fetched ahead.
    pub(super) fn note_read(&self, object: &Arc<Object>, data: &Data, is_here: bool) {
        let (cache, size) = (self.cache(), data.version.size);
        let workers = if data.was_guessed() {
            cache.counters.guess_used(size);
            cache.files_ahead.used(size)
        } else if !is_here && cache.options_of(object).walk_ahead {
            let Some(dir) = object.state().parent else { return };
            let above = cache.object(dir).ok().and_then(|dir| dir.state().parent);
            cache.files_ahead.missed(object.id, dir, above)
        } else {
            return;
        };
        self.fetch_files(workers);
    }

    fn list_soon(&self, steps: impl IntoIterator<Item = Step>) {
        for _ in 0..self.cache().walk.add(steps) {
            self.in_background(Self::walk, |cache| cache.walk.has_no_thread());
        }
    }

    fn fetch_files(&self, workers: usize) {
        for _ in 0..workers {
            self.in_background(Self::read_on, |cache| cache.files_ahead.has_no_thread());
        }
    }

    /// Begins a worker, on a thread of the pool: an origin that is near answers at once, and this caller is not to wait for that.
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

    /// A worker: lists one directory after the other.
    async fn walk(self) {
        while let Some(Step { dir, goes_down }) = self.cache().walk.next() {
            // What fails here the caller itself will be told of.
            let _ = self.list_ahead(&dir).await;
            self.cache().walk.done(dir.id);
            if goes_down {
                self.list_soon(self.unlisted_below(&dir).into_iter().map(Step::and_below));
            }
        }
    }

    async fn list_ahead(&self, dir: &Arc<Object>) -> Result<()> {
        let options = self.cache().options_of(dir);
        if !dir.state().wants_listing(options) {
            return Ok(());
        }
        let (origin, ..) = self.open_at_origin(dir, OpenFlags::READ | OpenFlags::DIRECTORY).await?;
        self.list(dir, &origin, false).await
    }

    /// The directories in a directory, as far as it is known, of which a listing would tell more.
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

    /// A worker: fetches one small file after the other, and finds more.
    async fn read_on(self) {
        while let Some(next) = self.cache().files_ahead.next() {
            // What fails here the caller itself will be told of.
            let _ = match next {
                Next::File(file) => self.fetch_small(file).await,
                Next::Dir { dir, after } => self.find_files(dir, after).await,
            };
        }
    }

    /// Has the files in a directory fetched, and those in the directories below it: first what comes after `after` in a listing.
    async fn find_files(&self, dir: ObjectId, after: Option<ObjectId>) -> Result<()> {
        let dir = self.cache().object(dir)?;
        self.list_ahead(&dir).await?;
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
        let cache = self.cache();
        let object = cache.object(file)?;
        let is_wanted = |data: &Data| {
            let size = data.version.size;
            (1..=files_ahead::FILE_BYTES_MAX).contains(&size) && !data.is_here(&(0..size))
        };
        if !is_wanted(&cache.data(&object)) {
            return Ok(());
        }
        let (origin, ..) = self.open_at_origin(&object, OpenFlags::READ).await?;
        let data = cache.data(&object);
        if !is_wanted(&data) {
            return Ok(());
        }
        let size = data.version.size;
        let wanted = data.want(&(0..size), &Ahead::NONE, 0);
        if wanted.own.is_empty() {
            return Ok(());
        }
        data.set_guessed();
        cache.counters.guessed(size);
        cache.files_ahead.guessed(size);
        for fetch in &wanted.own {
            data::start(cache, &object, &data, &origin, fetch.clone());
        }
        for fetch in &wanted.own {
            fetch.came().await;
        }
        Ok(())
    }
}
