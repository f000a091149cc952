//! A file system that has one node and does nothing.

use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Attr, Change, Client, Cookie, Create, Created, Device, DirPage, Entry, Export, File,
    FileSystem, FileType, LockOwner, Made, Mode, Name, NewMode, NodeId, OpenFlags, Opened, PermissionCheck,
    Profile, ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Timestamp, Write, Written,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::{Sink, Source};

/// When the attributes come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    AtOnce,
    Later,
}

/// Serves the null file system.
#[derive(Clone, Copy, Debug)]
pub struct NullExport(pub How);

impl Export for NullExport {
    fn attach(&self, _client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Null(self.0)))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Null(pub How);

const ATTR: Attr = Attr {
    file_type: FileType::Regular,
    mode: Mode::new(0o644),
    nlink: 1,
    uid: 0,
    gid: 0,
    size: 0,
    blocks: 0,
    block_size: 4096,
    rdev: Device { major: 0, minor: 0 },
    fsid: 1,
    fileid: 1,
    generation: 0,
    atime: Timestamp { secs: 0, nanos: 0 },
    mtime: Timestamp { secs: 0, nanos: 0 },
    ctime: Timestamp { secs: 0, nanos: 0 },
    btime: None,
};

fn refused<T>() -> Answer<T> {
    Answer::err(Error::NotSupported)
}

impl FileSystem for Null {
    fn profile(&self) -> Profile {
        Profile {
            permission_check: PermissionCheck::Caller,
            read_only: true,
            name_max: 255,
            file_size_max: 0,
            time_granularity_ns: 1,
            writes_by_owner: false,
        }
    }

    fn getattr(&self, _cx: &Ctx, _node: NodeId, _file: Option<File>) -> Answer<Attr> {
        match self.0 {
            How::AtOnce => Answer::ok(ATTR),
            How::Later => Answer::later(async { Ok(ATTR) }),
        }
    }

    fn lookup(&self, _cx: &Ctx, _parent: NodeId, _name: Name<'_>) -> Answer<Entry> {
        refused()
    }

    fn forget(&self, _cx: &Ctx, _look_ups: &[(NodeId, u64)]) {}

    fn setattr(
        &self,
        _cx: &Ctx,
        _node: NodeId,
        _file: Option<File>,
        _set: &SetAttr,
    ) -> Answer<(Attr, Change)> {
        refused()
    }

    fn access(&self, _cx: &Ctx, _node: NodeId, _mask: AccessMask) -> Answer<()> {
        refused()
    }

    fn readlink(&self, _cx: &Ctx, _node: NodeId) -> Answer<Vec<u8>> {
        refused()
    }

    fn create(&self, _cx: &Ctx, _parent: NodeId, _name: Name<'_>, _how: &Create) -> Answer<Created> {
        refused()
    }

    fn create_unnamed(&self, _cx: &Ctx, _parent: NodeId, _how: &Create) -> Answer<Created> {
        refused()
    }

    fn mkdir(&self, _cx: &Ctx, _parent: NodeId, _name: Name<'_>, _mode: NewMode) -> Answer<Made> {
        refused()
    }

    fn symlink(&self, _cx: &Ctx, _parent: NodeId, _name: Name<'_>, _target: &[u8]) -> Answer<Made> {
        refused()
    }

    fn mknod(
        &self,
        _cx: &Ctx,
        _parent: NodeId,
        _name: Name<'_>,
        _file_type: FileType,
        _mode: NewMode,
        _rdev: Device,
    ) -> Answer<Made> {
        refused()
    }

    fn link(&self, _cx: &Ctx, _node: NodeId, _parent: NodeId, _name: Name<'_>) -> Answer<Made> {
        refused()
    }

    fn unlink(&self, _cx: &Ctx, _parent: NodeId, _name: Name<'_>) -> Answer<Change> {
        refused()
    }

    fn rmdir(&self, _cx: &Ctx, _parent: NodeId, _name: Name<'_>) -> Answer<Change> {
        refused()
    }

    fn rename(
        &self,
        _cx: &Ctx,
        _from_parent: NodeId,
        _from: Name<'_>,
        _to_parent: NodeId,
        _to: Name<'_>,
        _flags: RenameFlags,
    ) -> Answer<Renamed> {
        refused()
    }

    fn open(&self, _cx: &Ctx, _node: NodeId, _flags: OpenFlags) -> Answer<Opened> {
        refused()
    }

    fn release(&self, _cx: &Ctx, _file: File) {}

    fn flush(&self, _cx: &Ctx, _file: File, _owner: LockOwner) -> Answer<()> {
        refused()
    }

    fn fsync(&self, _cx: &Ctx, _file: File, _what: SyncWhat) -> Answer<()> {
        refused()
    }

    fn read(&self, _cx: &Ctx, _file: File, _offset: u64, _into: Sink) -> Answer<ReadDone> {
        refused()
    }

    fn write(&self, _cx: &Ctx, _file: File, _how: &Write, _from: Source) -> Answer<Written> {
        refused()
    }

    fn readdir(&self, _cx: &Ctx, _file: File, _cookie: Cookie, _page: DirPage) -> Answer<DirPage> {
        refused()
    }

    fn statfs(&self, _cx: &Ctx, _node: NodeId) -> Answer<StatFs> {
        refused()
    }

    fn syncfs(&self, _cx: &Ctx) -> Answer<()> {
        refused()
    }
}
