//! A file system may keep what was written after it has answered, and nobody overwrites it.

use std::fs::File as HostFile;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use tombolo_core::fs::{
    AccessMask, Answer, Attr, Change, Client, Cookie, Create, Created, Ctx, Device, DirPage, Entry, Error,
    Export, File, FileSystem, FileType, LockOwner, Made, Name, NewMode, NodeId, OpenFlags, OpenId, Opened,
    PermissionCheck, Profile, ReadDone, RenameFlags, Renamed, Result, SessionId, SetAttr, Stability, StatFs,
    SyncWhat, Write, Written,
};
use tombolo_front_fuse::dev::{Mount, Options};
use tombolo_mem::{Sink, Source};
use tombolo_wire_fuse::attr::from_wire;
use tombolo_wire_fuse::layout::attr::FuseAttr;

/// One file in a directory, of which all is kept that may be.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<(u64, Source)>>,
    later: bool,
}

const FILE: NodeId = NodeId(2);

fn attr_of(node: NodeId) -> Attr {
    let mode = if node == FILE { 0o100_666 } else { 0o040_777 };
    from_wire(&FuseAttr { ino: node.0, mode, nlink: 1, size: 1 << 40, ..Default::default() }).expect("good")
}

struct Shared(Arc<Keeper>);

impl Export for Shared {
    fn attach(&self, _client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(self.0.clone())
    }
}

impl FileSystem for Keeper {
    fn profile(&self) -> Profile {
        Profile {
            permission_check: PermissionCheck::Caller,
            read_only: false,
            name_max: 255,
            file_size_max: u64::MAX,
            time_granularity_ns: 1,
        }
    }

    fn lookup(&self, _cx: &Ctx, _parent: NodeId, name: Name<'_>) -> Answer<Entry> {
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

    fn readlink(&self, _cx: &Ctx, _node: NodeId) -> Answer<Vec<u8>> {
        Answer::err(Error::NotSupported)
    }

    fn create(&self, _: &Ctx, _: NodeId, _: Name<'_>, _: &Create) -> Answer<Created> {
        Answer::err(Error::NotSupported)
    }

    fn create_unnamed(&self, _: &Ctx, _: NodeId, _: &Create) -> Answer<Created> {
        Answer::err(Error::NotSupported)
    }

    fn mkdir(&self, _: &Ctx, _: NodeId, _: Name<'_>, _: NewMode) -> Answer<Made> {
        Answer::err(Error::NotSupported)
    }

    fn symlink(&self, _: &Ctx, _: NodeId, _: Name<'_>, _: &[u8]) -> Answer<Made> {
        Answer::err(Error::NotSupported)
    }

    fn mknod(&self, _: &Ctx, _: NodeId, _: Name<'_>, _: FileType, _: NewMode, _: Device) -> Answer<Made> {
        Answer::err(Error::NotSupported)
    }

    fn link(&self, _: &Ctx, _: NodeId, _: NodeId, _: Name<'_>) -> Answer<Made> {
        Answer::err(Error::NotSupported)
    }

    fn unlink(&self, _: &Ctx, _: NodeId, _: Name<'_>) -> Answer<Change> {
        Answer::err(Error::NotSupported)
    }

    fn rmdir(&self, _: &Ctx, _: NodeId, _: Name<'_>) -> Answer<Change> {
        Answer::err(Error::NotSupported)
    }

    fn rename(
        &self,
        _: &Ctx,
        _: NodeId,
        _: Name<'_>,
        _: NodeId,
        _: Name<'_>,
        _: RenameFlags,
    ) -> Answer<Renamed> {
        Answer::err(Error::NotSupported)
    }

    fn open(&self, _cx: &Ctx, _node: NodeId, _flags: OpenFlags) -> Answer<Opened> {
        Answer::ok(Opened { open: OpenId(1), attr: None })
    }

    fn release(&self, _cx: &Ctx, _file: File) {}

    fn flush(&self, _cx: &Ctx, _file: File, _owner: LockOwner) -> Answer<()> {
        Answer::ok(())
    }

    fn fsync(&self, _cx: &Ctx, _file: File, _what: SyncWhat) -> Answer<()> {
        Answer::ok(())
    }

    fn read(&self, _cx: &Ctx, _file: File, _offset: u64, into: Sink) -> Answer<ReadDone> {
        into.zero(0, into.len());
        Answer::ok(ReadDone { count: into.len(), eof: false })
    }

    fn write(&self, _cx: &Ctx, _file: File, how: &Write, from: Source) -> Answer<Written> {
        let count = from.len();
        if how.keepable {
            self.kept.lock().unwrap().push((how.offset, from));
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

    fn readdir(&self, _: &Ctx, _: File, _: Cookie, page: DirPage) -> Answer<DirPage> {
        Answer::ok(page)
    }

    fn statfs(&self, _cx: &Ctx, _node: NodeId) -> Answer<StatFs> {
        Answer::err(Error::NotSupported)
    }

    fn syncfs(&self, _cx: &Ctx) -> Answer<()> {
        Answer::ok(())
    }
}

const PIECE: usize = 256 << 10;

fn piece(number: u64) -> Vec<u8> {
    (0..PIECE as u64).map(|at| (at.wrapping_mul(number + 7) >> 3) as u8).collect()
}

fn write_pieces(file: &HostFile, numbers: std::ops::Range<u64>) {
    for number in numbers {
        file.write_all_at(&piece(number), number * PIECE as u64).expect("written");
    }
}

fn check(kept: &[(u64, Source)]) {
    for (offset, source) in kept {
        assert!(source.to_vec(PIECE) == piece(offset / PIECE as u64), "the data at {offset} changed");
    }
}

fn keeps(later: bool) {
    let keeper = Arc::new(Keeper { later, ..Keeper::default() });
    let dir = tempfile::tempdir().expect("a directory");
    let mount = Mount::start(&Shared(keeper.clone()), SessionId(1), dir.path(), &Options::default());
    let mount = mount.expect("mounted");
    let file = HostFile::options().write(true).open(dir.path().join("file")).expect("open");
    write_pieces(&file, 0..200);
    let mut kept = std::mem::take(&mut *keeper.kept.lock().unwrap());
    assert_eq!(kept.len(), 64, "as many as the mount lends, and no more");
    check(&kept);
    kept.truncate(30);
    write_pieces(&file, 200..400);
    let more = std::mem::take(&mut *keeper.kept.lock().unwrap());
    assert_eq!(more.len(), 34, "what was let go is lent again");
    check(&kept);
    check(&more);
    drop((kept, more));
    file.write_all_at(&[7; 4096], 0).expect("written");
    assert!(keeper.kept.lock().unwrap().is_empty(), "a page is not worth keeping a mebibyte");
    drop(file);
    assert!(mount.unmount().expect("unmounted"));
    mount.wait();
}

#[test]
fn what_is_kept_does_not_change_and_is_bounded() {
    keeps(false);
}

#[test]
fn what_is_kept_of_writes_answered_later_does_not_change_either() {
    keeps(true);
}
