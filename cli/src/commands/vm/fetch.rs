//! Files of an image that are copied as a whole, concurrently over one connection.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use libtombolo::{Last, Node, StreamError, block_on};
use tombolo_back_image_file::LinkPolicy;
use tombolo_core::Error;
use tombolo_core::fs::{FileType, Name, OpenFlags};
use tombolo_core::mem::Buffer;
use tombolo_wire_image::{Digester, NAME, PREFIX_BYTES, Sidecar, head_bytes};

use super::config::{CONFIG, Config};
use super::home::TEXT_BYTES_MAX;
use crate::commands::files::open_path::{OpenPath, Opener};
use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

/// Open directory of an image, whose files are read as a whole.
pub struct Files {
    place: OpenPath,
    dir: Node,
}

/// Size in bytes of the first read of a sidecar, which covers the heads of most.
const HEAD_BYTES: usize = 64 << 10;

/// Maximum size of a device state, kernel or initial RAM disk.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Writer with a limit, for servers that send without end.
pub struct Bounded<T> {
    pub to: T,
    left: u64,
    max: u64,
}

impl<T> Bounded<T> {
    pub fn new(to: T, max: u64) -> Self {
        Self { to, left: max, max }
    }
}

impl<T: Write> Write for Bounded<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| io::Error::other(too_long(self.max)))?;
        self.to.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writer that computes a digest and stores nothing.
struct Sum(Digester);

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Time that caches of a tree may need to notice a new directory, if they had looked it up while it was
/// missing.
const NEW_NAME_WAIT: Duration = Duration::from_secs(4);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Finds the directory of an image. A missing remote directory is looked up again for a while, because it may
/// just have been created.
fn found(place: &OpenPath) -> Result<Node, Failure> {
    let end = Instant::now() + NEW_NAME_WAIT;
    loop {
        match place.find(Last::Follow) {
            Err(Error::NotFound) if place.is_remote && Instant::now() < end => thread::sleep(POLL_INTERVAL),
            found => return found.map_err(|error| place.cannot("find", &error)),
        }
    }
}

fn too_long(max: u64) -> String {
    format!("it exceeds {max} bytes")
}

/// Refuses a directory that was found through a symbolic link, which another user may have placed since its
/// path was resolved.
fn is_at(dir: &Node, path: &Path) -> Result<(), Error> {
    let way = LinkPolicy { no_links: true };
    let named = way.look(path).map_err(|error| Error::io(error.to_string()))?;
    let found = block_on(dir.attr())?;
    match (found.fsid, found.fileid) == (named.dev(), named.ino()) {
        true => Ok(()),
        false => Err(Error::io("it was replaced meanwhile")),
    }
}

/// Returns the failure for a boot file that was changed.
pub fn has_changed(doing: &str, name: &str) -> Failure {
    Failure::cannot(doing, format!("its {name} has changed since the image was created"))
        .remedy("restore the original file")
}

impl Files {
    /// Opens the directory of an image. Refuses a local one that is reached through a symbolic link.
    pub fn of(image: &Path) -> Result<Self, Failure> {
        let location = Location::of_word(image.as_os_str()).map_err(Failure::usage)?;
        let place = Opener::new().open(&location, End::Target)?;
        let dir = found(&place)?;
        if let Location::Dir(path) = &location {
            is_at(&dir, path).map_err(|error| place.cannot("use", &error))?;
        }
        Ok(Self { place, dir })
    }

    /// Copies these files to a local directory, concurrently; returns the first failure.
    pub fn copy(&self, names: &[&str], to: &Path) -> Outcome {
        thread::scope(|scope| {
            let copies: Vec<_> =
                names.iter().map(|name| scope.spawn(move || self.copy_one(name, &to.join(name)))).collect();
            let all = copies.into_iter().map(|copy| copy.join().unwrap_or_else(|_| Err(Failure::silent())));
            // Collecting waits for all copies before a failure is returned.
            all.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn copy_one(&self, name: &str, to: &Path) -> Outcome {
        let reading = |error| self.place.cannot(&format!("read the file {name} of"), &error);
        let writing = |error| Failure::cannot(format_args!("write {}", to.display()), &error);
        let (file, len) = self.open(name).map_err(reading)?;
        let max = if name == CONFIG { TEXT_BYTES_MAX } else { FILE_BYTES_MAX };
        if len > max {
            return Err(reading(Error::io(too_long(max))));
        }
        let mut copy = Bounded::new(File::create(to).map_err(writing)?, max);
        match block_on(file.read_to(0, &mut copy, Default::default())) {
            Ok(_) => Ok(()),
            Err(StreamError::File(error)) => Err(reading(error)),
            Err(StreamError::Stream(error)) => Err(writing(error)),
        }
    }

    /// Refuses the image if a boot file has changed since its creation. A file whose size and time are those
    /// in the sidecar is not read.
    pub fn check_boot_files(&self, config: &Config) -> Outcome {
        let sidecar = if config.boot.is_some() { self.sidecar() } else { None };
        config.boot_files().try_for_each(|name| {
            let reading = |error| self.place.cannot(&format!("read the file {name} of"), &error);
            let attr = self.find(name).and_then(|node| block_on(node.attr())).map_err(reading)?;
            let known = sidecar.as_ref().and_then(|sidecar| sidecar.file(name.as_bytes()));
            if known.is_some_and(|file| file.is_of(attr.size, attr.mtime)) {
                return Ok(());
            }
            let digest = self.digest_of(name).map_err(reading)?;
            match config.digest_of(name) == Some(&digest) {
                true => Ok(()),
                false => Err(has_changed(&format!("use image {}", self.place.word), name)),
            }
        })
    }

    fn digest_of(&self, name: &str) -> Result<String, Error> {
        let (file, len) = self.open(name)?;
        if len > FILE_BYTES_MAX {
            return Err(Error::io(too_long(FILE_BYTES_MAX)));
        }
        let mut sum = Bounded::new(Sum(Digester::new()), FILE_BYTES_MAX);
        match block_on(file.read_to(0, &mut sum, Default::default())) {
            Ok(_) => Ok(sum.to.0.finalize().to_hex().to_string()),
            Err(StreamError::File(error)) => Err(error),
            Err(StreamError::Stream(error)) => Err(Error::io(error)),
        }
    }

    /// Returns the sidecar, if its entry for this file is valid.
    pub fn sidecar_of(&self, name: &str) -> Option<Sidecar> {
        let attr = thread::scope(|scope| {
            let found = scope.spawn(|| block_on(self.find(name).ok()?.attr()).ok());
            let sidecar = self.sidecar();
            sidecar.zip(found.join().ok().flatten())
        });
        let (sidecar, attr) = attr?;
        let is_of = sidecar.file(name.as_bytes()).is_some_and(|file| file.is_of(attr.size, attr.mtime));
        is_of.then_some(sidecar)
    }

    fn sidecar(&self) -> Option<Sidecar> {
        let file = self.open(NAME).ok()?.0;
        let read = |len: usize| {
            let buffer = Buffer::new(len);
            let done = block_on(file.read_at(0, buffer.sink(0..len)).resolve()).ok()?;
            Some(buffer.source(0..len).to_vec(done.count))
        };
        let first = read(HEAD_BYTES)?;
        // The length is bounded by the format.
        let len = head_bytes(first.first_chunk::<PREFIX_BYTES>()?).ok()?;
        let head = if len <= first.len() { first } else { read(len)? };
        Sidecar::decode(head.get(..len)?).ok()
    }

    fn find(&self, name: &str) -> Result<Node, Error> {
        block_on(self.dir.find(Name::new(name.as_bytes()).map_err(|_| Error::InvalidArgument)?).resolve())
    }

    /// Opens a file and returns its length.
    fn open(&self, name: &str) -> Result<(libtombolo::File, u64), Error> {
        let node = self.find(name)?;
        let attr = block_on(node.attr())?;
        // A foreign entry could be a link out of the image, or a pipe that nothing writes to.
        if attr.file_type != FileType::Regular {
            return Err(Error::NotSupported);
        }
        Ok((block_on(node.open(OpenFlags::READ))?, attr.size))
    }
}
