//! Changes: performed at the origin, and then known here.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{
    Attr, Change, Device, Entry, File, FileType, Made, NameBuf, NewMode, NodeId, Notice, OpenFlags,
    RenameFlags, Renamed, SetAttr, WeakAttr, Write, Written,
};
use tombolo_core::{Answer, Error, Result};
use tombolo_mem::Source;

use super::changes::all_data;
use super::finding::target;
use super::view::View;
use crate::names::{Known, Names};
use crate::object::{Look, Object};
use crate::objects::node_of;

impl View {
    pub(super) async fn setattr(
        self,
        node: NodeId,
        file: Option<File>,
        set: SetAttr,
    ) -> Result<(Attr, Change)> {
        let object = self.through(node, file)?;
        let origin_node = self.node(&object).await?;
        let opening = file.and_then(|file| self.session.openings.of(file).ok()?.origin());
        let opening = opening.as_ref().map(|opening| opening.file);
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let done = fs.setattr(&self.at_origin(), origin_node, opening, &set).resolve().await;
        let done = done.map_err(|error| self.cache().failed(&object, error));
        let done = done.and_then(|(attr, change)| {
            let keeps_data = set.size.is_none();
            self.changed_here(&object, &change, &attr, asked, keeps_data)?;
            Ok((attr, change))
        });
        // After it is known here: those that are told look again.
        self.tell([if set.size.is_some() { all_data(node) } else { Notice::Attributes(node) }]);
        let (attr, change) = done?;
        Ok((object.shown(&attr), self.shown_change(&object, change)))
    }

    /// A change of ours to an object's attributes. What is here of its data and names goes on to be good, if nobody else has changed it
    /// since it came.
    fn changed_here(
        &self,
        object: &Arc<Object>,
        change: &Change,
        attr: &Attr,
        asked: Instant,
        keeps_data: bool,
    ) -> Result<()> {
        let is_ours = {
            let mut state = object.state();
            let is_late = state.latest.is_some_and(|latest| asked < latest);
            let is_ours =
                keeps_data && !is_late && change.before == Some(state.version()) && state.data.is_none();
            if is_ours {
                state.attr = *attr;
                state.asked = Some(asked);
            }
            is_ours
        };
        if is_ours {
            object.state().changed_here();
            return Ok(());
        }
        let is_late = object.has_learnt_since(asked);
        self.cache().learn(object, attr, asked)?;
        match is_late {
            true => object.doubt(),
            false => object.state().changed_here(),
        }
        Ok(())
    }

    pub(super) async fn mkdir(self, parent: NodeId, name: NameBuf, mode: NewMode) -> Result<Made> {
        let (dir, node) = self.dir(parent).await?;
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let made = fs.mkdir(&self.at_origin(), node, name.as_name(), mode).resolve().await;
        self.made(&dir, &name, made, asked).await
    }

    pub(super) async fn symlink(self, parent: NodeId, name: NameBuf, target: Vec<u8>) -> Result<Made> {
        let (dir, node) = self.dir(parent).await?;
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let made = fs.symlink(&self.at_origin(), node, name.as_name(), &target).resolve().await;
        self.made(&dir, &name, made, asked).await
    }

    pub(super) async fn mknod(
        self,
        parent: NodeId,
        name: NameBuf,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Result<Made> {
        let (dir, node) = self.dir(parent).await?;
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let made = fs.mknod(&self.at_origin(), node, name.as_name(), file_type, mode, rdev).resolve().await;
        self.made(&dir, &name, made, asked).await
    }

    pub(super) async fn link(self, node: NodeId, parent: NodeId, name: NameBuf) -> Result<Made> {
        let object = self.object(node)?;
        let linked = self.node(&object).await?;
        let (dir, node) = self.dir(parent).await?;
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let made = fs.link(&self.at_origin(), linked, node, name.as_name()).resolve().await;
        let is_late = object.has_learnt_since(asked);
        let made = self.made(&dir, &name, made, asked).await;
        match is_late || made.is_err() {
            true => object.doubt(),
            false => object.state().changed_here(),
        }
        self.tell([Notice::Attributes(node_of(object.id))]);
        made
    }

    pub(super) async fn unlink(self, parent: NodeId, name: NameBuf) -> Result<Change> {
        let (dir, node) = self.dir(parent).await?;
        let victim = self.victim(&dir, &name).await;
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let removed = fs.unlink(&self.at_origin(), node, name.as_name()).resolve().await;
        self.removed(&dir, &name, victim, removed, asked)
    }

    pub(super) async fn rmdir(self, parent: NodeId, name: NameBuf) -> Result<Change> {
        let (dir, node) = self.dir(parent).await?;
        let victim = self.victim(&dir, &name).await;
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let removed = fs.rmdir(&self.at_origin(), node, name.as_name()).resolve().await;
        self.removed(&dir, &name, victim, removed, asked)
    }

    pub(super) async fn rename(
        self,
        (from_parent, from): (NodeId, NameBuf),
        (to_parent, to): (NodeId, NameBuf),
        flags: RenameFlags,
    ) -> Result<Renamed> {
        let (from_dir, from_node) = self.dir(from_parent).await?;
        let (to_dir, to_node) = self.dir(to_parent).await?;
        let (moved, replaced) = (self.victim(&from_dir, &from).await, self.victim(&to_dir, &to).await);
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let renamed = fs
            .rename(&self.at_origin(), from_node, from.as_name(), to_node, to.as_name(), flags)
            .resolve()
            .await;
        let renamed = match renamed {
            Ok(renamed) => renamed,
            Err(error) => {
                moved.iter().chain(&replaced).for_each(|object| object.doubt());
                self.tell_name(&from_dir, &from);
                self.tell_name(&to_dir, &to);
                in_doubt(&to_dir, &error);
                return Err(self.dir_failed(&from_dir, error));
            }
        };
        if let Some(moved) = &moved {
            moved.doubt();
            self.cache().found_in(moved, &to_dir, to.as_name().as_bytes());
        }
        if let Some(replaced) = &replaced {
            replaced.doubt();
        }
        self.tell(moved.iter().map(|moved| Notice::Attributes(node_of(moved.id))));
        match &replaced {
            Some(replaced) if flags.contains(RenameFlags::EXCHANGE) => {
                self.tell([Notice::Attributes(node_of(replaced.id))]);
            }
            Some(replaced) => self.tell_unnamed(replaced),
            None => {}
        }
        let (old, new) = (&from, &to);
        let (from, to) = (from.as_name().as_bytes(), to.as_name().as_bytes());
        // Two names of one file both stay (rename(2)).
        let stays = |moved: &Arc<Object>| replaced.as_ref().is_some_and(|replaced| replaced.id == moved.id);
        match moved {
            Some(moved) if stays(&moved) => {
                self.dir_changed(&from_dir, &renamed.from_dir, asked, |_| {});
                self.dir_changed(&to_dir, &renamed.to_dir, asked, |_| {});
            }
            Some(moved) if flags.is_empty() || flags == RenameFlags::NO_REPLACE => {
                let moved = target(&moved);
                if from_dir.id == to_dir.id {
                    self.dir_changed(&to_dir, &renamed.to_dir, asked, |names| {
                        names.set_absent(from);
                        names.set(to, moved);
                    });
                } else {
                    self.dir_changed(&from_dir, &renamed.from_dir, asked, |names| names.set_absent(from));
                    self.dir_changed(&to_dir, &renamed.to_dir, asked, |names| names.set(to, moved));
                }
            }
            _ => {
                if let Some(replaced) = replaced.filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
                    self.cache().found_in(&replaced, &from_dir, from);
                }
                self.dir_changed(&from_dir, &renamed.from_dir, asked, Names::drop_all);
                self.dir_changed(&to_dir, &renamed.to_dir, asked, Names::drop_all);
            }
        }
        self.tell_name(&from_dir, old);
        self.tell_name(&to_dir, new);
        Ok(Renamed {
            from_dir: self.shown_change(&from_dir, renamed.from_dir),
            to_dir: self.shown_change(&to_dir, renamed.to_dir),
        })
    }

    pub(super) fn write(self, file: File, how: &Write, from: Source) -> Answer<Written> {
        let opening = match self.session.openings.made_for(file, OpenFlags::WRITE) {
            Ok(opening) => opening,
            Err(error) => return Answer::err(error),
        };
        // An opening for writing has always been made at the origin.
        let Some(origin) = opening.origin() else { return Answer::err(Error::BadOpen) };
        opening.object.state().changed();
        let how = Write { by_owner: false, ..*how };
        let (node, offset, len) = (node_of(opening.object.id), how.offset, from.len() as u64);
        let written = origin.fs().write(&self.at_origin(), origin.file, &how, from);
        written.map_result(move |written| {
            // Where an append has gone only the answer says, if anything does.
            let start = if opening.flags.contains(OpenFlags::APPEND) { 0 } else { offset };
            let last = if start == 0 { u64::MAX } else { start.saturating_add(len) };
            self.tell([Notice::Data { node, start, last }]);
            written
                .map(|written| Written { file: self.shown_change(&opening.object, written.file), ..written })
        })
    }

    async fn dir(&self, node: NodeId) -> Result<(Arc<Object>, NodeId)> {
        let dir = self.object(node)?;
        let node = self.node(&dir).await?;
        Ok((dir, node))
    }

    /// What stands under a name that a change is about to take away, looked for if that is not known: its attributes change with it. Where
    /// others are to be told of the change, they are asked for first: how many names it has.
    async fn victim(&self, dir: &Arc<Object>, name: &NameBuf) -> Option<Arc<Object>> {
        let known = dir.state().names.look_up(name.as_name().as_bytes());
        let found = match known {
            Some(Known::Found(target)) => self.cache().object(target.object).ok()?,
            Some(Known::Absent) => return None,
            // If there is none the change itself fails.
            None => self.find(dir, name).await.ok()?.1,
        };
        if self.cache().watchers.any() {
            let _ = self.attr(&found, Look::Stat).await;
        }
        Some(found)
    }

    async fn made(
        &self,
        dir: &Arc<Object>,
        name: &NameBuf,
        made: Result<Made>,
        asked: Instant,
    ) -> Result<Made> {
        let made = made.map_err(|error| {
            self.tell_name(dir, name);
            self.dir_failed(dir, error)
        })?;
        let (entry, object): (Entry, _) = self.met(&made.entry, asked).await?;
        self.cache().found_in(&object, dir, name.as_name().as_bytes());
        self.dir_changed(dir, &made.dir, asked, |names| {
            names.set(name.as_name().as_bytes(), target(&object))
        });
        self.tell_name(dir, name);
        let entry = self.given(entry, &object).await?;
        Ok(Made { entry, dir: self.shown_change(dir, made.dir) })
    }

    fn removed(
        &self,
        dir: &Arc<Object>,
        name: &NameBuf,
        victim: Option<Arc<Object>>,
        removed: Result<Change>,
        asked: Instant,
    ) -> Result<Change> {
        if let Some(object) = victim {
            object.doubt();
            match &removed {
                Ok(_) => self.tell_unnamed(&object),
                Err(_) => self.tell([Notice::Attributes(node_of(object.id))]),
            }
        }
        if let Ok(change) = &removed {
            self.dir_changed(dir, change, asked, |names| names.set_absent(name.as_name().as_bytes()));
        }
        self.tell_name(dir, name);
        let change = removed.map_err(|error| self.dir_failed(dir, error))?;
        Ok(self.shown_change(dir, change))
    }

    /// A change in a directory has failed: what is known of its names may be wrong.
    pub(super) fn dir_failed(&self, dir: &Object, error: Error) -> Error {
        in_doubt(dir, &error);
        if matches!(error, Error::Stale) { self.cache().failed(dir, error) } else { error }
    }

    /// A change of ours in a directory. Names that were known go on to be, if nobody else has changed it since they came.
    pub(super) fn dir_changed(
        &self,
        dir: &Arc<Object>,
        change: &Change,
        asked: Instant,
        patch: impl FnOnce(&mut Names),
    ) {
        {
            let mut state = dir.state();
            // Within a tick of the origin's clock one state may look like another: nobody knows then which of two changes came last.
            let is_late = state.latest.is_some_and(|latest| asked < latest);
            let ticked =
                change.before.zip(change.after).is_some_and(|(before, after)| before.ctime != after.ctime);
            let is_sure = ticked || !is_late;
            match change {
                Change { before: Some(before), after: Some(after) }
                    if is_sure && *before == state.version() =>
                {
                    state.attr = *after;
                    state.asked = Some(asked);
                    patch(&mut state.names);
                    state.is_dirty = true;
                }
                // What was learnt meanwhile came after this change, and no other.
                Change { after: Some(after), .. } if is_sure && WeakAttr::from(after) == state.version() => {
                    patch(&mut state.names);
                    state.is_dirty = true;
                }
                _ => {
                    state.changed();
                    // So that a change which came before this one, and is answered after it, is not taken for the last.
                    if let Some(after) = change.after.filter(|after| after.ctime >= state.attr.ctime) {
                        state.attr = after;
                    }
                    state.asked = None;
                }
            }
            state.changed_here();
        }
        self.cache().keep(dir);
    }
}

fn in_doubt(dir: &Object, error: &Error) {
    dir.doubt();
    // It may have been made all the same, and within a tick of the origin's clock that would not show.
    if matches!(error, Error::TimedOut | Error::Interrupted | Error::Disconnected | Error::Io { .. }) {
        dir.state().changed();
    }
}
