//! Disks as the files of one directory, and the directory as an export.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tombolo_core::block::BlockDevice;
use tombolo_core::fs::{
    Attr, Client, Device, Export, FileSystem, FileType, Mode, NameBuf, NodeId, Timestamp,
};
use tombolo_core::{Identity, Result};

use crate::file::{DiskFile, WhenFailed};
use crate::file_system::Session;

/// Disks as the files of one directory, owned by one user.
pub struct DiskFiles(Arc<Files>);

/// Files, owner and times, shared by all sessions.
pub(crate) struct Files {
    /// Files with their names, in the order of the directory.
    pub(crate) files: Vec<(NameBuf, Arc<DiskFile>)>,
    owner: Identity,
    /// Time that all nodes report as each of their times.
    made: Timestamp,
}

impl DiskFiles {
    /// Creates a directory of these disks, whose modes admit only `owner`. If several disks have the same
    /// name, a look-up finds the first.
    pub fn new(disks: impl IntoIterator<Item = (NameBuf, Arc<dyn BlockDevice>)>, owner: Identity) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let made = Timestamp { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() };
        let files = disks.into_iter().map(|(name, disk)| (name, Arc::new(DiskFile::new(disk)))).collect();
        Self(Arc::new(Files { files, owner, made }))
    }

    /// Sets a function to call at the first failed write to each file, before that write is answered. Ignored
    /// if one is already set. To be set before the files are attached: earlier failures are not reported.
    pub fn when_failed(&self, callback: impl Fn() + Send + Sync + 'static) {
        let callback: WhenFailed = Arc::new(callback);
        for (_, file) in &self.0.files {
            let _ = file.when_failed.set(callback.clone());
        }
    }

    /// Returns `true` if a write to one of the files has failed: its contents are then incomplete, even if
    /// the kernel that wrote them back has reported no error to the program.
    pub fn has_failed(&self) -> bool {
        self.0.files.iter().any(|(_, file)| file.has_failed())
    }
}

impl Export for DiskFiles {
    fn attach(&self, _client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session(self.0.clone())))
    }
}

/// Node number of the first file.
const FIRST: u64 = NodeId::ROOT.0 + 1;

impl Files {
    /// Returns the node of the file at this index of the directory.
    pub(crate) fn node_of(index: usize) -> NodeId {
        NodeId(FIRST + index as u64)
    }

    /// Returns the file of a node; `None` for the directory and unknown nodes.
    pub(crate) fn file(&self, node: NodeId) -> Option<&Arc<DiskFile>> {
        let index = usize::try_from(node.0.checked_sub(FIRST)?).ok()?;
        self.files.get(index).map(|(_, file)| file)
    }

    /// Returns the attributes of a node, if it exists.
    pub(crate) fn attr(&self, node: NodeId) -> Option<Attr> {
        let (file_type, mode, nlink, size) = match self.file(node) {
            Some(file) if file.disk().profile().read_only => (FileType::Regular, 0o400, 1, file.size_bytes()),
            Some(file) => (FileType::Regular, 0o600, 1, file.size_bytes()),
            None if node == NodeId::ROOT => (FileType::Directory, 0o500, 2, 0),
            None => return None,
        };
        Some(Attr {
            file_type,
            mode: Mode::new(mode),
            nlink,
            uid: self.owner.uid,
            gid: self.owner.gid,
            size,
            blocks: size.div_ceil(512),
            block_size: 4096,
            rdev: Device::default(),
            fsid: 0,
            fileid: node.0,
            generation: 0,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            btime: Some(self.made),
            volatile: false,
        })
    }
}
