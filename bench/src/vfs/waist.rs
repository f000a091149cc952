//! The waist: over local-dir in this process, or over what leads elsewhere.

use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::{
    AccessMask, Client, Create, Created, Exclusive, Export, File, FileSystem, Mode, Name, NewMode, NodeId,
    OpenFlags, PermissionCheck, RenameFlags, SetAttr, Write,
};
use tombolo_core::{Answer, Ctx, Error as FsError, SessionId};
use tombolo_mem::Buffer;

use super::{Operation, Vfs};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::measure::Clock;

/// A session with a file system.
pub struct Waist {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    folder: NodeId,
    /// A node that is there, its name and where that is; and one opening of it.
    node: NodeId,
    file: File,
    buffer: Buffer,
}

const NAME: &[u8] = b"waist";
const OTHER_NAME: &[u8] = b"waist-renamed";
const EXISTING: &[u8] = b"waist-there";

impl Waist {
    /// With local-dir on a directory with the parts of a [`Tree`], with nothing in between.
    pub fn new(shared: &Path) -> Result<Self> {
        let failed = |answer: String| Error::Wrong { what: "local-dir".to_owned(), answer };
        let export = LocalDir::open(shared, Options::default()).map_err(|error| failed(error.to_string()))?;
        let session = SessionId(1);
        let client = Client { session, label: "bench".to_owned(), checks: PermissionCheck::Caller };
        let fs = export.attach(&client).map_err(|error| failed(error.to_string()))?;
        Self::over(fs, Ctx::root(session))
    }

    /// On a file system with the parts of a [`Tree`], as whoever asks there.
    pub fn over(fs: Arc<dyn FileSystem>, cx: Ctx) -> Result<Self> {
        let folder = Tree::new_folder().as_os_str().as_encoded_bytes();
        let folder = done(fs.lookup(&cx, NodeId::ROOT, name(folder)?), "lookup")?.node;
        let made = done(fs.create(&cx, folder, name(EXISTING)?, &how(Exclusive::No)), "create")?;
        let file = File { node: made.entry.node, open: made.open };
        let mut waist = Self { fs, cx, folder, node: made.entry.node, file, buffer: Buffer::new(4096) };
        waist.write()?;
        Ok(waist)
    }

    fn create(&self) -> Result<Created> {
        done(self.fs.create(&self.cx, self.folder, name(NAME)?, &how(Exclusive::Yes)), "create")
    }

    /// Takes back what a create left, but for the name.
    fn close(&self, made: &Created) {
        let file = File { node: made.entry.node, open: made.open };
        self.fs.release(&self.cx, file);
        self.fs.forget(&self.cx, &[(made.entry.node, 1)]);
    }

    fn unlink(&self, at: &[u8]) -> Result<()> {
        done(self.fs.unlink(&self.cx, self.folder, name(at)?), "unlink").map(drop)
    }

    fn rmdir(&self) -> Result<()> {
        done(self.fs.rmdir(&self.cx, self.folder, name(NAME)?), "rmdir").map(drop)
    }

    fn mkdir(&self) -> Result<NodeId> {
        let mode = NewMode::settled(Mode::new(0o755));
        Ok(done(self.fs.mkdir(&self.cx, self.folder, name(NAME)?, mode), "mkdir")?.entry.node)
    }

    fn open(&self) -> Result<File> {
        let opened = done(self.fs.open(&self.cx, self.node, OpenFlags::READ), "open")?;
        Ok(File { node: self.node, open: opened.open })
    }

    fn write(&mut self) -> Result<()> {
        let from = self.buffer.source(0..4096);
        let written = done(self.fs.write(&self.cx, self.file, &Write::default(), from), "write")?;
        whole(written.count, "write")
    }

    fn read(&mut self) -> Result<()> {
        let into = self.buffer.sink(0..4096);
        let read = done(self.fs.read(&self.cx, self.file, 0, into), "read")?;
        whole(read.count, "read")
    }
}

impl Vfs for Waist {
    fn cycle(&mut self, operation: Operation, clock: &mut Clock) -> Result<()> {
        match operation {
            Operation::Create => {
                let made = clock.time(|| self.create())?;
                self.close(&made);
                self.unlink(NAME)
            }
            Operation::Unlink => {
                let made = self.create()?;
                self.close(&made);
                clock.time(|| self.unlink(NAME))
            }
            Operation::Rename => {
                let made = self.create()?;
                self.close(&made);
                let (from, to) = (name(NAME)?, name(OTHER_NAME)?);
                let rename =
                    || self.fs.rename(&self.cx, self.folder, from, self.folder, to, RenameFlags::empty());
                clock.time(|| done(rename(), "rename"))?;
                self.unlink(OTHER_NAME)
            }
            Operation::Mkdir => {
                let node = clock.time(|| self.mkdir())?;
                self.fs.forget(&self.cx, &[(node, 1)]);
                self.rmdir()
            }
            Operation::Rmdir => {
                let node = self.mkdir()?;
                self.fs.forget(&self.cx, &[(node, 1)]);
                clock.time(|| self.rmdir())
            }
            Operation::Open => {
                let file = clock.time(|| self.open())?;
                self.fs.release(&self.cx, file);
                Ok(())
            }
            Operation::Release => {
                let file = self.open()?;
                clock.time(|| self.fs.release(&self.cx, file));
                Ok(())
            }
            Operation::Getattr => {
                clock.time(|| done(self.fs.getattr(&self.cx, self.node, None), "getattr")).map(drop)
            }
            Operation::Lookup => {
                let there = name(EXISTING)?;
                let entry = clock.time(|| done(self.fs.lookup(&self.cx, self.folder, there), "lookup"))?;
                self.fs.forget(&self.cx, &[(entry.node, 1)]);
                Ok(())
            }
            Operation::Permission => {
                clock.time(|| done(self.fs.access(&self.cx, self.node, AccessMask::READ), "access"))
            }
            Operation::Setattr => {
                let set = SetAttr { mode: Some(Mode::new(0o644)), ..SetAttr::default() };
                clock.time(|| done(self.fs.setattr(&self.cx, self.node, None, &set), "setattr")).map(drop)
            }
            Operation::Read => clock.time(|| self.read()),
            Operation::Write => clock.time(|| self.write()),
        }
    }
}

fn name(bytes: &[u8]) -> Result<Name<'_>> {
    Name::new(bytes).map_err(|error| Error::Wrong { what: "a name".to_owned(), answer: error.to_string() })
}

fn how(exclusive: Exclusive) -> Create {
    let mode = NewMode::settled(Mode::new(0o644));
    Create { mode, flags: OpenFlags::READ | OpenFlags::WRITE, exclusive }
}

fn done<T>(answer: Answer<T>, what: &str) -> Result<T> {
    let failed = |error: FsError| Error::Wrong { what: what.to_owned(), answer: error.to_string() };
    answer.wait().map_err(failed)
}

fn whole(count: usize, what: &str) -> Result<()> {
    if count == 4096 {
        return Ok(());
    }
    Err(Error::Wrong { what: what.to_owned(), answer: format!("{count} bytes") })
}
