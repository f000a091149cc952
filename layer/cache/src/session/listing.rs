//! Listing directories: a first look brings all of one.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{Cookie, DirBudget, DirEntry, DirPage, Entry, File, FileType, Name, OpenFlags};
use tombolo_core::{Ctx, Error, Result};
use tombolo_host_runtime::task;

use super::finding::target;
use super::reading::unless_interrupted;
use super::view::View;
use crate::names::{DOT, DOT_DOT, Listed, ListingMark, Target};
use crate::object::{Look, Object, State};
use crate::origin::{OriginFile, detached};
use crate::walk;

/// A directory that others change all the time is listed so often until it stays the same meanwhile.
const TRIES_MAX: u32 = 3;

/// What the origin is asked for at a time.
const PAGE: DirBudget = DirBudget { size_bytes: 1 << 20, entry_bytes: 24, align: 8, plus: true };

/// What it is asked for first, where a reader waits for that.
const FIRST_PAGE: DirBudget = DirBudget { size_bytes: 1 << 16, ..PAGE };

/// A larger directory is shown as it comes, in bytes as the origin counts them.
const GROWING_BYTES_MIN: u64 = 16 << 10;

impl View {
    /// Whether a listing can be answered from here. One that has begun goes on from what is here.
    pub(super) fn has_listing(&self, dir: &Object, cookie: Cookie, plus: bool) -> bool {
        let options = self.cache().options_of(dir);
        let state = dir.state();
        match cookie {
            Cookie::START if plus => state.is_believed(Look::Stat, options) && !state.wants_listing(options),
            Cookie::START => state.is_believed(Look::Stat, options) && state.names.is_complete(),
            _ => state.names.can_go_on(),
        }
    }

    /// Lists, asking the origin for all of the directory if it is not here.
    pub(super) async fn readdir(self, file: File, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.session.openings.made_for(file, OpenFlags::DIRECTORY)?;
        let dir = &opening.object;
        loop {
            unless_interrupted(&self.cx.interrupt, self.await_names(dir, file, cookie, page.wants_entries()))
                .await??;
            page = self.fill(dir, cookie, page)?;
            // What had come may be gone again, and more be on its way.
            if !page.is_empty() || page.is_end() || !is_growing_after(dir, cookie) {
                return Ok(page);
            }
        }
    }

    /// Waits until names after `cookie` are here, or all.
    async fn await_names(&self, dir: &Arc<Object>, file: File, cookie: Cookie, plus: bool) -> Result<()> {
        while !self.has_listing(dir, cookie, plus) {
            self.cache().walk.wait_for(dir.id).await;
            self.attr(dir, Look::Stat).await?;
            if self.has_listing(dir, cookie, plus) {
                break;
            }
            let origin = self.origin_file(file).await?;
            let (size, growing) = {
                let state = dir.state();
                (state.attr.size, state.growing.clone())
            };
            let is_own = growing.is_none();
            match growing {
                // Another's, which was begun too long ago for one that begins now.
                Some((begun, more))
                    if cookie == Cookie::START
                        && dir.state().is_old_listing(begun, self.cache().options_of(dir)) =>
                {
                    more.kept().await;
                    continue;
                }
                None if size < GROWING_BYTES_MIN => return self.list(dir, &origin, true).await.map(drop),
                None => self.grow(dir, &origin),
                Some(_) => {}
            }
            await_more(dir, cookie).await;
            let (is_growing, can_go_on) = {
                let state = dir.state();
                (state.names.is_growing(), state.names.can_go_on())
            };
            if is_growing || (is_own && can_go_on) {
                break;
            }
            if is_own {
                // It has failed: this tells how.
                return self.list(dir, &origin, true).await.map(drop);
            }
        }
        Ok(())
    }

    /// Has a directory listed in the background, and shown as its names come, unless that is being done.
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
            if view.list(&dir, &origin, true).await.is_err() {
                // A reader that waits lists anew, and is told what is wrong.
                dir.state().names.drop_all();
            }
            drop(growing);
        });
    }

    /// Fills a page from what is here.
    pub(super) fn fill(&self, dir: &Arc<Object>, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
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
                return Ok(page);
            }
        }
        let mut after = cookie.0.max(DOT_DOT);
        loop {
            // In parts: the lock of the directory is not held while those of its entries are taken.
            let (part, is_all): (Vec<(u64, Vec<u8>, Target)>, bool) = {
                let state = dir.state();
                let is_all = state.growing.is_none() || state.names.can_go_on();
                let names = state.names.after(after).take(PART_LEN);
                let names = names.filter(|_| is_all || state.names.is_growing());
                (names.map(|(place, name, target)| (place, name.to_vec(), target)).collect(), is_all)
            };
            let Some(last) = part.last().map(|(place, ..)| *place) else {
                if is_all {
                    page.set_end();
                }
                return Ok(page);
            };
            for (place, name, target) in part {
                if self.cache().hides(dir.id, &name) {
                    continue;
                }
                let entry = if page.wants_entries() { self.listed(dir, &name, target) } else { None };
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
                    return Ok(page);
                }
            }
            after = last;
        }
    }

    /// An entry with attributes, where they are here.
    fn listed(&self, dir: &Object, name: &[u8], target: Target) -> Option<Entry> {
        let object = self.cache().object(target.object).ok()?;
        self.cache().known_in(&object, dir, name);
        self.entry_now(&object)
    }

    /// Brings all names of a directory, with the attributes of what they lead to. Where others go on changing it, a caller that waits is
    /// shown what was seen last, which is not believed. How
    /// many bytes that took, about.
    pub(super) async fn list(&self, dir: &Arc<Object>, origin: &OriginFile, is_awaited: bool) -> Result<u64> {
        let mut bytes = 0;
        for attempt in 1..=TRIES_MAX {
            let (mark, begun) = (dir.state().names.begin_listing(), Instant::now());
            let _listing = Listing(dir);
            let (listed, asked) = self.gather(dir, origin, mark).await?;
            bytes += walk::listing_bytes(listed.len(), listed.names_bytes());
            let (mut stayed, is_last) = (false, attempt == TRIES_MAX);
            self.cache().learned(dir, |state| {
                stayed = state.names.holds_since(mark);
                let is_shown = stayed || (is_last && is_awaited);
                if is_shown {
                    state.names.set_listed(&listed, mark);
                    state.listed = Some(begun.min(asked));
                }
                if is_shown && !stayed {
                    state.names.set_passing();
                }
                is_shown
            });
            if stayed {
                return Ok(bytes);
            }
        }
        if is_awaited {
            dir.doubt();
        }
        Ok(bytes)
    }

    /// All names, and when the oldest of them were asked for.
    async fn gather(
        &self,
        dir: &Arc<Object>,
        origin: &OriginFile,
        mark: ListingMark,
    ) -> Result<(Listed, Instant)> {
        let cx = Ctx { lists_below: self.cx.lists_below, ..origin.cx.clone() };
        let (mut listed, mut oldest) = (Listed::default(), Instant::now());
        let mut cookie = Cookie::START;
        let grows = {
            let mut state = dir.state();
            if state.growing.is_some() {
                state.names.begin_growing(mark);
            }
            state.names.is_growing()
        };
        let mut budget = if grows { FIRST_PAGE } else { PAGE };
        let mut page = DirPage::new(budget);
        loop {
            page.reset(budget);
            let (mut asked, known) = (Instant::now(), listed.len());
            budget = PAGE;
            page = origin.fs().readdir(&cx, origin.file, cookie, page).resolve().await?;
            asked = page.asked().map_or(asked, |told| told.min(asked));
            oldest = oldest.min(asked);
            for entry in page.iter() {
                cookie = entry.cookie;
                if let Some(found) = self.found(dir, origin, &entry, asked).await? {
                    listed.push(entry.name, found);
                }
            }
            if page.is_end() {
                self.fetch_unless_told(dir, asked).await?;
                return Ok((listed, oldest));
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

    async fn fetch_unless_told(&self, dir: &Arc<Object>, asked: Instant) -> Result<()> {
        if !self.cache().told(&self.cx, dir, asked) {
            self.cache().fetch_attr(&self.cx, dir).await?;
        }
        Ok(())
    }

    /// What an entry of the origin's leads to; `None` for `.` and `..`, and for one that is gone.
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

/// Waits while a directory is being listed and none of its names after `cookie` has come.
async fn await_more(dir: &Object, cookie: Cookie) {
    loop {
        let more = {
            let state = dir.state();
            let goes_on = cookie != Cookie::START && state.names.can_go_on();
            let is_over = goes_on || has_after(&state, cookie);
            state.growing.clone().filter(|_| !is_over)
        };
        match more {
            Some((_, more)) => more.kept().await,
            None => return,
        }
    }
}

fn has_after(state: &State, cookie: Cookie) -> bool {
    state.names.is_growing() && state.names.after(cookie.0.max(DOT_DOT)).next().is_some()
}

/// Whether none of the names after `cookie` is here, and more are on their way.
fn is_growing_after(dir: &Object, cookie: Cookie) -> bool {
    let state = dir.state();
    state.growing.is_some() && !has_after(&state, cookie)
}

/// A directory that is shown as it comes. Those that wait for more go on when this is dropped.
struct Growing<'a>(&'a Object);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        let last = self.0.state().growing.take();
        last.iter().for_each(|(_, last)| last.keep(()));
    }
}

/// So many names are looked at under one lock.
const PART_LEN: usize = 256;

/// A listing that is under way.
struct Listing<'a>(&'a Object);

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        self.0.state().names.end_listing();
    }
}
