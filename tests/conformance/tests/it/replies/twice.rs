//! Sends every change twice, as a client does that did not hear the first answer, and insists that both answers say the same.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tombolo_core::fs::{
    AllocateMode, Attr, Change, Changes, Client, Create, Created, Device, Entry, Export, File, FileSystem,
    FileType, Lock, LockFamily, LockOwner, LockRange, Locks, Made, Name, NewMode, NodeId, PersistentHandles,
    Profile, Ranges, RenameFlags, Renamed, SetAttr, Versions, Whence, Write, Written, XattrName, XattrSet,
    Xattrs,
};
use tombolo_core::{Answer, Ctx, Error, KeyProperties, RequestKey, Result};
use tombolo_mem::Source;

pub struct Twice(pub Arc<dyn Export>);

struct Session(Arc<dyn FileSystem>);

impl Export for Twice {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session(self.0.attach(client)?)))
    }
}

/// What must be the same in both answers, and what the second one holds.
trait Reply: Debug + Send + 'static {
    fn same(&self, other: &Self) -> bool;
    fn give_back(&self, _fs: &dyn FileSystem, _cx: &Ctx) {}
}

impl Reply for () {
    fn same(&self, _: &Self) -> bool {
        true
    }
}

impl Reply for Change {
    fn same(&self, other: &Self) -> bool {
        self.after.is_some() == other.after.is_some()
    }
}

impl Reply for Renamed {
    fn same(&self, other: &Self) -> bool {
        self.from_dir.same(&other.from_dir) && self.to_dir.same(&other.to_dir)
    }
}

impl Reply for Written {
    fn same(&self, other: &Self) -> bool {
        (self.count, self.stability) == (other.count, other.stability) && self.file.same(&other.file)
    }
}

impl Reply for (Attr, Change) {
    fn same(&self, other: &Self) -> bool {
        self.0 == other.0 && self.1.same(&other.1)
    }
}

impl Reply for Made {
    fn same(&self, other: &Self) -> bool {
        self.entry.attr == other.entry.attr && self.dir.same(&other.dir)
    }

    fn give_back(&self, fs: &dyn FileSystem, cx: &Ctx) {
        fs.forget(cx, &[(self.entry.node, 1)]);
    }
}

impl Reply for Created {
    fn same(&self, other: &Self) -> bool {
        let what =
            |entry: &Entry| (entry.attr.fsid, entry.attr.fileid, entry.attr.generation, entry.attr.size);
        what(&self.entry) == what(&other.entry) && self.dir.same(&other.dir)
    }

    fn give_back(&self, fs: &dyn FileSystem, cx: &Ctx) {
        fs.release(cx, File { node: self.entry.node, open: self.open });
        fs.forget(cx, &[(self.entry.node, 1)]);
    }
}

/// Whether an error says "try again": then the second is performed, whatever comes of it.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::WouldBlock | Error::Busy | Error::Interrupted | Error::TimedOut)
}

fn settle<R: Reply>(fs: &dyn FileSystem, cx: &Ctx, first: Result<R>, second: &Result<R>) -> Result<R> {
    match (&first, second) {
        (Ok(one), Ok(other)) => {
            assert!(one.same(other), "answered {one:?}, and the second time {other:?}");
            other.give_back(fs, cx);
        }
        (Err(error), _) if is_passing(error) => {}
        (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
        _ => panic!("answered {first:?}, and the second time {second:?}"),
    }
    first
}

impl Session {
    fn twice<R: Reply>(&self, cx: &Ctx, send: impl Fn(&Ctx) -> Answer<R>) -> Answer<R> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let properties = KeyProperties::empty();
        let key =
            RequestKey { client: 1.into(), key: NEXT.fetch_add(1, Ordering::Relaxed).into(), properties };
        let keyed = Ctx { key: Some(key), ..cx.clone() };
        // Where the first answers later, the second comes while it is under way.
        let (first, second) = (send(&keyed), send(&keyed));
        let (fs, cx) = (self.0.clone(), cx.clone());
        match (first, second) {
            (Answer::Done(first), Answer::Done(second)) => settle(&*fs, &cx, first, &second).into(),
            (first, second) => Answer::later(async move {
                let first = first.resolve().await;
                let second = second.resolve().await;
                settle(&*fs, &cx, first, &second)
            }),
        }
    }
}

macro_rules! twice {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)+) => {
        $(fn $name(&self, cx: &Ctx, $($argument: $kind),*) -> Answer<$answer> {
            self.twice(cx, |cx| self.0.$name(cx, $($argument),*))
        })+
    };
}

impl FileSystem for Session {
    fn profile(&self) -> Profile {
        self.0.profile()
    }

    tombolo_core::forward!(to self.0;
        lookup forget getattr access readlink create_unnamed open release flush fsync read readdir
        statfs syncfs
    );

    twice! {
        setattr(node: NodeId, file: Option<File>, set: &SetAttr) -> (Attr, Change);
        create(parent: NodeId, name: Name<'_>, how: &Create) -> Created;
        mkdir(parent: NodeId, name: Name<'_>, mode: NewMode) -> Made;
        symlink(parent: NodeId, name: Name<'_>, target: &[u8]) -> Made;
        mknod(parent: NodeId, name: Name<'_>, file_type: FileType, mode: NewMode, rdev: Device) -> Made;
        link(node: NodeId, parent: NodeId, name: Name<'_>) -> Made;
        unlink(parent: NodeId, name: Name<'_>) -> Change;
        rmdir(parent: NodeId, name: Name<'_>) -> Change;
        rename(from_parent: NodeId, from: Name<'_>, to_parent: NodeId, to: Name<'_>, flags: RenameFlags) -> Renamed;
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        self.twice(cx, |cx| self.0.write(cx, file, how, from.clone()))
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.0.xattrs().map(|_| self as &dyn Xattrs)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.0.locks().map(|_| self as &dyn Locks)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.0.persistent_handles()
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.0.ranges().map(|_| self as &dyn Ranges)
    }

    fn changes(&self) -> Option<&dyn Changes> {
        self.0.changes()
    }

    fn versions(&self) -> Option<&dyn Versions> {
        self.0.versions()
    }
}

impl Session {
    fn inner_xattrs(&self) -> &dyn Xattrs {
        self.0.xattrs().expect("extended attributes")
    }

    fn inner_locks(&self) -> &dyn Locks {
        self.0.locks().expect("locks")
    }

    fn inner_ranges(&self) -> &dyn Ranges {
        self.0.ranges().expect("ranges")
    }
}

impl Xattrs for Session {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.inner_xattrs().get(cx, node, name, limit_bytes)
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
        self.twice(cx, |cx| self.inner_xattrs().set(cx, node, name, value, how, kill_set_gid))
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.inner_xattrs().list(cx, node, limit_bytes)
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        self.twice(cx, |cx| self.inner_xattrs().remove(cx, node, name))
    }
}

impl Locks for Session {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        self.inner_locks().test(cx, file, lock)
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        self.twice(cx, |cx| self.inner_locks().lock(cx, file, lock, wait))
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        self.twice(cx, |cx| self.inner_locks().unlock(cx, file, family, range, owner))
    }
}

impl Ranges for Session {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.twice(cx, |cx| self.inner_ranges().allocate(cx, file, offset, len, mode))
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        self.inner_ranges().seek(cx, file, offset, whence)
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
        self.inner_ranges().copy(cx, from, from_offset, to, to_offset, len)
    }
}
