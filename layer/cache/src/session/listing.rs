//! Listing directories: a first look brings all of one.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{Cookie, DirBudget, DirEntry, DirPage, Entry, File, FileType, Name, OpenFlags};
use tombolo_core::{Error, Result};

use super::finding::target;
use super::reading::unless_interrupted;
use super::view::View;
use crate::names::{DOT, DOT_DOT, Target};
use crate::object::{Look, Object};
use crate::origin::OriginFile;
use crate::walk;

/// A directory that others change all the time is listed so often until it stays the same meanwhile.
const TRIES_MAX: u32 = 3;

/// What the origin is asked for at a time.
const PAGE: DirBudget = DirBudget { size_bytes: 1 << 20, entry_bytes: 24, align: 8, plus: true };

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
    pub(super) async fn readdir(self, file: File, cookie: Cookie, page: DirPage) -> Result<DirPage> {
        let opening = self.session.openings.made_for(file, OpenFlags::DIRECTORY)?;
        let dir = &opening.object;
        let plus = page.wants_entries();
        if !self.has_listing(dir, cookie, plus) {
            unless_interrupted(&self.cx.interrupt, self.cache().walk.wait_for(dir.id)).await?;
            self.attr(dir, Look::Stat).await?;
            if !self.has_listing(dir, cookie, plus) {
                let origin = self.origin_file(file).await?;
                self.list(dir, &origin, true).await?;
            }
        }
        self.fill(dir, cookie, page)
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
            let part: Vec<(u64, Vec<u8>, Target)> = {
                let state = dir.state();
                let names = state.names.after(after).take(PART_LEN);
                names.map(|(place, name, target)| (place, name.to_vec(), target)).collect()
            };
            let Some(last) = part.last().map(|(place, ..)| *place) else {
                page.set_end();
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
            let listed = self.gather(dir, origin).await?;
            bytes += walk::listing_bytes(listed.len(), listed.iter().map(|(name, _)| name.len()).sum());
            let (mut stayed, is_last) = (false, attempt == TRIES_MAX);
            self.cache().learned(dir, |state| {
                stayed = state.names.holds_since(mark);
                let is_shown = stayed || (is_last && is_awaited);
                if is_shown {
                    state.names.set_listed(&listed, mark);
                    state.listed = Some(begun);
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

    async fn gather(&self, dir: &Arc<Object>, origin: &OriginFile) -> Result<Vec<(Vec<u8>, Target)>> {
        let mut listed = Vec::new();
        let mut cookie = Cookie::START;
        let mut page = DirPage::new(PAGE);
        loop {
            page.reset(PAGE);
            let asked = Instant::now();
            page = origin.fs().readdir(&origin.cx, origin.file, cookie, page).resolve().await?;
            for entry in page.iter() {
                cookie = entry.cookie;
                if let Some(found) = self.found(dir, origin, &entry, asked).await? {
                    listed.push((entry.name.to_vec(), found));
                }
            }
            if page.is_end() {
                self.fetch_unless_told(dir, asked).await?;
                return Ok(listed);
            }
            if page.is_empty() {
                return Err(Error::OutOfRange);
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

/// So many names are looked at under one lock.
const PART_LEN: usize = 256;

/// A listing that is under way.
struct Listing<'a>(&'a Object);

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        self.0.state().names.end_listing();
    }
}
