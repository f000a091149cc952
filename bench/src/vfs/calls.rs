//! By system calls, on a mount or on the directory itself. A call may make the kernel send more than one request; the
//! figure is that of the call.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Operation, Vfs};
use crate::error::{Doing, Error, Result};
use crate::files::Tree;
use crate::measure::Clock;

/// `O_PATH`: finds a name and does not open what it names.
const O_PATH: i32 = 0o10_000_000;
/// How far apart reads lie, so that the kernel does not read ahead.
const STRIDE: u64 = 17 * 4096;

/// A directory tree, by path.
pub struct Calls {
    path: PathBuf,
    other: PathBuf,
    there: PathBuf,
    large: PathBuf,
    file: File,
    next: u64,
    buffer: Vec<u8>,
}

impl Calls {
    /// On the tree as seen at `root`; `name` tells contestants apart. All names are in the root, so that each call looks
    /// up one.
    pub fn new(root: &Path, name: &str) -> Result<Self> {
        let there = root.join(format!("{name}-there"));
        fs::write(&there, [b'x'; 4096]).doing_to("write", &there)?;
        let file = open(&there)?;
        Ok(Self {
            path: root.join(name),
            other: root.join(format!("{name}-renamed")),
            there,
            large: root.join(Tree::large()),
            file,
            next: 0,
            buffer: vec![b'x'; 4096],
        })
    }

    fn create(&self) -> Result<File> {
        File::create_new(&self.path).doing_to("create", &self.path)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).doing_to("remove", path)
    }

    fn mkdir(&self) -> Result<()> {
        fs::create_dir(&self.path).doing_to("make", &self.path)
    }

    fn rmdir(&self) -> Result<()> {
        fs::remove_dir(&self.path).doing_to("remove", &self.path)
    }

    /// A page of the large file that the caller's kernel does not have, as opening it anew makes it forget all.
    fn read(&mut self, clock: &mut Clock) -> Result<()> {
        if self.next == 0 {
            self.file = open(&self.large)?;
        }
        let got =
            clock.time(|| self.file.read_at(&mut self.buffer, self.next)).doing_to("read", &self.large)?;
        self.next += STRIDE;
        if self.next + 4096 > Tree::LARGE_BYTES as u64 {
            self.next = 0;
        }
        if got != 4096 {
            return Err(Error::Wrong { what: "read".to_owned(), answer: format!("{got} bytes") });
        }
        Ok(())
    }
}

impl Vfs for Calls {
    fn cycle(&mut self, operation: Operation, clock: &mut Clock) -> Result<()> {
        match operation {
            Operation::Create => {
                drop(clock.time(|| self.create())?);
                self.unlink(&self.path)
            }
            Operation::Unlink => {
                drop(self.create()?);
                clock.time(|| self.unlink(&self.path))
            }
            Operation::Rename => {
                drop(self.create()?);
                clock.time(|| fs::rename(&self.path, &self.other)).doing_to("rename", &self.path)?;
                self.unlink(&self.other)
            }
            Operation::Mkdir => {
                clock.time(|| self.mkdir())?;
                self.rmdir()
            }
            Operation::Rmdir => {
                self.mkdir()?;
                clock.time(|| self.rmdir())
            }
            Operation::Open => clock.time(|| open(&self.there)).map(drop),
            Operation::Release => {
                let file = open(&self.there)?;
                clock.time(|| drop(file));
                Ok(())
            }
            Operation::Getattr => {
                clock.time(|| self.file.metadata()).doing_to("look at", &self.there).map(drop)
            }
            Operation::Lookup => {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(O_PATH);
                clock.time(|| options.open(&self.there)).doing_to("find", &self.there).map(drop)
            }
            Operation::Permission => Err(Error::Absent(
                "the caller's kernel checks permissions itself, from the attributes".to_owned(),
            )),
            Operation::Setattr => {
                let mode = Permissions::from_mode(0o644);
                clock.time(|| self.file.set_permissions(mode)).doing_to("change", &self.there)
            }
            Operation::Read => self.read(clock),
            Operation::Write => {
                let written = clock.time(|| self.file.write_at(&self.buffer, 0));
                written.doing_to("write", &self.there).map(drop)
            }
        }
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path).doing_to("open", path)
}
