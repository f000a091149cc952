//! Opening, creating and locking of raw images and block devices.

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

/// Reasons why an image was not opened.
#[derive(Debug, ThisError)]
pub enum OpenError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The image.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// A directory, a socket or the like.
    #[error("{} is neither a file nor a block device", path.display())]
    NotADisk {
        /// The path given.
        path: PathBuf,
    },
    /// The image is in use in a conflicting way, mostly by another process.
    #[error(
        "{} is in use by another process or disk, which {conflict}; end that use, or open the image read-only in both",
        path.display()
    )]
    InUse {
        /// The image.
        path: PathBuf,
        /// The conflicting operation.
        conflict: &'static str,
    },
    /// The file system does not support direct I/O.
    #[error("the file system of {} does not support direct I/O", path.display())]
    NotDirect {
        /// The image.
        path: PathBuf,
    },
    /// The image cannot have blocks of this size.
    #[error("cannot use {}", path.display())]
    BlockSize {
        /// The image.
        path: PathBuf,
        /// Reason for the refusal.
        #[source]
        source: BlockSizeError,
    },
    /// The image is empty.
    #[error("{} is empty: set its size first, for example by truncate -s 10G", path.display())]
    Empty {
        /// The image.
        path: PathBuf,
    },
}

impl ImageFile {
    /// Opens the image at `path`. `lane` runs operations that wait for a disk.
    pub fn open(path: &Path, options: &OpenOptions, lane: Lane) -> Result<Arc<Self>, OpenError> {
        Self::open_with(path, options, false, lane)
    }

    /// Opens the image for direct I/O, which bypasses the page cache. The disk's blocks are at least as long
    /// as the file system's alignment. A file in memory (tmpfs) is opened as by [`open`](Self::open).
    pub fn open_direct(path: &Path, options: &OpenOptions, lane: Lane) -> Result<Arc<Self>, OpenError> {
        Self::open_with(path, options, true, lane)
    }

    /// Uses an image file that another process has opened. Takes no lock: that process locks the shared open
    /// file ([`lock_open_image`]), before this call or after it. `path` appears in error messages.
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
        let policy = LinkPolicy { no_links: options.no_links };
        // The file type is checked first, because opening a FIFO blocks until its other end is opened.
        let kind = policy.look(path).map_err(failed)?.file_type();
        if !is_disk(kind) {
            return Err(OpenError::NotADisk { path: path.to_owned() });
        }
        let file = match options.locks {
            true => claimed(path, policy, !options.read_only, User::of(options))?,
            false => policy.open(path, !options.read_only).map_err(failed)?,
        };
        Self::of_file(path, file, options, is_direct, lane)
    }

    /// Creates a raw image of `size_bytes`, entirely a hole. A new file has permissions for the owner only;
    /// an existing file at `path` is emptied unless it is in use as an image.
    pub fn create(
        path: &Path,
        size_bytes: u64,
        options: &OpenOptions,
        lane: Lane,
    ) -> Result<Arc<Self>, OpenError> {
        let file = create_or_truncate(path)?;
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
        // The type is checked again, because the file may have been replaced since `open_with` checked it.
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
        // The size of a file is rounded up to whole blocks. A device does not grow when written to, so its
        // last block must be whole.
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

/// Creates or empties the file at `path`, and locks it as a writer; fails if it is in use as an image, or if
/// `path` is a symbolic link.
pub(crate) fn create_or_truncate(path: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Open { path: path.to_owned(), source };
    // Checked before opening, which would create the missing target of a symbolic link.
    if fs::symlink_metadata(path).is_ok_and(|named| named.is_symlink()) {
        return Err(failed(io::Error::other("it is a symbolic link, which is not followed")));
    }
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(failed)?;
    let own = file.metadata().map_err(failed)?;
    if !own.is_file() {
        return Err(OpenError::NotADisk { path: path.to_owned() });
    }
    claim(path, &file, WRITER)?;
    // Another process may have renamed the file before it was locked. A renamed file must not be emptied;
    // neither may the target of a symbolic link.
    let named = fs::symlink_metadata(path).map_err(failed)?;
    if !is_same(&named, &own) {
        return Err(OpenError::InUse { path: path.to_owned(), conflict: "has replaced the file" });
    }
    file.set_len(0).map_err(failed)?;
    Ok(file)
}

const WRITER: User = User { is_writer: true, number: 0 };

fn claim(path: &Path, file: &File, user: User) -> Result<(), OpenError> {
    let failed = |errno: Errno| OpenError::Open { path: path.to_owned(), source: errno.into() };
    match claim::claim(file.as_fd(), user).map_err(failed)? {
        Some(conflict) => Err(OpenError::InUse { path: path.to_owned(), conflict }),
        None => Ok(()),
    }
}

/// Opens and locks the file at `path`. If another process replaces it in between, retries with the new file.
fn claimed(path: &Path, policy: LinkPolicy, is_writer: bool, user: User) -> Result<File, OpenError> {
    let failed = |source| OpenError::Open { path: path.to_owned(), source };
    loop {
        let file = policy.open(path, is_writer).map_err(failed)?;
        claim(path, &file, user)?;
        let (named, own) = (policy.look(path).map_err(failed)?, file.metadata().map_err(failed)?);
        if is_same(&named, &own) {
            return Ok(file);
        }
    }
}

/// Locks an open image file as if opened with these options, for all processes that share the file
/// description.
pub fn lock_open_image(path: &Path, file: &File, options: &OpenOptions) -> Result<(), OpenError> {
    claim(path, file, User::of(options))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// A file locked as by a writer of an image, until dropped.
#[derive(Debug)]
pub struct Locked(#[expect(dead_code, reason = "the lock is its open file's")] File);

impl Locked {
    /// Locks the file at `path`, unless another process uses it.
    pub fn take(path: &Path) -> Result<Self, OpenError> {
        claimed(path, LinkPolicy { no_links: false }, false, WRITER).map(Self)
    }
}

/// Resolution of a path to its file: following symbolic links, or refusing them.
#[derive(Clone, Copy, Debug)]
pub struct LinkPolicy {
    /// Refuse symbolic links ([`OpenOptions::no_links`]).
    pub no_links: bool,
}

impl LinkPolicy {
    /// Opens the file for reading, and also for writing if `is_writer`.
    pub(crate) fn open(self, path: &Path, is_writer: bool) -> io::Result<File> {
        if !self.no_links {
            return fs::OpenOptions::new().read(true).write(is_writer).open(path);
        }
        let flags = if is_writer { OpenFlags::RDWR } else { OpenFlags::RDONLY };
        open_without_links(path, flags).map(File::from).map_err(io_error)
    }

    /// Opens the file for reading.
    pub fn read(self, path: &Path) -> io::Result<File> {
        self.open(path, false)
    }

    /// Returns the metadata of the file, without opening it.
    pub fn look(self, path: &Path) -> io::Result<Metadata> {
        match self.no_links {
            true => File::from(place_without_links(path).map_err(io_error)?).metadata(),
            false => fs::metadata(path),
        }
    }
}

fn io_error(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP => io::Error::other("its path contains a symbolic link, which is not followed"),
        errno => errno.into(),
    }
}

pub(crate) fn is_disk(kind: FileType) -> bool {
    kind.is_file() || kind.is_block_device()
}

/// Returns the length of a file or block device in bytes. Seeks, because devices report no length.
pub(crate) fn size_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}
