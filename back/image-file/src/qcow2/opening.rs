//! Opening of qcow2 images with their backing files.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imago::file::File as Storage;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, FormatDriverBuilder, StorageOpenOptions,
};
use thiserror::Error as ThisError;
use tombolo_core::block::{BlockSizeError, Geometry, OpenOptions};
use tombolo_host_runtime::thread_pool::Lane;

use super::header::{HeaderError, Unsupported};
use super::{Qcow2Image, tables};
use crate::claim::{self, User};
use crate::opening::{LinkPolicy, OpenError, create_or_truncate};

/// Reasons why a qcow2 image was not opened.
#[derive(Debug, ThisError)]
pub enum Qcow2OpenError {
    /// The image, or one of its backing files, cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The image, or one of its backing files.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// A new image cannot be created at this path.
    #[error(transparent)]
    Create(#[from] OpenError),
    /// A file that is no qcow2 image, or a damaged one.
    #[error("{} is not a valid qcow2 image", path.display())]
    Format {
        /// The image, or one of its backing files.
        path: PathBuf,
        /// Description of the damage.
        #[source]
        source: io::Error,
    },
    /// A valid image that needs an unsupported feature of the format.
    #[error("the qcow2 image {} is not supported", path.display())]
    Unsupported {
        /// The image, or one of its backing files.
        path: PathBuf,
        /// The unsupported feature.
        #[source]
        source: Unsupported,
    },
    /// The image is in use in a conflicting way, mostly by another process.
    #[error("{} is in use by another process or disk, which {conflict}; end that use first", path.display())]
    InUse {
        /// The image, or one of its backing files.
        path: PathBuf,
        /// The conflicting operation.
        conflict: &'static str,
    },
    /// The backing file is outside the allowed directories.
    #[error(
        "the backing file of {} is {}, in another directory: allow it with --backing-dir",
        image.display(), path.display()
    )]
    Elsewhere {
        /// The image.
        image: PathBuf,
        /// The backing file.
        path: PathBuf,
    },
    /// The image does not specify the format of its backing file. If the format were guessed from the
    /// contents, the guest could choose it.
    #[error(
        "{} does not specify the format of its backing file {}: set it with qemu-img rebase -u -b FILE -F raw|qcow2",
        image.display(), path.display()
    )]
    FormatUnspecified {
        /// The image.
        image: PathBuf,
        /// The backing file.
        path: PathBuf,
    },
    /// The specified format of the backing file is unknown.
    #[error("the backing file of {} has the format {format}; only raw and qcow2 are supported", image.display())]
    FormatUnknown {
        /// The image.
        image: PathBuf,
        /// The format specified.
        format: String,
    },
    /// The chain is too long or circular.
    #[error("{} has more than {CHAIN_MAX} backing files, or is its own backing file", path.display())]
    Chain {
        /// Image at which following the backing files was abandoned.
        path: PathBuf,
    },
    /// The requested block size is invalid, or does not divide the disk's size.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
    /// The image's disk is empty.
    #[error("{} is empty: set its size with qemu-img resize", path.display())]
    Empty {
        /// The image.
        path: PathBuf,
    },
}

impl Qcow2OpenError {
    pub(super) fn of_header(path: &Path, error: HeaderError) -> Self {
        let path = path.to_owned();
        match error {
            HeaderError::Damaged(source) => Self::Format { path, source },
            HeaderError::Unsupported(source) => Self::Unsupported { path, source },
        }
    }
}

/// Maximum number of backing files of an image.
pub(super) const CHAIN_MAX: usize = 64;

type Result<T> = std::result::Result<T, Qcow2OpenError>;

impl Qcow2Image {
    /// Opens the qcow2 image at `path` with its backing files, which must lie in its own directory or in
    /// `backing_dir`. `lane` runs nearly all operations, because they may wait for a disk.
    pub fn open(
        path: &Path,
        options: &OpenOptions,
        backing_dir: Option<&Path>,
        lane: Lane,
    ) -> Result<Arc<Self>> {
        let (opener, path) = Opener::new(path, backing_dir, options)?;
        // imago panics on some kinds of damage.
        let opened = catch_unwind(AssertUnwindSafe(|| opener.qcow2(&path, !options.read_only, 0)));
        let format = opened.unwrap_or_else(|_| {
            let source = io::Error::other("its tables are damaged: run qemu-img check");
            Err(Qcow2OpenError::Format { path: path.clone(), source })
        })?;
        let geometry = Geometry::of_file(format.size()).in_whole_blocks(options.block_bytes)?;
        if geometry.size_bytes == 0 {
            return Err(Qcow2OpenError::Empty { path });
        }
        Ok(Arc::new(Self::new(format, geometry, options.read_only, lane)))
    }
}

impl Qcow2Image {
    /// Creates an empty qcow2 image of `size_bytes` without a backing file. A new file has permissions for
    /// the owner only; an existing file at `path` is emptied unless it is in use as an image.
    pub fn create(path: &Path, size_bytes: u64, options: &OpenOptions, lane: Lane) -> Result<Arc<Self>> {
        let failed = |source| Qcow2OpenError::Open { path: path.to_owned(), source };
        let file = create_or_truncate(path)?;
        let opening = StorageOpenOptions::new().filename(path).write(true);
        let storage = Storage::from_open_file(file, opening).map_err(failed)?;
        let builder = Qcow2::<Storage>::create_builder(storage).size(size_bytes);
        let image = builder
            .create_open(DenyImplicitOpenGate::default(), |image| {
                Ok(Qcow2::<Storage>::builder(image).backing(None).write(true))
            })
            .map_err(failed)?;
        let geometry = Geometry::of_file(size_bytes).in_whole_blocks(options.block_bytes)?;
        Ok(Arc::new(Self::new(FormatAccess::new(image), geometry, false, lane)))
    }
}

/// Opener of an image's files.
pub(super) struct Opener {
    /// Directories in which, but not below which, files referenced by an image may lie.
    allowed: Vec<PathBuf>,
    locks: bool,
}

impl Opener {
    /// Creates an opener for the image at `path`. Also returns its canonical path.
    pub fn new(path: &Path, backing_dir: Option<&Path>, options: &OpenOptions) -> Result<(Self, PathBuf)> {
        let found = |path: &Path| {
            path.canonicalize().map_err(|source| Qcow2OpenError::Open { path: path.to_owned(), source })
        };
        // With `no_links` the path is used as given, so that `file` refuses a symbolic link in it.
        let path = if options.no_links { path.to_owned() } else { found(path)? };
        let own = path.parent().unwrap_or(Path::new("/")).to_owned();
        let allowed = [Some(own), backing_dir.map(found).transpose()?].into_iter().flatten().collect();
        Ok((Self { allowed, locks: options.locks }, path))
    }

    fn qcow2(&self, path: &Path, is_writer: bool, depth: usize) -> Result<FormatAccess<Storage>> {
        if depth > CHAIN_MAX {
            return Err(Qcow2OpenError::Chain { path: path.to_owned() });
        }
        let unsound = |source| Qcow2OpenError::Format { path: path.to_owned(), source };
        let file = self.file(path, is_writer)?;
        tables::check(&file).map_err(|error| Qcow2OpenError::of_header(path, error))?;
        let storage = self.storage(path, file, is_writer)?;
        let mut image = Qcow2::<Storage>::open_image(storage, is_writer).map_err(unsound)?;
        // Every file that imago would open implicitly is opened here instead.
        let data = image.implicit_external_data_file().cloned();
        let data = data.map(|name| {
            let place = self.resolve(path, &name)?;
            self.storage(&place, self.file(&place, is_writer)?, is_writer)
        });
        let data = data.transpose()?;
        if data.is_none() && image.requires_external_data_file() {
            return Err(unsound(io::Error::other("it does not name its external data file")));
        }
        image.set_data_file(data);
        let backing = image.implicit_backing_file().cloned();
        let specified = image.implicit_backing_format().cloned();
        let backing =
            backing.map(|name| self.backing(path, &name, specified.as_deref(), depth)).transpose()?;
        image.set_backing(backing);
        Ok(FormatAccess::new(image))
    }

    fn backing(
        &self,
        image: &Path,
        name: &str,
        format: Option<&str>,
        depth: usize,
    ) -> Result<FormatAccess<Storage>> {
        let path = self.resolve(image, name)?;
        match self.format(image, &path, format)? {
            "qcow2" => self.qcow2(&path, false, depth + 1),
            _ => Raw::open_image(self.storage(&path, self.file(&path, false)?, false)?, false)
                .map(FormatAccess::new)
                .map_err(|source| Qcow2OpenError::Open { path, source }),
        }
    }

    /// Checks the format that an image specifies for its backing file.
    pub fn format(&self, image: &Path, path: &Path, specified: Option<&str>) -> Result<&'static str> {
        match specified {
            Some("qcow2") => Ok("qcow2"),
            Some("raw") => Ok("raw"),
            Some(format) => {
                Err(Qcow2OpenError::FormatUnknown { image: image.to_owned(), format: format.to_owned() })
            }
            None => Err(Qcow2OpenError::FormatUnspecified { image: image.to_owned(), path: path.to_owned() }),
        }
    }

    /// Resolves a file name in an image, relative to the image's directory, if the file may be opened.
    pub fn resolve(&self, image: &Path, name: &str) -> Result<PathBuf> {
        let named = image.parent().unwrap_or(Path::new("/")).join(name);
        let path =
            named.canonicalize().map_err(|source| Qcow2OpenError::Open { path: named.clone(), source })?;
        match self.allowed.iter().any(|dir| path.parent() == Some(dir)) {
            true => Ok(path),
            false => Err(Qcow2OpenError::Elsewhere { image: image.to_owned(), path }),
        }
    }

    fn storage(&self, path: &Path, file: fs::File, is_writer: bool) -> Result<Storage> {
        let options = StorageOpenOptions::new().filename(path).write(is_writer);
        Storage::from_open_file(file, options)
            .map_err(|source| Qcow2OpenError::Open { path: path.to_owned(), source })
    }

    /// Opens a file of the image, and locks it if the options require that. Refuses symbolic links: the path
    /// is canonical, unless `no_links` is set, so a link was created after the path was checked.
    pub fn file(&self, path: &Path, is_writer: bool) -> Result<fs::File> {
        let failed = |source| Qcow2OpenError::Open { path: path.to_owned(), source };
        let file = LinkPolicy { no_links: true }.open(path, is_writer).map_err(failed)?;
        if !crate::opening::is_disk(file.metadata().map_err(failed)?.file_type()) {
            return Err(failed(io::Error::other("it is neither a file nor a block device")));
        }
        if self.locks
            && let Some(conflict) = claim::claim(file.as_fd(), User { is_writer, number: 0 })
                .map_err(|errno| failed(errno.into()))?
        {
            return Err(Qcow2OpenError::InUse { path: path.to_owned(), conflict });
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symlink_replacing_checked_file_is_refused() {
        let (dir, elsewhere) =
            (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let [image, base] = ["image.qcow2", "base.img"].map(|name| dir.path().join(name));
        let secret = elsewhere.path().join("secret");
        for file in [&image, &base, &secret] {
            fs::write(file, "x").expect("written");
        }
        let (opener, image) = Opener::new(&image, None, &OpenOptions::default()).expect("there");
        let place = opener.resolve(&image, "base.img").expect("beside it");
        opener.file(&place, false).expect("a file");
        fs::remove_file(&base).and_then(|()| symlink(&secret, &base)).expect("a link");
        let refused = opener.file(&place, false).expect_err("a link").to_string();
        assert!(refused.contains("base.img"), "{refused}");
    }
}
