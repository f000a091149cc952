//! A session over a link, as a program has one that calls the library.

use std::sync::Arc;

use tombolo_back_vrpc_client::{Connect, VrpcExport, VrpcFileSystem};
use tombolo_core::fs::{Client, File, FileSystem, Name, NodeId, OpenFlags, PermissionCheck, Write};
use tombolo_core::{Answer, Ctx, Error as FsError, SessionId};
use tombolo_mem::Buffer;

use super::door::Door;
use super::{FILE, timed_by, wrong};
use crate::error::{Error, Result};
use crate::measure::{Clock, Work};

/// What is asked over the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Null,
    /// The attributes of an open file.
    Getattr,
    /// So many bytes into the program's memory.
    Read(usize),
    /// So many bytes, which stay where the server put them.
    ReadInPlace(usize),
    /// So many bytes out of the program's memory.
    Write(usize),
    /// So many bytes that were put together where the server reads them.
    WriteInPlace(usize),
}

impl Deed {
    pub fn bytes(self) -> usize {
        match self {
            Deed::Null | Deed::Getattr => 0,
            Deed::Read(bytes) | Deed::ReadInPlace(bytes) => bytes,
            Deed::Write(bytes) | Deed::WriteInPlace(bytes) => bytes,
        }
    }
}

/// Does one thing over and over, over a link that lives for a turn: a server that polls would have a core all the time.
pub struct Linked {
    door: Door,
    deed: Deed,
}

impl Linked {
    /// Over links that the door makes.
    pub fn new(door: Door, deed: Deed) -> Self {
        Self { door, deed }
    }
}

impl Work for Linked {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let session = Session::begin(&self.door, self.deed.bytes())?;
        timed_by(super::at_once(self.deed.bytes()), count, clock, || session.ask(self.deed))
    }

    fn bytes(&self) -> Option<u64> {
        super::rated(self.deed.bytes())
    }
}

pub struct Session {
    files: Arc<VrpcFileSystem>,
    cx: Ctx,
    file: File,
    buffer: Buffer,
}

impl Session {
    /// Over a link of its own, with so much memory for data.
    pub fn begin(door: &Door, bytes: usize) -> Result<Self> {
        Self::over(door.clone(), bytes)
    }

    /// Over a link that somebody makes, with so much memory for data.
    pub fn over(connect: impl Connect + 'static, bytes: usize) -> Result<Self> {
        let (files, cx) = attach(connect)?;
        let name = Name::new(FILE.as_bytes()).map_err(|error| wrong("a name", &error))?;
        let node = done(files.lookup(&cx, NodeId::ROOT, name), "lookup")?.node;
        let opened = done(files.open(&cx, node, OpenFlags::READ | OpenFlags::WRITE), "open")?;
        Ok(Self { files, cx, file: File { node, open: opened.open }, buffer: Buffer::new(bytes) })
    }

    /// Asks once, and looks whether all was done.
    #[inline]
    pub fn ask(&self, deed: Deed) -> Result<()> {
        let Self { files, cx, file, buffer } = self;
        let bytes = deed.bytes();
        let count = match deed {
            Deed::Null => done(files.null(cx), "null").map(|()| 0)?,
            Deed::Getattr => done(files.getattr(cx, file.node, Some(*file)), "getattr").map(|_| 0)?,
            Deed::Read(_) => done(files.read(cx, *file, 0, buffer.sink(0..bytes)), "read")?.count,
            Deed::ReadInPlace(_) => {
                done(files.read_in_place(cx, *file, 0, bytes), "read in place")?.data().len()
            }
            Deed::Write(_) => {
                let from = buffer.source(0..bytes);
                done(files.write(cx, *file, &Write::default(), from), "write")?.count
            }
            Deed::WriteInPlace(_) => {
                let lent = files.lend(bytes).map_err(|error| wrong("lend memory", &error))?;
                let answer = files.write_in_place(cx, *file, &Write::default(), lent, bytes);
                done(answer, "write in place")?.count
            }
        };
        if count == bytes {
            return Ok(());
        }
        Err(Error::Wrong { what: format!("{deed:?}"), answer: format!("{count} bytes") })
    }
}

/// A session over a link of its own, and as whom it asks.
pub fn attach(connect: impl Connect + 'static) -> Result<(Arc<VrpcFileSystem>, Ctx)> {
    let id = SessionId(1);
    let client = Client { session: id, label: "bench".to_owned(), checks: PermissionCheck::BackEnd };
    let files = VrpcExport::new(connect).attach_session(&client).map_err(|error| wrong("attach", &error))?;
    Ok((files, Ctx::root(id)))
}

#[inline]
fn done<T>(answer: Answer<T>, what: &str) -> Result<T> {
    answer.wait().map_err(|error: FsError| wrong(what, &error))
}
