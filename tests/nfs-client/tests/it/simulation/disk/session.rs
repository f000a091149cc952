use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Change, Create, Created, File, FileSystem, Name, NodeId, OpenFlags, Opened, SetAttr, SyncScope,
    Write, Written,
};
use tombolo_core::{Answer, Ctx, Stability};
use tombolo_mem::Source;

use super::{Shared, Step};

/// A session on the disk. Memory answers at once, so an operation and its record are atomic.
pub(super) struct Session {
    pub(super) inner: Arc<dyn FileSystem>,
    pub(super) shared: Arc<Shared>,
}

impl Session {
    fn was_cut(&self, node: NodeId, size: u64) {
        self.shared.after(node, || Step::Size(size as usize));
    }
}

impl FileSystem for Session {
    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        if how.stability == Stability::Unstable
            && let Err(error) = self.shared.before_unstable(file.node)
        {
            return Answer::err(error);
        }
        let bytes = from.to_vec(usize::MAX);
        let mut written = match self.inner.write(cx, file, how, from).wait() {
            Ok(written) => written,
            Err(error) => return Answer::err(error),
        };
        self.shared.after(file.node, || Step::Write {
            offset: how.offset as usize,
            bytes: bytes[..written.count].to_vec(),
            is_stable: how.stability > Stability::Unstable,
        });
        written.stability = how.stability;
        Answer::ok(written)
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
        self.shared.is_settled(file.node);
        self.inner.fsync(cx, file, what)
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.shared.all_are_settled();
        self.inner.syncfs(cx)
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let answer = self.inner.setattr(cx, node, file, set);
        if let (Some(size), Answer::Done(Ok(_))) = (set.size, &answer) {
            self.was_cut(node, size);
        }
        answer
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let answer = self.inner.open(cx, node, flags);
        if flags.contains(OpenFlags::TRUNCATE) && matches!(answer, Answer::Done(Ok(_))) {
            self.was_cut(node, 0);
        }
        answer
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let answer = self.inner.create(cx, parent, name, how);
        if let (true, Answer::Done(Ok(created))) = (how.flags.contains(OpenFlags::TRUNCATE), &answer) {
            self.was_cut(created.entry.node, 0);
        }
        answer
    }

    tombolo_core::forward!(to self.inner;
        profile lookup forget getattr access readlink create_unnamed mkdir symlink mknod link unlink rmdir rename release flush read
        readdir statfs persistent_handles
    );
}
