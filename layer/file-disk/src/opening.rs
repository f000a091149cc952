//! Finding, opening and locking the file.

use std::sync::Arc;

use thiserror::Error as ThisError;
use tombolo_core::block::{BlockSizeError, Geometry, OpenOptions, SIZE_BYTES_MAX};
use tombolo_core::fs::{
    Attr, Entry, File, FileSystem, FileType, Lock, LockFamily, LockKind, LockOwner, LockRange, Name, NodeId,
    OpenFlags,
};
use tombolo_core::{Ctx, Error, Result as CoreResult};

use crate::disk::{FileDisk, OpenFile};

/// Why a file was not opened.
#[derive(Debug, ThisError)]
pub enum OpenError {
    /// The file system refuses it.
    #[error("the file cannot be opened")]
    Refused(#[from] Error),
    /// A directory, a link and the like.
    #[error("it is no regular file")]
    NotAFile,
    /// Another has it open as a disk.
    #[error("the file is in use; end that first, or open it read-only where both only read")]
    InUse,
    /// It says that it is longer than anything can be looked through.
    #[error("files of more than {max} bytes are not supported as disks, and its size is {0}", max = SIZE_BYTES_MAX)]
    Size(u64),
    /// The block size is none.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
    /// There is not even one block in it.
    #[error("the file is empty: set its size first, for example by truncate -s 10G")]
    Empty,
}

impl FileDisk {
    /// Opens the file at `path` (from the root of `fs`; symbolic links are not followed) in the session and
    /// as the user that `cx` names.
    pub async fn open(
        fs: Arc<dyn FileSystem>,
        cx: Ctx,
        path: &[u8],
        options: &OpenOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let OpenOptions { read_only, block_bytes, .. } = *options;
        // Said before anything is opened.
        Geometry::of_file(0).in_blocks(block_bytes)?;
        let file = find_and_open(&*fs, &cx, path, read_only).await?;
        // From here on it is given back when it is dropped.
        let mut file = OpenFile::new(fs, cx, file, read_only);
        if options.locks {
            file.lock(read_only).await?;
        }
        // As it is now that no other changes it.
        let attr: Attr = file.fs.getattr(&file.cx, file.file.node, Some(file.file)).resolve().await?;
        if attr.size > SIZE_BYTES_MAX {
            return Err(OpenError::Size(attr.size));
        }
        let geometry = Geometry::of_file(attr.size).in_blocks(block_bytes)?;
        if geometry.size_bytes == 0 {
            return Err(OpenError::Empty);
        }
        file.set_geometry(geometry);
        Ok(Arc::new(Self(Arc::new(file))))
    }
}

/// Opens the file. A name that is remembered may lead to one that was replaced since, and so may that of each
/// directory: it is looked up anew then.
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

/// Looks the file up; the answer carries one look-up.
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

/// The bytes that QEMU and `back/image-file` lock to tell what they do with an image (100 and on), and what
/// they do not let others do (200 and on).
const DONE: LockRange = LockRange { start: 100, last: 199 };
const REFUSED: LockRange = LockRange { start: 200, last: 299 };
/// The first of each: reading.
const READS: LockRange = LockRange { start: DONE.start, last: DONE.start };
const CHANGES: LockRange = LockRange { start: DONE.start + 1, last: DONE.last };

impl OpenFile {
    /// Locks it so that no other writes to it, and if it is to be written to, none reads it either. The lock
    /// ends with the opening.
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
            return taken(locks.lock(&self.cx, self.file, &all, false).resolve().await);
        }
        // First taken, then looked at: of two that come at once at least one sees the other.
        for range in [READS, REFUSED] {
            taken(locks.lock(&self.cx, self.file, &of(LockKind::Read, range), false).resolve().await)?;
        }
        match locks.test(&self.cx, self.file, &of(LockKind::Write, CHANGES)).resolve().await? {
            Some(_) => Err(OpenError::InUse),
            None => Ok(()),
        }
    }
}

fn taken(result: CoreResult<()>) -> Result<(), OpenError> {
    result.map_err(|error| match error {
        Error::WouldBlock | Error::AccessDenied => OpenError::InUse,
        error => OpenError::Refused(error),
    })
}
