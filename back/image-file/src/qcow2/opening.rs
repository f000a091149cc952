//! Opening a qcow2 image with all that it stands on.

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
use crate::opening::{OpenError, Way, emptied};

/// Why a qcow2 image was not opened.
#[derive(Debug, ThisError)]
pub enum Qcow2OpenError {
    /// A file of it cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The image, or one that it stands on.
        path: PathBuf,
        /// What was reported.
        #[source]
        source: io::Error,
    },
    /// A new one cannot be made there.
    #[error(transparent)]
    Create(#[from] OpenError),
    /// What is in it is no qcow2 image, or a damaged one.
    #[error("{} is no sound qcow2 image", path.display())]
    Format {
        /// The image, or one that it stands on.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// A sound image that needs an unsupported feature of the format.
    #[error("{} is a qcow2 image that is not supported", path.display())]
    Unsupported {
        /// The image, or one that it stands on.
        path: PathBuf,
        /// The feature that it needs.
        #[source]
        source: Unsupported,
    },
    /// Another process has it, in a way that does not go together with this one.
    #[error("{} is in use by another process, which {held}; end that first", path.display())]
    InUse {
        /// The image, or one that it stands on.
        path: PathBuf,
        /// What the other does, or does not let others do.
        held: &'static str,
    },
    /// It stands on a file that the operator did not allow.
    #[error(
        "{} stands on {}, which lies in another directory: allow that with --backing-dir",
        image.display(), path.display()
    )]
    Elsewhere {
        /// The image.
        image: PathBuf,
        /// What it names.
        path: PathBuf,
    },
    /// The format of what it stands on is not said. To guess it from its content would let a guest choose.
    #[error(
        "{} does not say which format {} has: qemu-img rebase -u -b FILE -F raw|qcow2 says it",
        image.display(), path.display()
    )]
    FormatUnsaid {
        /// The image.
        image: PathBuf,
        /// What it names.
        path: PathBuf,
    },
    /// The format of what it stands on is none of those that are known here.
    #[error("{} stands on an image of the format {format}; raw and qcow2 are known", image.display())]
    FormatUnknown {
        /// The image.
        image: PathBuf,
        /// What it says.
        format: String,
    },
    /// It stands on too many others, or on itself.
    #[error("{} stands on more than {CHAIN_MAX} others, or on itself", path.display())]
    Chain {
        /// Where it was given up.
        path: PathBuf,
    },
    /// The block size is none.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
    /// There is not even one block in it.
    #[error("{} has no block: qemu-img resize gives it a size", path.display())]
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

/// So many images stand on each other at most.
pub(super) const CHAIN_MAX: usize = 64;

type Result<T> = std::result::Result<T, Qcow2OpenError>;

impl Qcow2Image {
    /// Opens the qcow2 image at `path`, and those that it stands on, as far as they lie in its own directory
    /// or in `backing_dir`. What waits for a disk is done by `lane`, which is nearly everything.
    pub fn open(
        path: &Path,
        options: &OpenOptions,
        backing_dir: Option<&Path>,
        lane: Lane,
    ) -> Result<Arc<Self>> {
        let (opener, path) = Opener::new(path, backing_dir, options)?;
        // The format's code panics over some damage.
        let opened = catch_unwind(AssertUnwindSafe(|| opener.qcow2(&path, !options.read_only, 0)));
        let format = opened.unwrap_or_else(|_| {
            let source = io::Error::other("its tables are damaged: qemu-img check tells more");
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
    /// Makes a qcow2 image of `size_bytes` that stands on no other and has no data, and that only its owner
    /// may use. What lies at `path` is emptied, but for an image that another process has.
    pub fn create(path: &Path, size_bytes: u64, options: &OpenOptions, lane: Lane) -> Result<Arc<Self>> {
        let failed = |source| Qcow2OpenError::Open { path: path.to_owned(), source };
        let file = emptied(path)?;
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

pub(super) struct Opener {
    /// Directories in which files may lie that an image names.
    allowed: Vec<PathBuf>,
    locks: bool,
}

impl Opener {
    /// For the image at `path`, and where that really lies.
    pub fn new(path: &Path, backing_dir: Option<&Path>, options: &OpenOptions) -> Result<(Self, PathBuf)> {
        let found = |path: &Path| {
            path.canonicalize().map_err(|source| Qcow2OpenError::Open { path: path.to_owned(), source })
        };
        // What is to lie behind no link is where its path says.
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
        // All that it would open by itself is opened here, or there is none.
        let data = image.implicit_external_data_file().cloned();
        let data = data.map(|name| {
            let place = self.place(path, &name)?;
            self.storage(&place, self.file(&place, is_writer)?, is_writer)
        });
        let data = data.transpose()?;
        if data.is_none() && image.requires_external_data_file() {
            return Err(unsound(io::Error::other("it does not name its data file")));
        }
        image.set_data_file(data);
        let backing = image.implicit_backing_file().cloned();
        let said = image.implicit_backing_format().cloned();
        let backing = backing.map(|name| self.backing(path, &name, said.as_deref(), depth)).transpose()?;
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
        let path = self.place(image, name)?;
        match self.format(image, &path, format)? {
            "qcow2" => self.qcow2(&path, false, depth + 1),
            _ => Raw::open_image(self.storage(&path, self.file(&path, false)?, false)?, false)
                .map(FormatAccess::new)
                .map_err(|source| Qcow2OpenError::Open { path, source }),
        }
    }

    /// The format that an image says another has which it stands on: one of those that are known.
    pub fn format(&self, image: &Path, path: &Path, said: Option<&str>) -> Result<&'static str> {
        match said {
            Some("qcow2") => Ok("qcow2"),
            Some("raw") => Ok("raw"),
            Some(format) => {
                Err(Qcow2OpenError::FormatUnknown { image: image.to_owned(), format: format.to_owned() })
            }
            None => Err(Qcow2OpenError::FormatUnsaid { image: image.to_owned(), path: path.to_owned() }),
        }
    }

    /// The file that an image names, from its own directory on, if it may be opened.
    pub fn place(&self, image: &Path, name: &str) -> Result<PathBuf> {
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

    /// Opens a file of the image. Its path was checked: a link that has come on it since then is not
    /// followed.
    pub fn file(&self, path: &Path, is_writer: bool) -> Result<fs::File> {
        let failed = |source| Qcow2OpenError::Open { path: path.to_owned(), source };
        let file = Way { no_links: true }.open(path, is_writer).map_err(failed)?;
        if !crate::opening::is_disk(file.metadata().map_err(failed)?.file_type()) {
            return Err(failed(io::Error::other("it is neither a file nor a block device")));
        }
        if self.locks
            && let Some(held) = claim::claim(file.as_fd(), User { is_writer, number: 0 })
                .map_err(|errno| failed(errno.into()))?
        {
            return Err(Qcow2OpenError::InUse { path: path.to_owned(), held });
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_put_in_place_of_a_checked_file_is_refused() {
        let (dir, elsewhere) =
            (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let [image, base] = ["image.qcow2", "base.img"].map(|name| dir.path().join(name));
        let secret = elsewhere.path().join("secret");
        for file in [&image, &base, &secret] {
            fs::write(file, "x").expect("written");
        }
        let (opener, image) = Opener::new(&image, None, &OpenOptions::default()).expect("there");
        let place = opener.place(&image, "base.img").expect("beside it");
        opener.file(&place, false).expect("a file");
        fs::remove_file(&base).and_then(|()| symlink(&secret, &base)).expect("a link");
        let refused = opener.file(&place, false).expect_err("a link").to_string();
        assert!(refused.contains("base.img"), "{refused}");
    }
}
