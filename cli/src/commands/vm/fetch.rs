//! Files of an image that are read whole, all of them over one link and at the same time.

use std::fs::File;
use std::path::Path;
use std::thread;

use libtombolo::{Last, Node, StreamError, block_on};
use tombolo_core::Error;
use tombolo_core::fs::{FileType, Name, OpenFlags};
use tombolo_core::mem::Buffer;
use tombolo_wire_image::{NAME, PREFIX_BYTES, Sidecar, head_bytes};

use crate::commands::files::open_path::{OpenPath, Opener};
use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

/// The directory of an image.
pub struct Files {
    place: OpenPath,
    dir: Node,
}

/// A head is read with the first so many bytes mostly.
const HEAD_BYTES: usize = 64 << 10;

impl Files {
    /// Where this host has it.
    pub fn of(image: &Path) -> Result<Self, Failure> {
        let location = Location::of_word(image.as_os_str()).map_err(Failure::usage)?;
        let place = Opener::new().open(&location, End::Target)?;
        let dir = place.found(Last::Follow)?;
        Ok(Self { place, dir })
    }

    /// Copies these files into a directory of this host.
    pub fn copy(&self, names: &[&str], to: &Path) -> Outcome {
        thread::scope(|scope| {
            let copies: Vec<_> =
                names.iter().map(|name| scope.spawn(move || self.copy_one(name, &to.join(name)))).collect();
            let all = copies.into_iter().map(|copy| copy.join().unwrap_or_else(|_| Err(Failure::silent())));
            // All have ended before one's failure is told.
            all.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn copy_one(&self, name: &str, to: &Path) -> Outcome {
        let reading = |error: &Error| self.place.cannot(&format!("read the file {name} of"), error);
        let writing = |error| Failure::cannot(format_args!("write {}", to.display()), &error);
        let file = self.open(name).map_err(|error| reading(&error))?;
        let mut copy = File::create(to).map_err(writing)?;
        match block_on(file.read_to(0, &mut copy, Default::default())) {
            Ok(_) => Ok(()),
            Err(StreamError::File(error)) => Err(reading(&error)),
            Err(StreamError::Stream(error)) => Err(writing(error)),
        }
    }

    /// What its sidecar says of the file of this name, if it speaks of the version that is there.
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
        let file = self.open(NAME).ok()?;
        let read = |len: usize| {
            let buffer = Buffer::new(len);
            let done = block_on(file.read_at(0, buffer.sink(0..len)).resolve()).ok()?;
            Some(buffer.source(0..len).to_vec(done.count))
        };
        let first = read(HEAD_BYTES)?;
        // It says no more than a head may have.
        let len = head_bytes(first.first_chunk::<PREFIX_BYTES>()?).ok()?;
        let head = if len <= first.len() { first } else { read(len)? };
        Sidecar::decode(head.get(..len)?).ok()
    }

    fn find(&self, name: &str) -> Result<Node, Error> {
        block_on(self.dir.find(Name::new(name.as_bytes()).map_err(|_| Error::InvalidArgument)?).resolve())
    }

    fn open(&self, name: &str) -> Result<libtombolo::File, Error> {
        let node = self.find(name)?;
        // One that comes from elsewhere may lead out of the image, or wait for what nothing writes.
        if block_on(node.attr())?.file_type != FileType::Regular {
            return Err(Error::NotSupported);
        }
        block_on(node.open(OpenFlags::READ))
    }
}
