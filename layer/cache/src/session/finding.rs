//! Look-up of objects by name, and their attributes.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{AccessMask, Entry, FileType, NameBuf, NodeId};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_host_runtime::task;

use super::view::View;
use crate::freshness::Look;
use crate::names::{Known, Target};
use crate::object::Object;
use crate::objects::node_of;
use crate::origin::detached;

impl View {
    /// Returns the cached result of a look-up: an entry or an error; `None` if the origin must be asked.
    pub(super) fn known_entry(&self, parent: NodeId, name: &[u8]) -> Option<Result<Entry>> {
        let dir = self.object(parent).ok()?;
        let known = self.known_name(&dir, name, Instant::now())?;
        let unused = dir.state().unused_listing.take();
        if let Some(bytes) = unused {
            self.used_listing(&dir, bytes);
        }
        if matches!(known, Err(Error::NotFound)) {
            self.look_ahead(&dir);
        }
        Some(known)
    }

    /// Checks a directory's absent names again in the background once half of their lifetime has passed, so
    /// that successive look-ups do not wait.
    fn look_ahead(&self, dir: &Arc<Object>) {
        let options = self.cache().options_of(dir);
        {
            let mut state = dir.state();
            if state.looked_at_again.is_some() || !state.is_absence_ageing(options) {
                return;
            }
            state.looked_at_again = Some(Arc::default());
        }
        let view = Self { session: self.session.clone(), cx: detached(&self.cx) };
        let dir = dir.clone();
        task::spawn(async move {
            let _looking = LookingAgain(&dir);
            // Waiting look-ups retry on a failure.
            drop(view.fetch_settled(&dir).await);
        });
    }

    /// Requests the attributes of a directory. Drops its cached names if the directory has changed, or if
    /// they were too recent to show another change.
    async fn fetch_settled(&self, dir: &Arc<Object>) -> Result<()> {
        let asked = Instant::now();
        self.cache().fetch_attr(&self.cx, dir).await?;
        dir.settle(asked, self.cache().options_of(dir).contract);
        Ok(())
    }

    /// Returns the cached result of a look-up begun at `began`; `None` if the origin must be asked.
    fn known_name(&self, dir: &Object, name: &[u8], began: Instant) -> Option<Result<Entry>> {
        if dir.file_type != FileType::Directory {
            return Some(Err(Error::NotDirectory));
        }
        if !self.may(dir, AccessMask::EXECUTE)? {
            return Some(Err(Error::AccessDenied));
        }
        let options = self.cache().options_of(dir);
        let known = {
            let state = dir.state();
            if !state.is_believed(Look::Stat, options) {
                return None;
            }
            let is_absence_believed = || state.is_absence_believed(began, options);
            state.names.look_up(name).filter(|known| *known != Known::Absent || is_absence_believed())?
        };
        match known {
            Known::Absent => Some(Err(Error::NotFound)),
            Known::Found(target) => {
                let object = self.cache().object(target.object).ok()?;
                self.cache().known_in(&object, dir, name);
                self.entry_now(&object).map(Ok)
            }
        }
    }

    /// Counts a look-up for the session's client and returns the entry, if the cached attributes are valid.
    pub(super) fn entry_now(&self, object: &Object) -> Option<Entry> {
        let node = node_of(object.id);
        self.session.known.given(node);
        let attr = object.believed(Look::Stat, self.cache().options_of(object));
        if attr.is_none() {
            self.session.known.forget(&[(node, 1)]);
        }
        attr.map(|attr| Entry { node, attr })
    }

    pub(super) async fn lookup(self, parent: NodeId, name: NameBuf) -> Result<Entry> {
        let (dir, began) = (self.object(parent)?, Instant::now());
        if self.is_to_be_looked_at_again(&dir, name.as_name().as_bytes(), began) {
            self.look_again(&dir, began).await?;
            if let Some(known) = self.known_name(&dir, name.as_name().as_bytes(), began) {
                return known;
            }
        }
        let is_begun = self.note_look_up(&dir);
        if self.await_listing(&dir).await? | is_begun
            && let Some(known) = self.known_name(&dir, name.as_name().as_bytes(), began)
        {
            return known;
        }
        let (entry, object) = self.find(&dir, &name).await?;
        self.given(entry, &object).await
    }

    /// Returns `true` if a cached absence must be revalidated by the directory's attributes.
    fn is_to_be_looked_at_again(&self, dir: &Object, name: &[u8], began: Instant) -> bool {
        let options = self.cache().options_of(dir);
        let is_absent = {
            let state = dir.state();
            !state.is_absence_believed(began, options) && state.names.look_up(name) == Some(Known::Absent)
        };
        is_absent && self.may(dir, AccessMask::EXECUTE) == Some(true)
    }

    /// Revalidates a directory's names by its attributes, with one request for all waiting look-ups.
    async fn look_again(&self, dir: &Arc<Object>, began: Instant) -> Result<()> {
        loop {
            let options = self.cache().options_of(dir);
            let (answered, is_own) = {
                let mut state = dir.state();
                if state.is_absence_believed(began, options) {
                    return Ok(());
                }
                let is_own = state.looked_at_again.is_none();
                (state.looked_at_again.get_or_insert_default().clone(), is_own)
            };
            if is_own {
                let _looking = LookingAgain(dir);
                return self.fetch_settled(dir).await;
            }
            self.cx.interrupt.unless_raised(answered.kept()).await?;
        }
    }

    /// Looks up a name at the origin for a caller that accepts no cached state.
    pub(super) async fn lookup_anew(self, parent: NodeId, name: NameBuf) -> Result<Entry> {
        let dir = self.object(parent)?;
        let (entry, object) = self.find(&dir, &name).await?;
        self.given(entry, &object).await
    }

    /// Looks up a name at the origin, and caches the result.
    pub(super) async fn find(&self, dir: &Arc<Object>, name: &NameBuf) -> Result<(Entry, Arc<Object>)> {
        let node = self.node(dir).await?;
        let (asked, epoch) = (Instant::now(), dir.state().names.epoch());
        let cx = Ctx { fetched_since: self.cx.fetched_since, ..self.at_origin() };
        let looking = self.cache().origin.fs.lookup(&cx, node, name.as_name());
        let is_asked = matches!(looking, Answer::Later(_));
        let found = looking.resolve().await;
        if is_asked {
            self.cache().line.answered(asked.elapsed());
        }
        let is_told = self.cache().told(&self.cx, dir, asked);
        let (known, answer) = match found {
            Ok(entry) => {
                let (shown, object) = self.met(&entry, asked).await?;
                self.cache().found_in(&object, dir, name.as_name().as_bytes());
                (Known::Found(target(&object)), Ok((shown, object)))
            }
            Err(Error::NotFound) => (Known::Absent, Err(Error::NotFound)),
            Err(error @ Error::Stale) => return Err(self.cache().failed(dir, error)),
            Err(error) => return Err(error),
        };
        // A successful look-up implies the permission to search.
        dir.grant(&self.cx.identity, AccessMask::EXECUTE, AccessMask::EXECUTE, asked);
        self.cache().keep(dir);
        // The directory's attributes are not needed where no other client changes it.
        if is_told || self.cache().options_of(dir).contract.tells_changes() {
            self.cache().learned(dir, |state| {
                let is_late = state.changed.is_some_and(|changed| asked < changed);
                !is_late && state.names.learn(name.as_name().as_bytes(), known, epoch)
            });
        }
        answer
    }

    pub(super) async fn readlink(self, object: Arc<Object>) -> Result<Vec<u8>> {
        let node = self.node(&object).await?;
        let (asked, version) = (Instant::now(), object.state().version());
        let target = self.cache().origin.fs.readlink(&self.at_origin(), node).resolve().await;
        let target = target.map_err(|error| self.cache().failed(&object, error))?;
        if self.cache().told(&self.cx, &object, asked) {
            {
                let mut state = object.state();
                if state.version() == version {
                    state.link = Some(target.as_slice().into());
                    state.is_dirty = true;
                }
            }
            self.cache().keep(&object);
        }
        Ok(target)
    }
}

/// A query of a directory's attributes in progress. Dropping it wakes its waiters.
struct LookingAgain<'a>(&'a Object);

impl Drop for LookingAgain<'_> {
    fn drop(&mut self) {
        let answered = self.0.state().looked_at_again.take();
        answered.iter().for_each(|answered| answered.keep(()));
    }
}

pub(super) fn target(object: &Object) -> Target {
    Target { object: object.id, file_type: object.file_type }
}
