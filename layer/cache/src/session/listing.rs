//! Directory listing: the first access fetches the whole directory, or as many names as may be cached.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::fs::{Cookie, DirBudget, DirEntry, DirPage, Entry, File, FileType, Name, OpenFlags};
use tombolo_core::{Ctx, Error, Result};
use tombolo_host_runtime::task;

use super::finding::target;
use super::view::View;
use crate::freshness::Look;
use crate::names::{DOT, DOT_DOT, Listed, ListingMark, Target};
use crate::object::Object;
use crate::origin::{OriginFile, detached};
use crate::unkept::Continuation;
use crate::walk;

/// Maximum number of attempts to list a directory that changes during each of them.
const TRIES_MAX: u32 = 3;

/// Budget of a request to the origin.
const PAGE: DirBudget = DirBudget { size_bytes: 1 << 20, entry_bytes: 24, align: 8, plus: true };

/// Budget of the first request, if a reader waits for its names.
const FIRST_PAGE: DirBudget = DirBudget { size_bytes: 1 << 16, ..PAGE };

/// Size of a directory, as the origin reports it, from which names are returned before all are listed.
const GROWING_BYTES_MIN: u64 = 16 << 10;

/// Extent of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All names if they are few ([`FEW`]), for a prefetch.
    Unasked,
    /// All names, for a prefetch of the whole tree.
    Tree,
    /// All names if they are few ([`FEW`]), for a reader.
    Few,
    /// All names, for a reader.
    All,
    /// All names, while the directory is open in any session.
    WhileOpen,
}

/// Minimum size of an entry in a page.
const NAME_BYTES: usize = 32;

/// Maximum number of names that count as few ([`Wanted`]).
const FEW: usize = 16 << 10;

/// Time for which a listing continues after the directory was closed, as a client may open it anew for each
/// page.
const PATIENCE: Duration = Duration::from_secs(2);

impl Wanted {
    /// Returns the budget of the next request, after this number of names.
    fn page(self, names: usize, names_max: usize) -> DirBudget {
        let most = if matches!(self, Self::Unasked | Self::Few) { FEW.min(names_max) } else { names_max };
        let left_bytes = (most + 1).saturating_sub(names) * NAME_BYTES;
        DirBudget { size_bytes: left_bytes.clamp(FIRST_PAGE.size_bytes, PAGE.size_bytes), ..PAGE }
    }

    /// Returns `true` if a listing is to be abandoned after this number of names, `used` being the last time
    /// at which the directory was open.
    fn ends(self, names: usize, used: Instant) -> bool {
        match self {
            Self::Unasked | Self::Few => names > FEW,
            Self::Tree | Self::All => false,
            Self::WhileOpen => used.elapsed() > PATIENCE,
        }
    }
}

/// Names gathered by a listing.
struct Gathered {
    listed: Listed,
    /// Time of the earliest request.
    asked: Instant,
    /// The origin's cookie of the first name that is not cached.
    unkept: Option<Cookie>,
}

impl View {
    /// Returns `true` if a page, with `plus` including attributes, can be filled from the cache. A listing in
    /// progress continues with the cached names, whatever their age.
    pub(super) fn has_listing(&self, dir: &Object, cookie: Cookie, plus: bool) -> bool {
        let options = self.cache().options_of(dir);
        let state = dir.state();
        // `true` if no names were cached because the index was full, and the index has space now.
        let is_again = state.keeps_no_listing() && !self.cache().store.is_index_full();
        match cookie {
            Cookie::START if is_again => false,
            Cookie::START if plus => state.is_believed(Look::Stat, options) && !state.wants_listing(options),
            Cookie::START => state.is_believed(Look::Stat, options) && state.shows_all_names(),
            _ => state.goes_on_after(cookie),
        }
    }

    /// Returns a page of names after `cookie`, querying the origin for names that are not cached.
    pub(super) async fn readdir(self, file: File, mut cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.session.openings.made_for(file, OpenFlags::DIRECTORY)?;
        let dir = &opening.object;
        loop {
            let unkept = dir.state().unkept_from(cookie);
            if let Some(at) = unkept {
                return self.pass_names_on(file, dir, at?, page).await;
            }
            self.cx
                .interrupt
                .unless_raised(self.await_names(dir, file, cookie, page.wants_entries()))
                .await??;
            // The awaited names may have been dropped since.
            match self.fill(dir, cookie, page) {
                ControlFlow::Break(filled) => return Ok(filled),
                ControlFlow::Continue(next) => (page, cookie) = next,
            }
        }
    }

    /// Waits until names after `cookie` are cached or all are listed, and starts a listing if none is in
    /// progress.
    async fn await_names(&self, dir: &Arc<Object>, file: File, cookie: Cookie, plus: bool) -> Result<()> {
        while !self.has_listing(dir, cookie, plus) && dir.state().unkept_from(cookie).is_none() {
            self.cache().walk.wait_for(dir.id).await;
            self.attr(dir, Look::Stat).await?;
            if self.has_listing(dir, cookie, plus) {
                break;
            }
            let origin = self.origin_file(file).await?;
            let options = self.cache().options_of(dir);
            let (size, growing) = {
                let state = dir.state();
                (state.attr.size, state.growing.clone())
            };
            let is_own = growing.is_none();
            let is_small = is_own && size < GROWING_BYTES_MIN;
            // The listing is abandoned if the names are many after all: some origins report no size.
            if is_small && self.list(dir, &origin, Wanted::Few).await?.is_some() {
                return Ok(());
            }
            match growing {
                // The listing in progress began too early for this reader.
                Some((begun, more))
                    if cookie == Cookie::START && dir.state().is_old_listing(begun, options) =>
                {
                    more.kept().await;
                    continue;
                }
                None => self.grow(dir, &origin),
                Some(_) => {}
            }
            await_more(dir, cookie).await;
            let (is_growing, can_go_on) = {
                let state = dir.state();
                (state.names.is_growing(), state.shows_names())
            };
            if is_growing || (is_own && can_go_on) {
                break;
            }
            if is_own {
                // The listing has failed: another attempt returns the error.
                return self.list(dir, &origin, Wanted::All).await.map(drop);
            }
        }
        Ok(())
    }

    /// Starts a background listing whose names are returned as they arrive, unless one is in progress.
    fn grow(&self, dir: &Arc<Object>, origin: &Arc<OriginFile>) {
        {
            let mut state = dir.state();
            if state.growing.is_some() {
                return;
            }
            state.growing = Some((Instant::now(), Arc::default()));
        }
        let view = Self { session: self.session.clone(), cx: detached(&self.cx) };
        let (dir, origin) = (dir.clone(), origin.clone());
        task::spawn(async move {
            let growing = Growing(&dir);
            if view.list(&dir, &origin, Wanted::WhileOpen).await.is_err() {
                // A waiting reader lists again, and returns the error.
                dir.state().names.drop_all();
            }
            drop(growing);
        });
    }

    /// Fills a page with cached names. If the next names are not cached, returns the empty page and the
    /// position to continue from.
    pub(super) fn fill(
        &self,
        dir: &Arc<Object>,
        cookie: Cookie,
        mut page: DirPage,
    ) -> ControlFlow<DirPage, (DirPage, Cookie)> {
        let (parent, unused) = {
            let mut state = dir.state();
            (state.parent.unwrap_or(dir.id), state.unused_listing.take())
        };
        if let Some(bytes) = unused {
            self.used_listing(dir, bytes);
        }
        let dots = [(DOT, &b"."[..], dir.id), (DOT_DOT, b"..", parent)];
        for (place, name, id) in dots.into_iter().filter(|(place, ..)| *place > cookie.0) {
            let file_type = Some(FileType::Directory);
            let dot = DirEntry { name, fileid: id.0, file_type, cookie: Cookie(place), entry: None };
            if !page.push(dot) {
                return ControlFlow::Break(page);
            }
        }
        let mut after = cookie.0.max(DOT_DOT);
        loop {
            // The names are copied in parts, as the directory must not be locked while its entries are.
            let (part, is_all): (Vec<(u64, Vec<u8>, Target)>, bool) = {
                let state = dir.state();
                let is_all = state.shows_names();
                let names = state.names.after(after).take(PART_LEN);
                let names = names.filter(|_| is_all || state.names.is_growing());
                let part = names.map(|(place, name, target)| (place, name.to_vec(), target)).collect();
                (part, is_all && !state.has_unkept())
            };
            let Some(last) = part.last().map(|(place, ..)| *place) else {
                if is_all {
                    page.set_end();
                }
                return match page.is_empty() && !is_all {
                    true => ControlFlow::Continue((page, Cookie(after))),
                    false => ControlFlow::Break(page),
                };
            };
            for (place, name, target) in part {
                if self.cache().hides(dir.id, &name) {
                    continue;
                }
                // An entry given to a client retains the object's row, so a full index gives none.
                let gives_entry = page.wants_entries() && !self.cache().store.is_index_full();
                let entry = if gives_entry { self.listed(dir, &name, target) } else { None };
                let listed = DirEntry {
                    name: &name,
                    fileid: target.object.0,
                    file_type: Some(target.file_type),
                    cookie: Cookie(place),
                    entry: entry.as_ref(),
                };
                if !page.push(listed) {
                    if let Some(entry) = &entry {
                        self.session.known.forget(&[(entry.node, 1)]);
                    }
                    return ControlFlow::Break(page);
                }
            }
            after = last;
        }
    }

    /// Returns an entry with attributes, if they are cached and valid.
    fn listed(&self, dir: &Object, name: &[u8], target: Target) -> Option<Entry> {
        let object = self.cache().object(target.object).ok()?;
        self.cache().known_in(&object, dir, name);
        self.entry_now(&object)
    }

    /// Loads the names of a directory and the attributes of their targets: all, or as many as may be cached.
    /// If the directory changes during each attempt, the names of the last one serve only readers that wait
    /// for them. Returns the approximate number of bytes fetched; `None` if the listing was abandoned.
    pub(super) async fn list(
        &self,
        dir: &Arc<Object>,
        origin: &OriginFile,
        wanted: Wanted,
    ) -> Result<Option<u64>> {
        let (mut bytes, is_awaited) = (0, wanted != Wanted::Unasked && wanted != Wanted::Tree);
        for attempt in 1..=TRIES_MAX {
            let (mark, begun) = (dir.state().names.begin_listing(), Instant::now());
            let _listing = Listing(dir);
            let gathered = self.gather(dir, origin, mark, wanted).await?;
            let Some(Gathered { listed, asked, unkept }) = gathered else { return Ok(None) };
            bytes += walk::listing_bytes(listed.len(), listed.names_bytes());
            let (mut stayed, is_last) = (false, attempt == TRIES_MAX);
            self.cache().learned(dir, |state| {
                stayed = state.names.holds_since(mark);
                let is_shown = stayed || (is_last && is_awaited);
                if is_shown {
                    match unkept {
                        Some(cookie) => {
                            state.names.set_some(&listed, mark);
                            state.set_unkept(cookie);
                        }
                        None => state.names.set_listed(&listed, mark),
                    }
                    state.listed = Some(begun.min(asked));
                }
                if is_shown && !stayed {
                    state.names.set_passing();
                }
                is_shown
            });
            if stayed {
                return Ok(Some(bytes));
            }
        }
        if is_awaited {
            dir.doubt();
        }
        Ok(Some(bytes))
    }

    /// Loads the names of a directory from the origin. Returns `None` if the listing was abandoned
    /// ([`Wanted::ends`]).
    async fn gather(
        &self,
        dir: &Arc<Object>,
        origin: &OriginFile,
        mark: ListingMark,
        wanted: Wanted,
    ) -> Result<Option<Gathered>> {
        let cx = Ctx { lists_subdirectories: self.cx.lists_subdirectories, ..origin.cx.clone() };
        let (mut listed, mut oldest) = (Listed::default(), Instant::now());
        let (mut cookie, mut used) = (Cookie::START, Instant::now());
        let grows = {
            let mut state = dir.state();
            if state.growing.is_some() {
                state.names.begin_growing(mark);
            }
            state.names.is_growing()
        };
        self.cache().bound_index_later();
        let names_max = self.cache().store.names_max();
        if names_max == 0 {
            self.cache().fetch_attr(&self.cx, dir).await?;
            return Ok(Some(Gathered { listed, asked: oldest, unkept: Some(Cookie::START) }));
        }
        let mut page = DirPage::new(FIRST_PAGE);
        loop {
            let (mut asked, known) = (Instant::now(), listed.len());
            page.reset(if grows && known == 0 { FIRST_PAGE } else { wanted.page(known, names_max) });
            page = origin.fs().readdir(&cx, origin.file, cookie, page).resolve().await?;
            asked = page.asked().map_or(asked, |told| told.min(asked));
            oldest = oldest.min(asked);
            cookie = page.iter().last().map_or(cookie, |entry| entry.cookie);
            self.found_all(dir, origin, (&page, asked), &mut listed).await?;
            if page.is_end() {
                self.fetch_unless_told(dir, asked).await?;
                return Ok(Some(Gathered { listed, asked: oldest, unkept: None }));
            }
            if page.is_empty() {
                return Err(Error::OutOfRange);
            }
            if grows && self.cache().told(&self.cx, dir, asked) {
                let mut more = None;
                self.cache().learned(dir, |state| {
                    state.names.grow(listed.from(known), mark);
                    more = state.growing.as_mut().map(|(_, more)| std::mem::take(more));
                    true
                });
                more.iter().for_each(|more| more.keep(()));
            }
            if dir.state().uses > 0 {
                used = Instant::now();
            }
            if wanted.ends(listed.len(), used) {
                return Ok(None);
            }
            if listed.len() >= names_max {
                self.fetch_unless_told(dir, asked).await?;
                return Ok(Some(Gathered { listed, asked: oldest, unkept: Some(cookie) }));
            }
            self.cache().bound_index_later();
            if self.cache().store.is_behind() {
                let store = self.cache().store.clone();
                let written = self.cache().in_pool(&origin.cx, move || {
                    store.catch_up();
                    Ok(())
                });
                written.resolve().await?;
            }
        }
    }

    /// Returns a page of names that are not cached, without attributes, which the reader requests itself.
    async fn pass_names_on(
        &self,
        file: File,
        dir: &Arc<Object>,
        Continuation { mut at, last_kept }: Continuation,
        mut page: DirPage,
    ) -> Result<DirPage> {
        let origin = self.origin_file(file).await?;
        let mut budget = DirBudget { plus: false, ..page.budget() };
        loop {
            let listing = origin.fs().readdir(&self.at_origin(), origin.file, at, DirPage::new(budget));
            let there = listing.resolve().await?;
            let hides = |name: &[u8]| self.cache().hides(dir.id, name);
            page = match dir.state().pass_names_on(&there, (page, last_kept), hides) {
                // Even an empty page: its size does not suffice for the next name.
                ControlFlow::Break(page) => return Ok(page),
                ControlFlow::Continue(page) => page,
            };
            let Some(last) = there.iter().last().filter(|_| page.is_empty() && !page.is_end()) else {
                return Ok(page);
            };
            // The reader waits until all names that it was given from the cache are skipped.
            budget.size_bytes = budget.size_bytes.saturating_mul(2).min(PAGE.size_bytes);
            at = last.cookie;
        }
    }

    async fn fetch_unless_told(&self, dir: &Arc<Object>, asked: Instant) -> Result<()> {
        if !self.cache().told(&self.cx, dir, asked) {
            self.cache().fetch_attr(&self.cx, dir).await?;
        }
        Ok(())
    }

    /// Adds the entries of a page, which is the answer to a request made at `asked`.
    async fn found_all(
        &self,
        dir: &Object,
        origin: &OriginFile,
        (page, asked): (&DirPage, Instant),
        listed: &mut Listed,
    ) -> Result<()> {
        let mut entries = page.iter();
        while let Some(entry) = entries.next() {
            let found = self.found(dir, origin, &entry, asked).await.inspect_err(|_| {
                // No object takes over the look-ups that came with the later entries.
                let later = entries.by_ref().filter_map(|entry| entry.entry);
                later.for_each(|entry| self.cache().origin.forget(entry.node));
            })?;
            if let Some(found) = found {
                listed.push(entry.name, found);
            }
        }
        Ok(())
    }

    /// Returns the target of an entry; `None` for `.` and `..`, and if the name was removed since.
    async fn found(
        &self,
        dir: &Object,
        origin: &OriginFile,
        entry: &DirEntry<'_>,
        asked: Instant,
    ) -> Result<Option<Target>> {
        if matches!(entry.name, b"." | b"..") {
            return Ok(None);
        }
        if let Some(found) = entry.entry {
            let (_, object) = self.met(found, asked).await?;
            self.cache().found_in(&object, dir, entry.name);
            return Ok(Some(target(&object)));
        }
        let name = Name::new(entry.name).map_err(|_| Error::Io { source: None })?.to_owned();
        let asked = Instant::now();
        match origin.fs().lookup(&origin.cx, origin.file.node, name.as_name()).resolve().await {
            Ok(found) => {
                let (_, object) = self.met(&found, asked).await?;
                self.cache().found_in(&object, dir, entry.name);
                Ok(Some(target(&object)))
            }
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Waits until names after `cookie` can be read from the cache, or no listing is in progress.
async fn await_more(dir: &Object, cookie: Cookie) {
    loop {
        let more = {
            let state = dir.state();
            let goes_on = cookie != Cookie::START && state.shows_names();
            let has_after = || state.names.after(cookie.0.max(DOT_DOT)).next().is_some();
            let is_over = goes_on || (state.names.is_growing() && has_after());
            state.growing.clone().filter(|_| !is_over)
        };
        match more {
            Some((_, more)) => more.kept().await,
            None => return,
        }
    }
}

/// A listing in progress whose names are returned as they arrive. Dropping it wakes its waiters.
struct Growing<'a>(&'a Object);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        let last = self.0.state().growing.take();
        last.iter().for_each(|(_, last)| last.keep(()));
    }
}

/// Number of names examined under one lock.
const PART_LEN: usize = 256;

/// A listing in progress, which ends on drop.
struct Listing<'a>(&'a Object);

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        self.0.state().names.end_listing();
    }
}
