//! Null file system with one node.

use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Client, Device, Export, File, FileSystem, FileType, Mode, NodeId, Op, PermissionCheck, Profile,
    Timestamp,
};
use tombolo_core::{Answer, Ctx, Error, Result};

/// Time of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    AtOnce,
    Later,
}

/// Export of the null file system.
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
    volatile: false,
};

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

    tombolo_core::forward!(through self.refuse;
        lookup setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir rename open flush fsync read write readdir
        statfs syncfs);

    fn forget(&self, _cx: &Ctx, _look_ups: &[(NodeId, u64)]) {}

    fn release(&self, _cx: &Ctx, _file: File) {}
}

impl Null {
    /// Refuses the call.
    fn refuse<T>(&self, _op: Op, _call: impl FnOnce(&dyn FileSystem) -> Answer<T>) -> Answer<T> {
        Answer::err(Error::NotSupported)
    }
}
