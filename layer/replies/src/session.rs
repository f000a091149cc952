//! A session: most changes go through a table of entries, all other operations pass.

use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Change, Create, Created, Device, File, FileSystem, FileType, Made, Name, NameBuf, NewMode, NodeId,
    Op, OpenFlags, Opened, RenameFlags, Renamed, SetAttr, Write, Written,
};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::Source;

use super::LayerState;
use super::appending::Appending;
use super::call::{self, Call, NamedReply, makes, removes};
use super::execution::Execution;
use super::intent::ExpectedEffect;
use super::key::EntryKey;
use super::table::Begin;

/// A session that performs each recorded request once, and answers its duplicates from the outcome.
pub(super) struct Session {
    pub inner: Arc<dyn FileSystem>,
    pub shared: Arc<LayerState>,
    pub appending: Arc<Appending>,
}

impl Session {
    /// Performs `call` exactly once; `plain` if the request has no key, because it is then never repeated.
    #[inline]
    pub fn once<C: Call>(
        &self,
        cx: &Ctx,
        op: Op,
        plain: impl FnOnce() -> Answer<C::Reply>,
        call: impl FnOnce() -> C,
    ) -> Answer<C::Reply> {
        match EntryKey::of(cx, op) {
            None => plain(),
            Some(key) => self.perform_once(cx, key, call()),
        }
    }

    /// Performs a change of one name exactly once.
    #[inline]
    fn named<R: NamedReply>(
        &self,
        cx: &Ctx,
        op: Op,
        (parent, name): (NodeId, Name<'_>),
        effect: impl Fn(NodeId, NameBuf) -> ExpectedEffect + Send + 'static,
        run: impl FnOnce(&dyn FileSystem, &Ctx, Name<'_>) -> Answer<R> + Send + 'static,
    ) -> Answer<R> {
        match EntryKey::of(cx, op) {
            None => run(&*self.inner, cx, name),
            Some(key) => {
                self.perform_once(cx, key, call::Named { parent, name: name.to_owned(), effect, run })
            }
        }
    }

    pub fn perform_once<C: Call>(&self, cx: &Ctx, key: EntryKey, call: C) -> Answer<C::Reply> {
        let execution = Execution { fs: &self.inner, cx };
        let table = self.shared.table_of(&call);
        match table.begin(key) {
            Begin::First(entry) => execution.first(call, entry),
            Begin::Unrecorded => call.run(&*self.inner, cx),
            Begin::Running(pending) => execution.after(call, pending, table.clone(), key),
            Begin::Answered(outcome) => execution.answer_again(call, outcome),
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
        self.once(cx, Op::Setattr, plain, || call::Setattr { node, file, set: *set })
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let plain = || self.inner.create(cx, parent, name, how);
        let call = || call::Create { parent, name: name.to_owned(), how: *how };
        let answer = self.once(cx, Op::Create, plain, call);
        self.appending.watch(how.flags, answer, |created| created.open)
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        let plain = || self.inner.create_unnamed(cx, parent, how);
        let answer = self.once(cx, Op::CreateUnnamed, plain, || call::CreateUnnamed { parent, how: *how });
        self.appending.watch(how.flags, answer, |created| created.open)
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        let effect = makes(FileType::Directory);
        self.named(cx, Op::Mkdir, (parent, name), effect, move |fs, cx, name| {
            fs.mkdir(cx, parent, name, mode)
        })
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        let plain = || self.inner.symlink(cx, parent, name, target);
        self.once(cx, Op::Symlink, plain, || {
            let target: Box<[u8]> = target.into();
            let run =
                move |fs: &dyn FileSystem, cx: &Ctx, name: Name<'_>| fs.symlink(cx, parent, name, &target);
            call::Named { parent, name: name.to_owned(), effect: makes(FileType::Symlink), run }
        })
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
        self.named(cx, Op::Mknod, (parent, name), makes(file_type), move |fs, cx, name| {
            fs.mknod(cx, parent, name, file_type, mode, rdev)
        })
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        let effect = move |parent, name| ExpectedEffect::Links { node, parent, name };
        self.named(cx, Op::Link, (parent, name), effect, move |fs, cx, name| fs.link(cx, node, parent, name))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.named(cx, Op::Unlink, (parent, name), removes, move |fs, cx, name| fs.unlink(cx, parent, name))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.named(cx, Op::Rmdir, (parent, name), removes, move |fs, cx, name| fs.rmdir(cx, parent, name))
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
        self.once(cx, Op::Rename, plain, || {
            let (from, to) = (from.to_owned(), to.to_owned());
            call::Rename { from_parent, from, to_parent, to, flags }
        })
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let how = *how;
        let Some(stability) = self.appending.stability(file.open).filter(|_| !how.in_place) else {
            return match EntryKey::of_repeatable(cx, Op::Write) {
                None => self.inner.write(cx, file, &how, from),
                Some(key) => self.perform_once(cx, key, call::Write { file, how, from }),
            };
        };
        match EntryKey::of(cx, Op::Write) {
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
