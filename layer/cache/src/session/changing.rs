//! Changes that remove no name: performed at the origin, then recorded in the cache.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{
    AccessMask, Attr, Change, Device, Entry, File, FileType, Made, NameBuf, NewMode, NodeId, Notice,
    OpenFlags, Ownership, SetAttr, WeakAttr, Write, Written,
};
use tombolo_core::{Answer, Error, Identity, Result, or_answer};
use tombolo_host_runtime::to_its_end;
use tombolo_mem::Source;

use super::changes::all_data;
use super::finding::target;
use super::view::View;
use crate::names::{ChangeId, Listed, Names};
use crate::object::Object;
use crate::objects::node_of;
use crate::options::Contract;
use crate::written::is_unanswered;

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
        let resize = || {
            if set.size.is_some() {
                object.state().resized();
            }
        };
        resize();
        let (asked, fs) = (Instant::now(), &self.cache().origin.fs);
        let done = fs.setattr(&self.at_origin(), origin_node, opening, &set).resolve().await;
        resize();
        if set.size.is_some() && done.as_ref().is_err_and(is_unanswered) {
            object.set_unanswered();
        }
        let done = done.map_err(|error| {
            object.doubt();
            self.cache().failed(&object, error)
        });
        let done = done.and_then(|(attr, change)| {
            self.changed_here(&object, &change, &attr, asked, &set)?;
            Ok((attr, change))
        });
        // The cache is updated before the notification, because notified sessions query it.
        self.tell([if set.size.is_some() { all_data(node) } else { Notice::Attributes(node) }]);
        let (attr, change) = done?;
        Ok((object.shown(&attr), self.shown_change(&object, change)))
    }

    /// Records a change of an object's attributes by this cache. Cached names and link targets stay valid if
    /// nobody else has changed the object since the cached version.
    fn changed_here(
        &self,
        object: &Arc<Object>,
        change: &Change,
        attr: &Attr,
        asked: Instant,
        set: &SetAttr,
    ) -> Result<()> {
        // Another client may have changed the object before, within the same tick of the origin's clock.
        let contract = self.cache().options_of(object).contract;
        object.settle(asked, contract);
        let is_alone = contract == Contract::Exclusive;
        let (before, is_known, is_late, is_ours) = {
            let mut state = object.state();
            let (keeps_data, before) = (set.size.is_none(), state.attr);
            let is_late = state.latest.is_some_and(|latest| asked < latest);
            let is_version = change.before.is_some_and(|before| state.is_version(&before, contract));
            let is_ours = keeps_data && !is_late && is_version && state.data.is_none();
            if is_ours {
                state.advance(attr, asked);
                state.asked = Some(asked);
                state.is_suspect = false;
            }
            let is_known = is_ours || (is_alone && state.came.is_some());
            (before, is_known, is_late, is_ours)
        };
        if !is_ours {
            self.cache().learn(object, attr, asked)?;
        }
        match (set.uid.is_some(), before.uid == attr.uid) {
            (true, false) if is_known => self.is_the_superuser_s(object, asked),
            (true, _) => self.is_its_owner_s(object, asked),
            (false, _) if set.mode.is_some() => self.is_its_owner_s(object, asked),
            _ => {}
        }
        match is_late {
            true => object.doubt(),
            false => object.state().changed_here(),
        }
        Ok(())
    }

    pub(super) async fn mkdir(self, parent: NodeId, name: NameBuf, mode: NewMode) -> Result<Made> {
        let (dir, node) = self.dir(parent).await?;
        let (change, fs) = (NameChange::begin(&dir, &[&name]), &self.cache().origin.fs);
        let made = fs.mkdir(&self.at_origin(), node, name.as_name(), mode).resolve().await;
        let made = self.made(&change, &name, made).await?;
        if let Ok(new) = self.object(made.entry.node) {
            self.has_no_names(&new, change.asked);
            self.is_its_owner_s(&new, change.asked);
        }
        Ok(made)
    }

    /// Marks a directory made at `asked` as empty under *exclusive*, where all changes are made through this
    /// cache.
    fn has_no_names(&self, dir: &Arc<Object>, asked: Instant) {
        let contract = self.cache().options_of(dir).contract;
        {
            let mut state = dir.state();
            // Since the directory has its name, another request may have created a name in it.
            let is_changed =
                state.changed.is_some_and(|changed| changed > asked) || !state.names.changes.is_empty();
            if contract != Contract::Exclusive || is_changed || state.names.is_complete() {
                return;
            }
            state.names.set_all(&Listed::default());
            state.listed = Some(asked);
            state.is_dirty = true;
        }
        self.cache().keep(dir);
    }

    /// Derives the user's permissions from the mode, if the user owns the object. A successful create or
    /// chmod shows that the origin treats the user as the owner.
    pub(super) fn is_its_owner_s(&self, object: &Arc<Object>, asked: Instant) {
        if object.state().attr.uid == self.cx.identity.uid {
            self.has_rights_of(&self.cx.identity, object, asked);
        }
    }

    /// Caches the superuser's permissions for a user that has changed the owner, as only the superuser may.
    fn is_the_superuser_s(&self, object: &Arc<Object>, asked: Instant) {
        self.has_rights_of(&Identity::ROOT, object, asked);
    }

    fn has_rights_of(&self, user: &Identity, object: &Arc<Object>, asked: Instant) {
        let all = AccessMask::READ | AccessMask::WRITE | AccessMask::EXECUTE;
        let owner = Ownership::from(&object.state().attr);
        let allowed = all.iter().filter(|right| owner.check_mode(user, *right).is_ok()).collect();
        object.grant(&self.cx.identity, all, allowed, asked);
        self.cache().keep(object);
    }

    pub(super) async fn symlink(self, parent: NodeId, name: NameBuf, target: Vec<u8>) -> Result<Made> {
        let (dir, node) = self.dir(parent).await?;
        let (change, fs) = (NameChange::begin(&dir, &[&name]), &self.cache().origin.fs);
        let made = fs.symlink(&self.at_origin(), node, name.as_name(), &target).resolve().await;
        self.made(&change, &name, made).await
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
        let (change, fs) = (NameChange::begin(&dir, &[&name]), &self.cache().origin.fs);
        let made = fs.mknod(&self.at_origin(), node, name.as_name(), file_type, mode, rdev).resolve().await;
        self.made(&change, &name, made).await
    }

    pub(super) async fn link(self, node: NodeId, parent: NodeId, name: NameBuf) -> Result<Made> {
        let object = self.object(node)?;
        let linked = self.node(&object).await?;
        let (dir, node) = self.dir(parent).await?;
        let _linking = Linking::begin(&object);
        let (change, fs) = (NameChange::begin(&dir, &[&name]), &self.cache().origin.fs);
        let made = fs.link(&self.at_origin(), linked, node, name.as_name()).resolve().await;
        // The order of the link and a later answer or local change is unknown.
        let is_late = object.state().latest.is_some_and(|latest| change.asked < latest);
        let made = self.made(&change, &name, made).await;
        match is_late || made.is_err() {
            true => object.doubt(),
            false => object.state().changed_here(),
        }
        if made.is_ok() {
            self.cache().unnamed.remove(object.id);
        }
        self.tell([Notice::Attributes(node_of(object.id))]);
        made
    }

    pub(super) fn write(self, file: File, how: &Write, from: Source) -> Answer<Written> {
        let opening = or_answer!(self.session.openings.made_for(file, OpenFlags::WRITE));
        // An opening for writing always has an origin's opening.
        let Some(origin) = opening.origin() else { return Answer::err(Error::BadOpen) };
        let is_append = opening.flags.contains(OpenFlags::APPEND);
        let range = how.offset..how.offset.saturating_add(from.len() as u64);
        let under_way = self.cache().begin_write(&opening.object, (!is_append).then_some(range));
        let how = Write { by_owner: false, ..*how };
        let (node, offset, len) = (node_of(opening.object.id), how.offset, from.len() as u64);
        let written = origin.fs().write(&self.at_origin(), origin.file, &how, from);
        let ended = move |written: Result<Written>| {
            under_way.end(&written);
            // The offset of an append is known only to the origin.
            let start = if is_append { 0 } else { offset };
            let last = if start == 0 { u64::MAX } else { start.saturating_add(len) };
            self.tell([Notice::Data { node, start, last }]);
            written
                .map(|written| Written { file: self.shown_change(&opening.object, written.file), ..written })
        };
        match written {
            Answer::Done(written) => Answer::Done(ended(written)),
            Answer::Later(written) => to_its_end(async move { ended(written.await) }),
        }
    }

    pub(super) async fn dir(&self, node: NodeId) -> Result<(Arc<Object>, NodeId)> {
        let dir = self.object(node)?;
        let node = self.node(&dir).await?;
        Ok((dir, node))
    }

    async fn made(&self, change: &NameChange, name: &NameBuf, made: Result<Made>) -> Result<Made> {
        let dir = &change.dir;
        let made = made.map_err(|error| {
            self.tell_name(dir, name);
            self.dir_failed(dir, error)
        })?;
        let (entry, object): (Entry, _) = self.met(&made.entry, change.asked).await?;
        self.cache().found_in(&object, dir, name.as_name().as_bytes());
        self.name_made(change, name, &object, &made.dir);
        self.tell_name(dir, name);
        let entry = self.given(entry, &object).await?;
        Ok(Made { entry, dir: self.shown_change(dir, made.dir) })
    }

    /// Records a name created at the origin.
    pub(super) fn name_made(&self, change: &NameChange, name: &NameBuf, object: &Arc<Object>, done: &Change) {
        let name = name.as_name().as_bytes();
        self.dir_changed(change, done, |names, _| names.set(name, target(object)));
        // A concurrent removal may have been performed later, so the file's attributes may be outdated.
        if change.dir.state().names.changes.has_rival(change.id) {
            object.doubt();
        }
    }

    /// Marks a directory for revalidation after a failed change, perhaps made nevertheless. Returns `error`.
    pub(super) fn dir_failed(&self, dir: &Object, error: Error) -> Error {
        in_doubt(dir, &error);
        if matches!(error, Error::Stale) { self.cache().failed(dir, error) } else { error }
    }

    /// Records a change in a directory by this cache. Cached names stay valid if nobody else has changed the
    /// directory since the cached version.
    pub(super) fn dir_changed(
        &self,
        change: &NameChange,
        done: &Change,
        patch: impl FnOnce(&mut Names, Seen),
    ) {
        let dir = &change.dir;
        let contract = self.cache().options_of(dir).contract;
        {
            let mut state = dir.state();
            let is_only_ours = contract == Contract::Exclusive && !state.is_suspect;
            // Within one tick of the origin's clock, two states of the directory may have the same times, so
            // the order of two changes is unknown.
            let is_late = state.latest.is_some_and(|latest| change.asked < latest);
            let ticked =
                done.before.zip(done.after).is_some_and(|(before, after)| before.ctime != after.ctime);
            let is_sure = ticked || !is_late;
            match done {
                Change { before: Some(before), after: Some(after) }
                    if is_sure && state.is_version(before, contract) && after.ctime >= state.attr.ctime =>
                {
                    state.advance(after, change.asked);
                    state.asked = Some(change.asked);
                    state.is_suspect = false;
                    patch(&mut state.names, Seen::Before);
                }
                // Only local changes of other names were made in between.
                Change { after: Some(after), .. }
                    if is_only_ours
                        && !state.names.changes.has_rival(change.id)
                        && (state.names.changes.has_company(change.id)
                            || WeakAttr::from(after) == state.version()) =>
                {
                    match after.ctime.cmp(&state.attr.ctime) {
                        Ordering::Greater => state.advance(after, change.asked),
                        Ordering::Less => state.is_dirty = true,
                        Ordering::Equal if *after == state.attr => {}
                        Ordering::Equal => state.asked = None,
                    }
                    patch(&mut state.names, Seen::Beside);
                }
                // The cached state reflects this change and no later one.
                Change { after: Some(after), .. }
                    if !is_only_ours && ticked && WeakAttr::from(after) == state.version() =>
                {
                    patch(&mut state.names, Seen::After);
                    state.is_dirty = true;
                }
                _ => {
                    state.changed();
                    // With older attributes, an earlier change answered later would count as the last.
                    if let Some(after) = done.after.filter(|after| after.ctime >= state.attr.ctime) {
                        state.set_attr(&after, change.asked);
                    }
                    state.asked = None;
                }
            }
            state.changed_here();
        }
        self.cache().keep(dir);
    }
}

/// A change of names in a directory, registered until it is dropped, after its reply was processed.
pub(super) struct NameChange {
    pub dir: Arc<Object>,
    pub asked: Instant,
    id: ChangeId,
}

impl NameChange {
    /// Registers a change of these names before its request.
    pub(super) fn begin(dir: &Arc<Object>, names: &[&NameBuf]) -> Self {
        let id = dir.state().names.changes.begin(names);
        Self { dir: dir.clone(), asked: Instant::now(), id }
    }

    /// Returns `true` if the cached names are those before the change: the directory's state was known, or
    /// only local changes of other names were made in between.
    pub(super) fn knows_before(&self, done: &Change, contract: Contract) -> bool {
        let state = self.dir.state();
        done.before.is_some_and(|before| state.is_version(&before, contract))
            || (contract == Contract::Exclusive
                && !state.is_suspect
                && !state.names.changes.has_rival(self.id))
    }
}

impl Drop for NameChange {
    fn drop(&mut self) {
        self.dir.state().names.changes.end(self.id);
    }
}

/// A link in progress, during which the file is retained.
struct Linking(Arc<Object>);

impl Linking {
    fn begin(object: &Arc<Object>) -> Self {
        object.state().uses += 1;
        Self(object.clone())
    }
}

impl Drop for Linking {
    fn drop(&mut self) {
        self.0.state().uses -= 1;
    }
}

/// Relation of the cached names to a change being recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// State right before the change.
    Before,
    /// State right after the change.
    After,
    /// State right before or after the change for its own names; others may show local changes before or
    /// since.
    Beside,
}

/// Returns `true` if a failed change may have been made all the same.
pub(super) fn may_be_made(error: &Error) -> bool {
    is_unanswered(error) || matches!(error, Error::Io { .. })
}

/// Marks a directory for revalidation after a change in it has failed with this error.
pub(super) fn in_doubt(dir: &Object, error: &Error) {
    dir.doubt();
    // Names are dropped, as the change might not show in the times, within one tick of the origin's clock.
    if may_be_made(error) {
        dir.state().changed();
    }
}
