//! A mount for the duration of a test, and a file system of one file that records its calls.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    AccessMask, Attr, Change, Client, Entry, Export, File, FileSystem, LockOwner, Name, NodeId, OpenFlags,
    OpenId, Opened, PermissionCheck, Profile, ReadDone, SetAttr, SyncScope, Write, Written,
};
use tombolo_core::{Answer, Ctx, Error, Identity, Result, SessionId, Stability};
use tombolo_front_fuse::dev::{Mount, Options};
use tombolo_mem::{Sink, Source};
use tombolo_wire_fuse::attr::from_wire;
use tombolo_wire_fuse::layout::attr::FuseAttr;

/// An export mounted on a temporary directory while this exists.
pub struct Mounted {
    pub mount: Mount,
    dir: TempDir,
}

impl Mounted {
    pub fn new(export: &dyn Export, options: &Options) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = Mount::start(export, SessionId(1), dir.path(), options).expect("mounted");
        Self { mount, dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.mount.unmount().expect("unmounted");
        self.mount.wait();
    }
}

/// File system with one file, `file`, which accepts every write and reads as zeros.
pub struct OneFile {
    /// Side that checks permissions.
    pub checks: PermissionCheck,
    /// `true` if writes are answered later.
    pub later: bool,
    /// Number of readable bytes; reads beyond fail.
    pub readable_bytes: u64,
    /// Data of writes that may be retained, with their offsets.
    pub retained: Mutex<Vec<(u64, Source)>>,
    /// Calls and their identities.
    pub asked: Mutex<Vec<(&'static str, Identity)>>,
    /// Receives all other calls.
    pub others: Arc<dyn FileSystem>,
}

impl Default for OneFile {
    fn default() -> Self {
        let client =
            Client { session: SessionId(0), label: "others".into(), checks: PermissionCheck::Caller };
        Self {
            checks: PermissionCheck::Caller,
            later: false,
            readable_bytes: u64::MAX,
            retained: Mutex::default(),
            asked: Mutex::default(),
            others: Memory::default().attach(&client).expect("attached"),
        }
    }
}

impl OneFile {
    fn note(&self, what: &'static str, cx: &Ctx) {
        self.asked.lock().unwrap().push((what, cx.identity.clone()));
    }
}

const FILE: NodeId = NodeId(2);

fn attr_of(node: NodeId) -> Attr {
    let mode = if node == FILE { 0o100_666 } else { 0o040_777 };
    from_wire(&FuseAttr { ino: node.0, mode, nlink: 1, size: 1 << 40, ..Default::default() }).expect("good")
}

/// Export of the file system, for inspection while mounted.
pub struct Shared(pub Arc<OneFile>);

impl Export for Shared {
    fn attach(&self, _client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(self.0.clone())
    }
}

impl FileSystem for OneFile {
    fn profile(&self) -> Profile {
        Profile {
            permission_check: self.checks,
            read_only: false,
            name_max: 255,
            file_size_max: u64::MAX,
            time_granularity_ns: 1,
            writes_by_owner: false,
        }
    }

    fn lookup(&self, cx: &Ctx, _parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.note("lookup", cx);
        match name.as_bytes() {
            b"file" => Answer::ok(Entry { node: FILE, attr: attr_of(FILE) }),
            _ => Answer::err(Error::NotFound),
        }
    }

    fn forget(&self, _cx: &Ctx, _look_ups: &[(NodeId, u64)]) {}

    fn getattr(&self, _cx: &Ctx, node: NodeId, _file: Option<File>) -> Answer<Attr> {
        Answer::ok(attr_of(node))
    }

    fn setattr(&self, _cx: &Ctx, node: NodeId, _: Option<File>, _: &SetAttr) -> Answer<(Attr, Change)> {
        Answer::ok((attr_of(node), Change::default()))
    }

    fn access(&self, _cx: &Ctx, _node: NodeId, _mask: AccessMask) -> Answer<()> {
        Answer::ok(())
    }

    tombolo_core::forward!(to self.others;
        readlink create create_unnamed mkdir symlink mknod link unlink rmdir rename readdir statfs syncfs);

    fn open(&self, cx: &Ctx, _node: NodeId, _flags: OpenFlags) -> Answer<Opened> {
        self.note("open", cx);
        Answer::ok(Opened { open: OpenId(self.asked.lock().unwrap().len() as u64), attr: None })
    }

    fn release(&self, _cx: &Ctx, _file: File) {}

    fn flush(&self, _cx: &Ctx, _file: File, _owner: LockOwner) -> Answer<()> {
        Answer::ok(())
    }

    fn fsync(&self, _cx: &Ctx, _file: File, _what: SyncScope) -> Answer<()> {
        Answer::ok(())
    }

    fn read(&self, cx: &Ctx, _file: File, offset: u64, mut into: Sink) -> Answer<ReadDone> {
        self.note("read", cx);
        let left = usize::try_from(self.readable_bytes.saturating_sub(offset)).unwrap();
        if left == 0 {
            return Answer::err(Error::io("a bad block"));
        }
        into.truncate(left);
        into.zero(0, into.len());
        Answer::ok(ReadDone { count: into.len(), eof: false })
    }

    fn write(&self, cx: &Ctx, _file: File, how: &Write, from: Source) -> Answer<Written> {
        self.note("write", cx);
        let count = from.len();
        if how.retainable {
            self.retained.lock().unwrap().push((how.offset, from));
        }
        let written = Written { count, stability: Stability::Unstable, file: Change::default() };
        match self.later {
            true => Answer::later(async move {
                let mut again = true;
                std::future::poll_fn(|context| match std::mem::take(&mut again) {
                    true => {
                        context.waker().wake_by_ref();
                        std::task::Poll::Pending
                    }
                    false => std::task::Poll::Ready(()),
                })
                .await;
                Ok(written)
            }),
            false => Answer::ok(written),
        }
    }
}
