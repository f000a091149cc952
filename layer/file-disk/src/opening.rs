//! Finding, opening and locking the file.

use std::sync::Arc;

use thiserror::Error as ThisError;
use tombolo_core::block::{BlockSizeError, Bounds, Geometry, OpenOptions, SIZE_BYTES_MAX};
use tombolo_core::fs::{
    Attr, Entry, File, FileSystem, FileType, Lock, LockFamily, LockKind, LockOwner, LockRange, Name, NodeId,
    OpenFlags,
};
use tombolo_core::{Ctx, Error, Result as CoreResult};

use crate::disk::{FileDisk, OpenFile};

/// Reasons why a file was not opened.
#[derive(Debug, ThisError)]
pub enum OpenError {
    /// The file cannot be found, opened, locked or examined.
    #[error("cannot open the file")]
    Refused(#[from] Error),
    /// A directory, a symbolic link or the like.
    #[error("it is not a regular file")]
    NotAFile,
    /// Another user has the file open as a disk.
    #[error("the file is in use; stop its user first, or open it read-only in both")]
    InUse,
    /// The size is beyond the supported limit.
    #[error("files of more than {max} bytes are not supported as disks; its size is {0}", max = SIZE_BYTES_MAX)]
    Size(u64),
    /// The block size is invalid.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
    /// The file is empty.
    #[error("the file is empty: set its size first, for example by truncate -s 10G")]
    Empty,
}

impl FileDisk {
    /// Opens the file at `path` (from the root of `fs`; symbolic links are not followed) with the session and
    /// user of `cx`.
    pub async fn open(
        fs: Arc<dyn FileSystem>,
        cx: Ctx,
        path: &[u8],
        options: &OpenOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let OpenOptions { read_only, block_bytes, .. } = *options;
        // The block size is checked before any file is opened.
        Geometry::of_file(0).in_blocks(block_bytes)?;
        let file = find_and_open(&*fs, &cx, path, read_only).await?;
        // From this point the file is closed on drop.
        let mut file = OpenFile::new(fs, cx, file, read_only);
        if options.locks {
            file.lock(read_only).await?;
        }
        // The attributes are read after locking, when no other user changes the file.
        let attr: Attr = file.fs.getattr(&file.cx, file.file.node, Some(file.file)).resolve().await?;
        if attr.size > SIZE_BYTES_MAX {
            return Err(OpenError::Size(attr.size));
        }
        let geometry = Geometry::of_file(attr.size).in_blocks(block_bytes)?;
        if geometry.size_bytes == 0 {
            return Err(OpenError::Empty);
        }
        file.bounds = Bounds::new(geometry, read_only);
        Ok(Arc::new(Self(Arc::new(file))))
    }
}

/// Opens the file. Cached names may lead to a replaced file or directory: the path is looked up again after
/// ESTALE, as often as it has names.
async fn find_and_open(
    fs: &dyn FileSystem,
    cx: &Ctx,
    path: &[u8],
    read_only: bool,
) -> Result<File, OpenError> {
    let flags = if read_only { OpenFlags::READ } else { OpenFlags::READ | OpenFlags::WRITE };
    let mut names_left = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    loop {
        let opened = match find(fs, cx, path).await {
            Ok(Entry { node, attr, .. }) => {
                let opened = match attr.file_type {
                    FileType::Regular => fs.open(cx, node, flags).resolve().await.map_err(OpenError::from),
                    _ => Err(OpenError::NotAFile),
                };
                if opened.is_err() {
                    fs.forget(cx, &[(node, 1)]);
                }
                opened.map(|opened| File { node, open: opened.open })
            }
            Err(error) => Err(error.into()),
        };
        match opened {
            Err(OpenError::Refused(Error::Stale)) if names_left.next().is_some() => {}
            done => return done,
        }
    }
}

/// Looks the file up, counting one look-up.
async fn find(fs: &dyn FileSystem, cx: &Ctx, path: &[u8]) -> CoreResult<Entry> {
    let mut found: Option<Entry> = None;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let parent = found.map_or(NodeId::ROOT, |entry| entry.node);
        let next = match Name::new(name) {
            Ok(name) => fs.lookup(cx, parent, name).resolve().await,
            Err(error) => Err(error.into()),
        };
        if found.is_some() {
            fs.forget(cx, &[(parent, 1)]);
        }
        found = Some(next?);
    }
    found.ok_or(Error::IsDirectory)
}

/// Bytes that QEMU and `back/image-file` lock for operations performed on an image (from 100 on) and denied
/// to others (from 200 on).
const DONE: LockRange = LockRange { start: 100, last: 199 };
const REFUSED: LockRange = LockRange { start: 200, last: 299 };
/// Byte in [`DONE`] of the operation that reads the image; those of operations that change it follow.
const READS: LockRange = LockRange { start: DONE.start, last: DONE.start };
const CHANGES: LockRange = LockRange { start: DONE.start + 1, last: DONE.last };

impl OpenFile {
    /// Locks the file against writers, and if it is opened for writing also against readers, as far as its
    /// file system has locks; [`OpenError::InUse`] if it is locked. The lock ends with the opening.
    async fn lock(&self, read_only: bool) -> Result<(), OpenError> {
        let Some(locks) = self.fs.locks() else { return Ok(()) };
        let of = |kind, range| Lock {
            family: LockFamily::Posix,
            kind,
            range,
            owner: LockOwner(self.file.open.0),
            pid: std::process::id(),
        };
        if !read_only {
            let all = of(LockKind::Write, LockRange { start: DONE.start, last: REFUSED.last });
            return lock_result(locks.lock(&self.cx, self.file, &all, false).resolve().await);
        }
        // The check follows the locks, so that of two concurrent openers at least one finds a lock.
        for range in [READS, REFUSED] {
            lock_result(locks.lock(&self.cx, self.file, &of(LockKind::Read, range), false).resolve().await)?;
        }
        match locks.test(&self.cx, self.file, &of(LockKind::Write, CHANGES)).resolve().await? {
            Some(_) => Err(OpenError::InUse),
            None => Ok(()),
        }
    }
}

fn lock_result(result: CoreResult<()>) -> Result<(), OpenError> {
    result.map_err(|error| match error {
        Error::WouldBlock | Error::AccessDenied => OpenError::InUse,
        error => OpenError::Refused(error),
    })
}
