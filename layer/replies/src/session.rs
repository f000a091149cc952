//! A session: most changes go through the table, all other operations pass.

use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Change, Create, Created, Device, File, FileSystem, FileType, Made, Name, NewMode, NodeId,
    OpenFlags, Opened, RenameFlags, Renamed, SetAttr, Write, Written,
};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::Source;

use super::LayerState;
use super::appending::Appending;
use super::call::{self, Call};
use super::execution::Execution;
use super::key::EntryKey;
use super::table::Begin;

/// A session that performs each recorded request once, and answers its duplicates from the outcome.
pub(super) struct Session {
    pub inner: Arc<dyn FileSystem>,
    pub shared: Arc<LayerState>,
    pub appending: Arc<Appending>,
}

impl Session {
    /// Performs an operation exactly once: `plain` if the request is never repeated, else `call`.
    #[inline]
    pub fn once<C: Call>(
        &self,
        cx: &Ctx,
        plain: impl FnOnce() -> Answer<C::Reply>,
        call: impl FnOnce() -> C,
    ) -> Answer<C::Reply> {
        match EntryKey::of(cx, C::OP) {
            None => plain(),
            Some(key) => self.perform_once(cx, key, call()),
        }
    }

    fn perform_once<C: Call>(&self, cx: &Ctx, key: EntryKey, call: C) -> Answer<C::Reply> {
        let execution = Execution { fs: &self.inner, cx };
        let table = self.shared.table_of(&call);
        match table.begin(key) {
            Begin::First(entry) => execution.first(call, entry),
            Begin::Unrecorded => call.run(&*self.inner, cx),
            Begin::Running(pending) => execution.after(call, pending, table.clone(), key),
            Begin::Answered(outcome) => execution.again(call, outcome),
        }
    }
}

impl FileSystem for Session {
    tombolo_core::forward!(to self.inner;
        profile lookup forget getattr access readlink flush is_prompt fsync read readdir statfs syncfs
    );

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.appending.watch(flags, self.inner.open(cx, node, flags), |opened| opened.open)
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.appending.remove(file.open);
        self.inner.release(cx, file);
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let plain = || self.inner.setattr(cx, node, file, set);
        self.once(cx, plain, || call::Setattr { node, file, set: *set })
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let plain = || self.inner.create(cx, parent, name, how);
        let answer = self.once(cx, plain, || call::Create { parent, name: name.to_owned(), how: *how });
        self.appending.watch(how.flags, answer, |created| created.open)
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        let plain = || self.inner.create_unnamed(cx, parent, how);
        let answer = self.once(cx, plain, || call::CreateUnnamed { parent, how: *how });
        self.appending.watch(how.flags, answer, |created| created.open)
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        let plain = || self.inner.mkdir(cx, parent, name, mode);
        self.once(cx, plain, || call::Mkdir { parent, name: name.to_owned(), mode })
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        let plain = || self.inner.symlink(cx, parent, name, target);
        self.once(cx, plain, || call::Symlink { parent, name: name.to_owned(), target: target.into() })
    }

    fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Answer<Made> {
        let plain = || self.inner.mknod(cx, parent, name, file_type, mode, rdev);
        self.once(cx, plain, || call::Mknod { parent, name: name.to_owned(), file_type, mode, rdev })
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        let plain = || self.inner.link(cx, node, parent, name);
        self.once(cx, plain, || call::Link { node, parent, name: name.to_owned() })
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        let plain = || self.inner.unlink(cx, parent, name);
        self.once(cx, plain, || call::Unlink { parent, name: name.to_owned() })
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        let plain = || self.inner.rmdir(cx, parent, name);
        self.once(cx, plain, || call::Rmdir { parent, name: name.to_owned() })
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        let plain = || self.inner.rename(cx, from_parent, from, to_parent, to, flags);
        self.once(cx, plain, || call::Rename {
            from_parent,
            from: from.to_owned(),
            to_parent,
            to: to.to_owned(),
            flags,
        })
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let how = *how;
        let Some(stability) = self.appending.stability(file.open).filter(|_| !how.in_place) else {
            return match EntryKey::of_repeatable(cx, call::Write::OP) {
                None => self.inner.write(cx, file, &how, from),
                Some(key) => self.perform_once(cx, key, call::Write { file, how, from }),
            };
        };
        match EntryKey::of(cx, call::Append::OP) {
            None => self.inner.write(cx, file, &how, from),
            Some(key) => {
                let (stability, append_locks) =
                    (stability.max(how.stability), self.shared.append_locks.clone());
                self.perform_once(cx, key, call::Append { file, how, from, stability, append_locks })
            }
        }
    }

    tombolo_core::forward!(offer self.inner; xattrs locks ranges descriptors);
    tombolo_core::forward!(to self.inner; persistent_handles changes versions lending);
}
