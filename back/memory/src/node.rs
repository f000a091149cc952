//! A node of the tree: attributes, contents, and the rules for changing them.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use tombolo_core::fs::{AccessMask, Attr, Device, FileType, Mode, Ownership, Timestamp};
use tombolo_core::{Error, Identity, Result};

use crate::acl::Acl;
use crate::content::{Content, PAGE_BYTES};
use crate::directory::{Directory, Ino};

/// The extended attribute of file capabilities (capabilities(7)).
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: Ino,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: Device,
    pub(crate) times: Times,
    pub(crate) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// `None` if equivalent to the mode.
    pub(crate) access_acl: Option<Acl>,
    /// List that new entries of a directory inherit.
    pub(crate) default_acl: Option<Acl>,
    /// Verifier of the exclusive create that made the node (RFC 1813 §3.3.8).
    pub(crate) verifier: Option<[u8; 8]>,
    /// `true` for an unnamed file that may still get a name.
    pub(crate) linkable: bool,
    /// Number of sessions and openings that refer to the node. The node lives while there are any, or while
    /// it has a name.
    pub(crate) holders: u64,
}

#[derive(Debug)]
pub(crate) enum Kind {
    File(Content),
    Directory(Directory),
    Symlink(Box<[u8]>),
    /// A device, a fifo or a socket.
    Special(FileType),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
}

impl Times {
    pub(crate) fn all_now() -> Self {
        let now = now();
        Self { atime: now, mtime: now, ctime: now, btime: now }
    }
}

impl Node {
    pub(crate) fn file_type(&self) -> FileType {
        match &self.kind {
            Kind::File(_) => FileType::Regular,
            Kind::Directory(_) => FileType::Directory,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::Special(file_type) => *file_type,
        }
    }

    pub(crate) fn attr(&self, fsid: u64) -> Attr {
        let (size, blocks) = match &self.kind {
            Kind::File(content) => (content.size(), content.pages() * (PAGE_BYTES / 512)),
            Kind::Directory(directory) => (directory.len() as u64, 0),
            Kind::Symlink(target) => (target.len() as u64, 0),
            Kind::Special(_) => (0, 0),
        };
        Attr {
            file_type: self.file_type(),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            size,
            blocks,
            block_size: PAGE_BYTES as u32,
            rdev: self.rdev,
            fsid,
            fileid: self.ino.0,
            // Inode numbers are never reused, so all generations are equal.
            generation: 0,
            atime: self.times.atime,
            mtime: self.times.mtime,
            ctime: self.times.ctime,
            btime: Some(self.times.btime),
            volatile: false,
        }
    }

    pub(crate) fn ownership(&self) -> Ownership {
        Ownership { uid: self.uid, gid: self.gid, mode: self.mode, is_directory: self.is_directory() }
    }

    /// Fails with `AccessDenied` unless `identity` has all permissions of `mask`.
    pub(crate) fn check(&self, identity: &Identity, mask: AccessMask) -> Result<()> {
        let acl = self.access_acl.as_ref();
        let by_list = acl.map(|acl| |wanted| acl.allows(identity, self.uid, self.gid, wanted));
        self.ownership().check(identity, mask, by_list)
    }

    pub(crate) fn directory(&self) -> Result<&Directory> {
        match &self.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(crate) fn directory_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }

    pub(crate) fn content_mut(&mut self) -> Result<&mut Content> {
        match &mut self.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(Error::IsDirectory),
            Kind::Symlink(_) | Kind::Special(_) => Err(Error::InvalidArgument),
        }
    }

    /// Sets ctime to now, after a change of attributes.
    pub(crate) fn update_ctime(&mut self) {
        self.times.ctime = now();
    }

    /// Sets mtime and ctime to now, after a change of the data or the entries.
    pub(crate) fn update_mtime(&mut self) {
        self.times.mtime = now();
        self.times.ctime = self.times.mtime;
    }

    /// Marks the node as read, as rarely as local file systems do by default (mount(8), `relatime`).
    pub(crate) fn update_atime(&mut self) {
        const DAY_SECS: i64 = 86_400;
        let Times { atime, mtime, ctime, .. } = self.times;
        let now = now();
        if atime <= mtime || atime <= ctime || now.secs - atime.secs > DAY_SECS {
            self.times.atime = now;
        }
    }

    /// Clears file capabilities, set-user-id, and set-group-id, the latter only if the group may execute the
    /// file or `writer` is not in the group. Directories keep all of them.
    pub(crate) fn drop_privileges(&mut self, writer: Option<&Identity>) {
        if !self.is_directory() {
            let mode = self.mode.without_privileges();
            let is_foreign = writer.is_some_and(|writer| writer.loses_set_gid(self.gid));
            self.mode = if is_foreign { Mode::new(mode.bits() & !Mode::SET_GID) } else { mode };
            self.xattrs.remove(CAPABILITY);
        }
    }
}

pub(crate) fn now() -> Timestamp {
    // Times before 1970 are clamped to 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}
