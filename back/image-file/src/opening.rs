//! Opening an image.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error as ThisError;
use tombolo_core::block::{BlockSizeError, Geometry, OpenOptions};
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_sys::Errno;
use tombolo_sys::direct;
use tombolo_sys::open::{OpenFlags, open_without_links, place_without_links};
use tombolo_sys::statfs::{MAGIC_TMPFS, file_system_stat};

use crate::claim::{self, User};
use crate::image::ImageFile;

/// Why an image was not opened.
#[derive(Debug, ThisError)]
pub enum OpenError {
    /// It cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The image.
        path: PathBuf,
        /// What was reported.
        #[source]
        source: io::Error,
    },
    /// A directory, a socket and the like.
    #[error("{} is neither a file nor a block device", path.display())]
    NotADisk {
        /// What was named.
        path: PathBuf,
    },
    /// Another process has it, in a way that does not go together with this one.
    #[error(
        "{} is in use by another process, which {held}; end that first, or open it read-only where both only read",
        path.display()
    )]
    InUse {
        /// The image.
        path: PathBuf,
        /// What the other does, or does not let others do.
        held: &'static str,
    },
    /// Its file system has no direct transfers.
    #[error("the file system of {} cannot go past the page cache", path.display())]
    NotDirect {
        /// The image.
        path: PathBuf,
    },
    /// It cannot have blocks of this size.
    #[error("cannot use {}", path.display())]
    BlockSize {
        /// The image.
        path: PathBuf,
        /// Why.
        #[source]
        source: BlockSizeError,
    },
    /// There is not even one block in it.
    #[error("{} is empty: give it a size first, as by truncate -s 10G", path.display())]
    Empty {
        /// The image.
        path: PathBuf,
    },
}

impl ImageFile {
    /// Opens the image at `path`. What waits for a disk is done by `lane`.
    pub fn open(path: &Path, options: &OpenOptions, lane: Lane) -> Result<Arc<Self>, OpenError> {
        Self::open_with(path, options, false, lane)
    }

    /// The same past the host's page cache, which takes none of the memory then; all is read from the disk,
    /// and written to it. The disk's blocks are at least as long as the file system wants such transfers to
    /// be. A file in memory (tmpfs) is opened as by [`open`](Self::open).
    pub fn open_direct(path: &Path, options: &OpenOptions, lane: Lane) -> Result<Arc<Self>, OpenError> {
        Self::open_with(path, options, true, lane)
    }

    /// An image that another process has opened for this one, and locked ([`claim_open`]). `path` is what is
    /// said of it in failures.
    pub fn passed(
        path: &Path,
        file: File,
        options: &OpenOptions,
        lane: Lane,
    ) -> Result<Arc<Self>, OpenError> {
        Self::of_file(path, file, options, false, lane)
    }

    fn open_with(
        path: &Path,
        options: &OpenOptions,
        is_direct: bool,
        lane: Lane,
    ) -> Result<Arc<Self>, OpenError> {
        let failed = |source| OpenError::Open { path: path.to_owned(), source };
        let way = Way { no_links: options.no_links };
        // Looked at before: opening a pipe waits for its other end.
        let kind = way.look(path).map_err(failed)?.file_type();
        if !is_disk(kind) {
            return Err(OpenError::NotADisk { path: path.to_owned() });
        }
        let file = match options.locks {
            true => claimed(path, way, !options.read_only, User::of(options))?,
            false => way.open(path, !options.read_only).map_err(failed)?,
        };
        Self::of_file(path, file, options, is_direct, lane)
    }

    /// Makes a raw image of `size_bytes`, all of it a hole, that only its owner may use. What lies at `path`
    /// is emptied, but for an image that another process has.
    pub fn create(
        path: &Path,
        size_bytes: u64,
        options: &OpenOptions,
        lane: Lane,
    ) -> Result<Arc<Self>, OpenError> {
        let file = emptied(path)?;
        file.set_len(size_bytes).map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
        Self::of_file(path, file, options, false, lane)
    }

    fn of_file(
        path: &Path,
        file: File,
        options: &OpenOptions,
        is_direct: bool,
        lane: Lane,
    ) -> Result<Arc<Self>, OpenError> {
        let block_bytes = options.block_bytes;
        let failed = |source| OpenError::Open { path: path.to_owned(), source };
        let kind = file.metadata().map_err(failed)?.file_type();
        // It may have been replaced since it was looked at.
        if !is_disk(kind) {
            return Err(OpenError::NotADisk { path: path.to_owned() });
        }
        let is_block_device = kind.is_block_device();
        let in_memory =
            !is_block_device && file_system_stat(file.as_fd()).is_ok_and(|found| found.magic == MAGIC_TMPFS);
        let alignment = match is_direct && !in_memory {
            true => Some(direct::enable(file.as_fd()).map_err(|errno| match errno {
                Errno::INVAL | Errno::OPNOTSUPP => OpenError::NotDirect { path: path.to_owned() },
                errno => failed(errno.into()),
            })?),
            false => None,
        };
        let block_bytes = alignment.map_or(block_bytes, |alignment| block_bytes.max(alignment.range_bytes));
        let found = Geometry::of_file(size_of(&file).map_err(failed)?);
        // A device does not become longer when it is written to.
        let geometry = match is_block_device {
            true => found.in_whole_blocks(block_bytes),
            false => found.in_blocks(block_bytes),
        };
        let geometry = geometry.map_err(|source| OpenError::BlockSize { path: path.to_owned(), source })?;
        if geometry.size_bytes == 0 {
            return Err(OpenError::Empty { path: path.to_owned() });
        }
        let image = ImageFile::new(file, geometry, options, in_memory, is_block_device, alignment, lane);
        Ok(Arc::new(image))
    }
}

/// A file at `path`, made or emptied, that no other process has.
pub(crate) fn emptied(path: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Open { path: path.to_owned(), source };
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(failed)?;
    let own = file.metadata().map_err(failed)?;
    if !own.is_file() {
        return Err(OpenError::NotADisk { path: path.to_owned() });
    }
    claim(path, &file, WRITER)?;
    // Until it was locked another may have given it another name, under which it is not to be emptied. Nor is
    // what a link leads to.
    let named = fs::symlink_metadata(path).map_err(failed)?;
    if !is_same(&named, &own) {
        return Err(OpenError::InUse { path: path.to_owned(), held: "has another file there" });
    }
    file.set_len(0).map_err(failed)?;
    Ok(file)
}

const WRITER: User = User { is_writer: true, number: 0 };

fn claim(path: &Path, file: &File, user: User) -> Result<(), OpenError> {
    let failed = |errno: Errno| OpenError::Open { path: path.to_owned(), source: errno.into() };
    match claim::claim(file.as_fd(), user).map_err(failed)? {
        Some(held) => Err(OpenError::InUse { path: path.to_owned(), held }),
        None => Ok(()),
    }
}

/// The file at `path`, opened and locked. One that another process replaced in between is no disk any more:
/// what has its name now is taken.
fn claimed(path: &Path, way: Way, is_writer: bool, user: User) -> Result<File, OpenError> {
    let failed = |source| OpenError::Open { path: path.to_owned(), source };
    loop {
        let file = way.open(path, is_writer).map_err(failed)?;
        claim(path, &file, user)?;
        let (named, own) = (way.look(path).map_err(failed)?, file.metadata().map_err(failed)?);
        if is_same(&named, &own) {
            return Ok(file);
        }
    }
}

/// Locks an open file of an image as one that is opened with these options is, for all that have the file
/// from this process.
pub fn claim_open(path: &Path, file: &File, options: &OpenOptions) -> Result<(), OpenError> {
    claim(path, file, User::of(options))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// A file that is locked as a writer of an image locks it, until this is dropped: no other begins to use it.
#[derive(Debug)]
pub struct Locked(#[expect(dead_code, reason = "the lock is its open file's")] File);

impl Locked {
    /// Locks the file at `path`, unless another process has it.
    pub fn take(path: &Path) -> Result<Self, OpenError> {
        claimed(path, Way { no_links: false }, false, WRITER).map(Self)
    }
}

/// A way from a path to its file: over symbolic links, or over none.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// None is followed ([`OpenOptions::no_links`]).
    pub no_links: bool,
}

impl Way {
    /// Opens the file to read it, and to write to it.
    pub(crate) fn open(self, path: &Path, is_writer: bool) -> io::Result<File> {
        if !self.no_links {
            return fs::OpenOptions::new().read(true).write(is_writer).open(path);
        }
        let flags = if is_writer { OpenFlags::RDWR } else { OpenFlags::RDONLY };
        open_without_links(path, flags).map(File::from).map_err(told)
    }

    /// Opens the file to read it.
    pub fn read(self, path: &Path) -> io::Result<File> {
        self.open(path, false)
    }

    /// Returns what is known of the file, without opening it.
    pub fn look(self, path: &Path) -> io::Result<Metadata> {
        match self.no_links {
            true => File::from(place_without_links(path).map_err(told)?).metadata(),
            false => fs::metadata(path),
        }
    }
}

fn told(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP => io::Error::other("there is a symbolic link on its path, which is not followed"),
        errno => errno.into(),
    }
}

pub(crate) fn is_disk(kind: FileType) -> bool {
    kind.is_file() || kind.is_block_device()
}

/// How long a file or block device is, in bytes. Of the latter only its end tells.
pub(crate) fn size_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}
