//! Answers everything later, after a time: the pending path, on purpose.
//!
//! The operation begins when its time is over, so until then its buffers are in use and nothing has happened. An
//! interrupt that is raised meanwhile ends it with `Interrupted`, undone. `forget` and `release`, which no caller waits
//! for, pass at once.

mod timer;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tombolo_core::fs::{
    AccessMask, AllocateMode, Attr, Change, Changes, Client, Cookie, Create, Created, Device, DirPage, Entry,
    Export, File, FileSystem, FileType, Lock, LockFamily, LockOwner, LockRange, Locks, Made, Name, NewMode,
    NodeId, OpenFlags, Opened, PersistentHandle, PersistentHandles, Profile, Ranges, ReadDone, RenameFlags,
    Renamed, SetAttr, StatFs, SyncWhat, Versions, Volume, Whence, Write, Written, XattrName, XattrSet,
    Xattrs,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::{Sink, Source};

use timer::Timer;

/// An export whose answers take their time.
pub struct Delay {
    inner: Arc<dyn Export>,
    timer: Arc<Timer>,
    time: Duration,
}

/// `inner`, each of whose answers comes `time` later. Starts a thread that keeps the time; fails when there can be none.
pub fn over(inner: Arc<dyn Export>, time: Duration) -> io::Result<Delay> {
    Ok(Delay { inner, timer: Timer::start()?, time })
}

impl Export for Delay {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let inner = self.inner.attach(client)?;
        Ok(Arc::new(Delayed { inner, timer: self.timer.clone(), time: self.time }))
    }
}

/// One session of a [`Delay`].
struct Delayed {
    inner: Arc<dyn FileSystem>,
    timer: Arc<Timer>,
    time: Duration,
}

impl Delayed {
    /// Performs `call` once the time is over, unless the request was interrupted by then.
    fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let (inner, cx) = (self.inner.clone(), cx.clone());
        let sleep = self.timer.sleep(self.time);
        Answer::later(async move {
            let (mut sleep, mut raised) = (pin!(sleep), pin!(cx.interrupt.raised()));
            let interrupted = poll_fn(|context| {
                if raised.as_mut().poll(context).is_ready() {
                    return Poll::Ready(true);
                }
                sleep.as_mut().poll(context).map(|()| false)
            });
            if interrupted.await {
                return Err(Error::Interrupted);
            }
            call(&*inner, &cx).resolve().await
        })
    }
}

impl FileSystem for Delayed {
    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.lookup(cx, parent, name.as_name()))
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.inner.forget(cx, look_ups);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.later(cx, move |fs, cx| fs.getattr(cx, node, file))
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let set = *set;
        self.later(cx, move |fs, cx| fs.setattr(cx, node, file, &set))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.access(cx, node, mask))
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.later(cx, move |fs, cx| fs.readlink(cx, node))
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let (name, how) = (name.to_owned(), *how);
        self.later(cx, move |fs, cx| fs.create(cx, parent, name.as_name(), &how))
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        let how = *how;
        self.later(cx, move |fs, cx| fs.create_unnamed(cx, parent, &how))
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.mkdir(cx, parent, name.as_name(), mode))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        let (name, target) = (name.to_owned(), target.to_vec());
        self.later(cx, move |fs, cx| fs.symlink(cx, parent, name.as_name(), &target))
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
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.mknod(cx, parent, name.as_name(), file_type, mode, rdev))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.link(cx, node, parent, name.as_name()))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.unlink(cx, parent, name.as_name()))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.rmdir(cx, parent, name.as_name()))
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
        let (from, to) = (from.to_owned(), to.to_owned());
        self.later(cx, move |fs, cx| {
            fs.rename(cx, from_parent, from.as_name(), to_parent, to.as_name(), flags)
        })
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.later(cx, move |fs, cx| fs.open(cx, node, flags))
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.inner.release(cx, file);
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.flush(cx, file, owner))
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncWhat) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.fsync(cx, file, what))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.later(cx, move |fs, cx| fs.read(cx, file, offset, into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let how = *how;
        self.later(cx, move |fs, cx| fs.write(cx, file, &how, from))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.later(cx, move |fs, cx| fs.readdir(cx, file, cookie, page))
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.later(cx, move |fs, cx| fs.statfs(cx, node))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.syncfs(cx))
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

    // Not a call to be counted, delayed or refused: it pends until something happens.
    fn changes(&self) -> Option<&dyn Changes> {
        self.inner.changes()
    }

    fn versions(&self) -> Option<&dyn Versions> {
        self.inner.versions()
    }
}

/// A name that was checked when the request came in.
fn checked(name: &[u8]) -> Result<XattrName<'_>> {
    XattrName::new(name).map_err(Error::from)
}

/// A call of a group that may be missing.
fn within<G: ?Sized, T>(group: Option<&G>, call: impl FnOnce(&G) -> Answer<T>) -> Answer<T> {
    group.map_or_else(|| Answer::err(Error::NotSupported), call)
}

impl Xattrs for Delayed {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        let name = name.as_bytes().to_vec();
        self.later(cx, move |fs, cx| match checked(&name) {
            Ok(name) => within(fs.xattrs(), |xattrs| xattrs.get(cx, node, name, limit_bytes)),
            Err(error) => Answer::err(error),
        })
    }

    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()> {
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.later(cx, move |fs, cx| match checked(&name) {
            Ok(name) => within(fs.xattrs(), |xattrs| xattrs.set(cx, node, name, &value, how, kill_set_gid)),
            Err(error) => Answer::err(error),
        })
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.later(cx, move |fs, cx| within(fs.xattrs(), |xattrs| xattrs.list(cx, node, limit_bytes)))
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        let name = name.as_bytes().to_vec();
        self.later(cx, move |fs, cx| match checked(&name) {
            Ok(name) => within(fs.xattrs(), |xattrs| xattrs.remove(cx, node, name)),
            Err(error) => Answer::err(error),
        })
    }
}

impl Locks for Delayed {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        let lock = *lock;
        self.later(cx, move |fs, cx| within(fs.locks(), |locks| locks.test(cx, file, &lock)))
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let lock = *lock;
        self.later(cx, move |fs, cx| within(fs.locks(), |locks| locks.lock(cx, file, &lock, wait)))
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        self.later(cx, move |fs, cx| within(fs.locks(), |locks| locks.unlock(cx, file, family, range, owner)))
    }
}

impl PersistentHandles for Delayed {
    fn volume(&self) -> Volume {
        self.inner.persistent_handles().map(|handles| handles.volume()).unwrap_or_default()
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.handle_of(cx, node)))
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let handle = handle.clone();
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.resolve(cx, &handle)))
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.parent(cx, node)))
    }

    fn again(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.again(cx, node)))
    }
}

impl Ranges for Delayed {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.later(cx, move |fs, cx| {
            within(fs.ranges(), |ranges| ranges.allocate(cx, file, offset, len, mode))
        })
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        self.later(cx, move |fs, cx| within(fs.ranges(), |ranges| ranges.seek(cx, file, offset, whence)))
    }

    fn copy(
        &self,
        cx: &Ctx,
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        len: u64,
    ) -> Answer<u64> {
        self.later(cx, move |fs, cx| {
            within(fs.ranges(), |ranges| ranges.copy(cx, from, from_offset, to, to_offset, len))
        })
    }
}
