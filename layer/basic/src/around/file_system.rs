use tombolo_core::fs::{
    AccessMask, File, FileSystem, Locks, NodeId, OpenFlags, Opened, PersistentHandles, Profile, Ranges,
    ReadDone, Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::{Sink, Source};

use super::{Around, Call, Layered, Payload};
use tombolo_core::fs::Op;

impl<A: Around> Layered<dyn FileSystem, A> {
    #[inline]
    fn call<T: Payload>(&self, op: Op, call: impl FnOnce(&dyn FileSystem) -> Answer<T>) -> Answer<T> {
        self.around.around(Call::of(op), || call(&*self.inner))
    }
}

impl<A: Around> FileSystem for Layered<dyn FileSystem, A> {
    tombolo_core::forward!(through self.call;
        lookup getattr setattr readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename flush fsync readdir statfs syncfs
    );

    fn profile(&self) -> Profile {
        self.around.profile(self.inner.profile())
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.around.unanswered(Op::Forget, || self.inner.forget(cx, look_ups));
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        let call = Call { op: Op::Access, mutates: mask.contains(AccessMask::WRITE) };
        self.around.around(call, || self.inner.access(cx, node, mask))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let mutates = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        self.around.around(Call { op: Op::Open, mutates }, || self.inner.open(cx, node, flags))
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.around.unanswered(Op::Release, || self.inner.release(cx, file));
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, mut into: Sink) -> Answer<ReadDone> {
        let limit = self.around.transfer_limit(Op::Read, into.len());
        into.truncate(limit);
        self.around.around(Call::of(Op::Read), || self.inner.read(cx, file, offset, into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, mut from: Source) -> Answer<Written> {
        let limit = self.around.transfer_limit(Op::Write, from.len());
        from.truncate(limit);
        self.around.around(Call::of(Op::Write), || self.inner.write(cx, file, how, from))
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.inner.xattrs().map(|_| self as &dyn Xattrs)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.inner.locks().map(|_| self as &dyn Locks)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.inner.persistent_handles().map(|_| self as &dyn PersistentHandles)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.inner.ranges().map(|_| self as &dyn Ranges)
    }
}
