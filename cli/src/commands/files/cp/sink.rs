//! Targets that a copy can neither replace nor be created in, so that it writes to them: pipes, sockets,
//! devices, open files in /proc.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use libtombolo::{LINKS_MAX, StreamError, block_on};
use tombolo_core::fs::OpenFlags;

use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::Location;

use super::super::shown;
use super::source::Source;

/// A pipe or device of this host to which a file is written, as by cp(1).
pub struct Sink<'a>(&'a Path);

impl<'a> Sink<'a> {
    /// Returns `None` if a copy can replace the target or be created in it.
    pub fn of(target: &'a Location) -> Option<Self> {
        let Location::Dir(path) = target else { return None };
        let file_type = fs::metadata(path).ok()?.file_type();
        let is_device = file_type.is_char_device() || file_type.is_block_device();
        let is_sink = is_device || file_type.is_fifo() || file_type.is_socket() || is_descriptor(path);
        is_sink.then_some(Self(path))
    }

    /// Writes the contents of the source; fails if there are several, or if it is not a file.
    pub fn write(&self, sources: &[Source]) -> Outcome {
        let writing = format!("write {}", shown::name(self.0.as_os_str().as_bytes()));
        let [source] = sources else {
            return Err(
                Failure::cannot(writing, "it is not a directory").remedy("several sources need a directory")
            );
        };
        if source.is_directory() || source.is_link() {
            return Err(Failure::cannot(writing, format!("{} is not a file", source.place.word)));
        }
        let cannot_read = |error: &_| source.place.cannot("read", error);
        let file = block_on(source.node.open(OpenFlags::READ)).map_err(|error| cannot_read(&error))?;
        let mut out = self.open().or_cannot(&writing)?;
        match block_on(file.read_to(0, &mut out, Default::default())) {
            Ok(_) => Ok(()),
            Err(StreamError::File(error)) => Err(cannot_read(&error)),
            Err(StreamError::Stream(error)) => Err(Failure::cannot(&writing, &error)),
        }
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).truncate(true).open(self.0)
    }
}

/// Returns `true` for an open file of a process by its name in proc(5), such as /dev/stdout.
fn is_descriptor(path: &Path) -> bool {
    let mut path = PathBuf::from(path);
    for _ in 0..LINKS_MAX {
        let Some(Ok(dir)) = path.parent().map(Path::canonicalize) else { return false };
        if dir.starts_with("/proc") && dir.ends_with("fd") {
            return true;
        }
        match fs::read_link(&path) {
            Ok(target) => path = dir.join(target),
            Err(_) => return false,
        }
    }
    false
}
