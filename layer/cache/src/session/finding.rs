//! Finding objects by name, and their attributes.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{AccessMask, Entry, FileType, NameBuf, NodeId};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::view::View;
use crate::names::{Known, Target};
use crate::object::{Look, Object};
use crate::objects::node_of;

impl View {
    /// What a name leads to, if that is known and to be believed, and the user may search the directory.
    pub(super) fn known_entry(&self, parent: NodeId, name: &[u8]) -> Option<Result<Entry>> {
        let dir = self.object(parent).ok()?;
        let known = self.known_name(&dir, name)?;
        let unused = dir.state().unused_listing.take();
        if let Some(bytes) = unused {
            self.used_listing(&dir, bytes);
        }
        Some(known)
    }

    fn known_name(&self, dir: &Object, name: &[u8]) -> Option<Result<Entry>> {
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
            state.names.look_up(name)?
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

    /// An entry for the caller, if the attributes that are here are to be believed.
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
        let dir = self.object(parent)?;
        let is_begun = self.note_look_up(&dir);
        if self.await_listing(&dir).await? | is_begun
            && let Some(known) = self.known_name(&dir, name.as_name().as_bytes())
        {
            return known;
        }
        let (entry, object) = self.find(&dir, &name).await?;
        self.given(entry, &object).await
    }

    /// The same for a caller that what is here will not do for.
    pub(super) async fn lookup_anew(self, parent: NodeId, name: NameBuf) -> Result<Entry> {
        let dir = self.object(parent)?;
        let (entry, object) = self.find(&dir, &name).await?;
        self.given(entry, &object).await
    }

    /// Asks the origin for a name, and keeps what it says.
    pub(super) async fn find(&self, dir: &Arc<Object>, name: &NameBuf) -> Result<(Entry, Arc<Object>)> {
        let node = self.node(dir).await?;
        let (asked, epoch) = (Instant::now(), dir.state().names.epoch());
        let cx = Ctx { known_since: self.cx.known_since, ..self.at_origin() };
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
        // It has looked, so it may.
        dir.grant(&self.cx.identity, AccessMask::EXECUTE, AccessMask::EXECUTE, asked);
        self.cache().keep(dir);
        // Where no other changes the directory it need not be told how that was then.
        if is_told || self.cache().options_of(dir).contract.tells_changes() {
            self.cache().learned(dir, |state| {
                let is_late = state.changed.is_some_and(|changed| asked < changed);
                !is_late && state.names.learn(name.as_name().as_bytes(), known, epoch)
            });
        }
        answer
    }

    /// The target of a symbolic link.
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

pub(super) fn target(object: &Object) -> Target {
    Target { object: object.id, file_type: object.file_type }
}
