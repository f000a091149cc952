//! Changes that remove a name: removals and renames.
//!
//! The file whose name is removed or moved loses a link, or its ctime changes. The names cached right before
//! the change show which file that is. If they are not known to be current, because another client changed
//! the directory or answers overtook each other, it may be any file.

use std::sync::Arc;

use tombolo_core::fs::{Change, FileType, NameBuf, NodeId, Notice, RenameFlags, Renamed};
use tombolo_core::{Error, Result};

use super::changing::{NameChange, Seen, in_doubt, may_be_made};
use super::finding::target;
use super::view::View;
use crate::freshness::Look;
use crate::names::{Known, Names as DirNames, Target};
use crate::object::Object;
use crate::objects::node_of;
use crate::options::Contract;
use crate::unnamed::Names;

/// A name in a directory that is being changed.
#[derive(Clone, Copy)]
struct Place<'a> {
    change: &'a NameChange,
    name: &'a NameBuf,
}

impl Place<'_> {
    fn dir(&self) -> &Arc<Object> {
        &self.change.dir
    }

    fn bytes(&self) -> &[u8] {
        self.name.as_name().as_bytes()
    }
}

/// The targets of the old and the new name right before a rename; `None` if unknown.
#[derive(Clone, Copy, Default)]
struct Moved {
    from: Option<Known>,
    to: Option<Known>,
}

impl Moved {
    /// Returns the target of the new name after the rename; `None` if unknown, or if both names stay.
    fn target(&self) -> Option<Target> {
        match self.from {
            Some(Known::Found(from)) if self.to.is_some() && !self.both_stay() => Some(from),
            _ => None,
        }
    }

    /// Returns `true` if both names are of one file, and so both stay (rename(2)).
    fn both_stay(&self) -> bool {
        self.from == self.to && self.from.is_some_and(|known| known != Known::Absent)
    }
}

impl View {
    pub(super) async fn unlink(self, parent: NodeId, name: NameBuf) -> Result<Change> {
        let (dir, node) = self.dir(parent).await?;
        let victim = self.victim(&dir, &name).await?;
        let (change, fs) = (NameChange::begin(&dir, &[&name]), &self.cache().origin.fs);
        let removed = fs.unlink(&self.at_origin(), node, name.as_name()).resolve().await;
        self.removed(Place { change: &change, name: &name }, victim, removed)
    }

    pub(super) async fn rmdir(self, parent: NodeId, name: NameBuf) -> Result<Change> {
        let (dir, node) = self.dir(parent).await?;
        let victim = self.victim(&dir, &name).await?;
        let (change, fs) = (NameChange::begin(&dir, &[&name]), &self.cache().origin.fs);
        let removed = fs.rmdir(&self.at_origin(), node, name.as_name()).resolve().await;
        self.removed(Place { change: &change, name: &name }, victim, removed)
    }

    pub(super) async fn rename(
        self,
        from_parent: NodeId,
        from: NameBuf,
        to_parent: NodeId,
        to: NameBuf,
        flags: RenameFlags,
    ) -> Result<Renamed> {
        let (from_dir, from_node) = self.dir(from_parent).await?;
        let (to_dir, to_node) = self.dir(to_parent).await?;
        let (moved, replaced) = (self.victim(&from_dir, &from).await?, self.victim(&to_dir, &to).await?);
        let (change, other) = match from_dir.id == to_dir.id {
            true => (NameChange::begin(&from_dir, &[&from, &to]), None),
            false => (NameChange::begin(&from_dir, &[&from]), Some(NameChange::begin(&to_dir, &[&to]))),
        };
        let (fs, old, new) = (&self.cache().origin.fs, from.as_name(), to.as_name());
        let renamed = fs.rename(&self.at_origin(), from_node, old, to_node, new, flags).resolve().await;
        let from = Place { change: &change, name: &from };
        let to = Place { change: other.as_ref().unwrap_or(&change), name: &to };
        let renamed = match renamed {
            Ok(renamed) => renamed,
            Err(error) => {
                self.lost(moved.as_ref(), None, may_be_made(&error));
                self.lost(replaced.as_ref(), None, may_be_made(&error));
                self.tell_name(from.dir(), from.name);
                self.tell_name(to.dir(), to.name);
                in_doubt(to.dir(), &error);
                return Err(self.dir_failed(from.dir(), error));
            }
        };
        let sure = self.enter_rename(from, to, &renamed, flags);
        let names_left = replaced.as_ref().map(|replaced| self.names_left(replaced, sure.to));
        self.lost(moved.as_ref(), sure.from, sure.from.is_none());
        self.lost(replaced.as_ref(), sure.to, sure.to.is_none());
        let now_there = sure.target().and_then(|target| self.cache().object(target.object).ok());
        if let Some(moved) = now_there.or(moved) {
            self.cache().found_in(&moved, to.dir(), to.bytes());
            self.tell([Notice::Attributes(node_of(moved.id))]);
        }
        match &replaced {
            Some(replaced) if flags.contains(RenameFlags::EXCHANGE) => {
                self.cache().found_in(replaced, from.dir(), from.bytes());
                self.tell([Notice::Attributes(node_of(replaced.id))]);
            }
            Some(replaced) => {
                self.tell_unnamed(replaced);
                names_left.into_iter().for_each(|left| self.cache().lost_a_name(replaced.id, left));
            }
            None => {}
        }
        self.tell_name(from.dir(), from.name);
        self.tell_name(to.dir(), to.name);
        Ok(Renamed {
            from_dir: self.shown_change(from.dir(), renamed.from_dir),
            to_dir: self.shown_change(to.dir(), renamed.to_dir),
        })
    }

    /// Applies a rename to the cached names. Returns the targets of the old and the new name right before it.
    fn enter_rename(&self, from: Place<'_>, to: Place<'_>, renamed: &Renamed, flags: RenameFlags) -> Moved {
        let moves = flags.is_empty() || flags == RenameFlags::NO_REPLACE;
        let mut sure = Moved::default();
        if from.dir().id == to.dir().id {
            self.dir_changed(to.change, &renamed.to_dir, |names, seen| {
                if seen == Seen::After {
                    return;
                }
                sure = Moved { from: names.look_up(from.bytes()), to: names.look_up(to.bytes()) };
                match sure.target().filter(|_| moves) {
                    Some(target) => {
                        names.set_absent(from.bytes());
                        names.set(to.bytes(), target);
                    }
                    None if sure.both_stay() && seen == Seen::Before => {}
                    None => names.drop_all(),
                }
            });
            return sure;
        }
        sure.to = {
            let contract = self.cache().options_of(to.dir()).contract;
            let is_known = to.change.knows_before(&renamed.to_dir, contract);
            if is_known { to.dir().state().names.look_up(to.bytes()) } else { None }
        };
        self.dir_changed(from.change, &renamed.from_dir, |names, seen| {
            if seen == Seen::After {
                return;
            }
            sure.from = names.look_up(from.bytes());
            match sure.target().filter(|_| moves) {
                Some(_) => names.set_absent(from.bytes()),
                None => names.drop_all(),
            }
        });
        let expected = std::mem::take(&mut sure.to);
        self.dir_changed(to.change, &renamed.to_dir, |names, seen| {
            if seen == Seen::After {
                return;
            }
            sure.to = names.look_up(to.bytes());
            match sure.target().filter(|_| moves && sure.to == expected) {
                Some(target) => names.set(to.bytes(), target),
                None => names.drop_all(),
            }
        });
        sure
    }

    /// Returns the file whose name a change is about to remove, looked up if it is not cached: the change
    /// also alters its attributes. Waits for the end of the cache's own openings of the file. If sessions are
    /// to be notified, requests its attributes first, for its number of links.
    async fn victim(&self, dir: &Arc<Object>, name: &NameBuf) -> Result<Option<Arc<Object>>> {
        let known = dir.state().names.look_up(name.as_name().as_bytes());
        let found = match known {
            Some(Known::Found(target)) => self.cache().object(target.object).ok(),
            _ => None,
        };
        let found = match known {
            _ if found.is_some() => found,
            // The change itself will fail at the origin.
            Some(Known::Absent) => None,
            // The object's row may have been removed from the index.
            Some(Known::Found(_)) | None => match self.find(dir, name).await {
                Ok((_, object)) => Some(object),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            },
        };
        // Some origins rename an open file instead of removing it, and its directory stays non-empty.
        let unasked = found.as_ref().and_then(|found| self.cache().origin.unasked.end(found.id));
        if let Some(ended) = unasked {
            self.cx.interrupt.unless_raised(ended).await?;
        }
        if let Some(found) = found.as_ref().filter(|_| self.cache().watchers.any()) {
            let _ = self.attr(found, Look::Stat).await;
        }
        Ok(found)
    }

    fn removed(
        &self,
        from: Place<'_>,
        victim: Option<Arc<Object>>,
        removed: Result<Change>,
    ) -> Result<Change> {
        let mut taken = None;
        if let Ok(change) = &removed {
            self.dir_changed(from.change, change, |names: &mut DirNames, seen| {
                let known = if seen == Seen::After { None } else { names.look_up(from.bytes()) };
                taken = known.filter(|known| *known != Known::Absent);
                names.set_absent(from.bytes());
            });
        }
        let may_be_any = taken.is_none() && removed.as_ref().map_or_else(may_be_made, |_| true);
        let names_left = victim.as_ref().map_or(Names::Unknown, |victim| self.names_left(victim, taken));
        self.lost(victim.as_ref(), taken, may_be_any);
        if let Some(object) = victim {
            match &removed {
                Ok(_) => {
                    self.tell_unnamed(&object);
                    self.cache().lost_a_name(object.id, names_left);
                }
                Err(_) => self.tell([Notice::Attributes(node_of(object.id))]),
            }
        }
        self.tell_name(from.dir(), from.name);
        let change = removed.map_err(|error| self.dir_failed(from.dir(), error))?;
        Ok(self.shown_change(from.dir(), change))
    }

    /// Returns [`Names::None`] if a file certainly has no name besides the removed one. `taken` is the target
    /// of the removed name right before the change. Must precede [`View::lost`], which invalidates
    /// attributes.
    fn names_left(&self, found: &Object, taken: Option<Known>) -> Names {
        let is_alone = self.cache().options_of(found).contract == Contract::Exclusive;
        let state = found.state();
        let has_no_other =
            found.file_type == FileType::Directory || (state.asked.is_some() && state.attr.nlink < 2);
        match is_alone && has_no_other && taken == Some(Known::Found(target(found))) {
            true => Names::None,
            false => Names::Unknown,
        }
    }

    /// Marks former targets of a name for revalidation: `found`, looked up before the request, and `taken`,
    /// cached right before the change. With `may_be_any` the target may be any file, so all are marked.
    fn lost(&self, found: Option<&Arc<Object>>, taken: Option<Known>, may_be_any: bool) {
        if let Some(object) = found {
            object.doubt();
        }
        if let Some(Known::Found(target)) = taken
            && found.is_none_or(|found| found.id != target.object)
        {
            match self.cache().object(target.object) {
                Ok(object) => {
                    object.doubt();
                    self.tell([Notice::Attributes(node_of(object.id))]);
                }
                // The row of the target was removed, so its file may be known under another number.
                Err(_) => self.cache().objects.shared.removal.happened(),
            }
        }
        if may_be_any {
            self.cache().objects.shared.removal.happened();
        }
    }
}
