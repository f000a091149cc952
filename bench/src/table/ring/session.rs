//! Session over a link, as in a program that uses the library.

use std::sync::Arc;

use tombolo_back_vrpc_client::{VrpcExport, VrpcFileSystem};
use tombolo_core::fs::{Client, File, FileSystem, Name, NodeId, OpenFlags, PermissionCheck, Write};
use tombolo_core::{Answer, Ctx, SessionId};
use tombolo_mem::Buffer;

use super::endpoint::Endpoint;
use super::{FILE, timed_by};
use crate::error::{OrWrong, Result, same};
use crate::measure::{Clock, Work};

/// Operation over the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Null,
    /// Attributes of an open file.
    Getattr,
    /// Read of N bytes into the program's memory.
    Read(usize),
    /// Read of N bytes that stay in the link's memory.
    ReadInPlace(usize),
    /// Write of N bytes from the program's memory.
    Write(usize),
    /// Write of N bytes assembled in the link's memory.
    WriteInPlace(usize),
}

impl Operation {
    pub fn bytes(self) -> usize {
        match self {
            Operation::Null | Operation::Getattr => 0,
            Operation::Read(bytes) | Operation::ReadInPlace(bytes) => bytes,
            Operation::Write(bytes) | Operation::WriteInPlace(bytes) => bytes,
        }
    }
}

/// Repeats one operation over a link that lives for a turn, because a polling server would occupy a core
/// permanently.
pub fn linked(endpoint: Endpoint, operation: Operation) -> Work<'static> {
    let bytes = operation.bytes();
    let run = move |count, clock: &mut Clock| {
        let session = Session::begin(&endpoint, bytes)?;
        timed_by(super::at_once(bytes), count, clock, || session.ask(operation))
    };
    Work::new(run).bytes(super::rated(bytes))
}

pub struct Session {
    pub files: Arc<VrpcFileSystem>,
    pub cx: Ctx,
    pub file: File,
    buffer: Buffer,
}

impl Session {
    /// Starts a session over its own link, with `bytes` of memory for data.
    pub fn begin(endpoint: &Endpoint, bytes: usize) -> Result<Self> {
        let (files, cx) = attach(endpoint.clone())?;
        let name = Name::new(FILE.as_bytes()).or_wrong("a name")?;
        let node = done(files.lookup(&cx, NodeId::ROOT, name), "lookup")?.node;
        let opened = done(files.open(&cx, node, OpenFlags::READ | OpenFlags::WRITE), "open")?;
        Ok(Self { files, cx, file: File { node, open: opened.open }, buffer: Buffer::new(bytes) })
    }

    /// Makes one request, and checks that it is complete.
    #[inline]
    pub fn ask(&self, operation: Operation) -> Result<()> {
        let Self { files, cx, file, buffer } = self;
        let bytes = operation.bytes();
        let count = match operation {
            Operation::Null => done(files.null(cx), "null").map(|()| 0)?,
            Operation::Getattr => done(files.getattr(cx, file.node, Some(*file)), "getattr").map(|_| 0)?,
            Operation::Read(_) => done(files.read(cx, *file, 0, buffer.sink(0..bytes)), "read")?.count,
            Operation::ReadInPlace(_) => {
                done(files.read_in_place(cx, *file, 0, bytes), "read in place")?.data().len()
            }
            Operation::Write(_) => {
                let from = buffer.source(0..bytes);
                done(files.write(cx, *file, &Write::default(), from), "write")?.count
            }
            Operation::WriteInPlace(_) => {
                let lent = files.lend(bytes).or_wrong("lend memory")?;
                let answer = files.write_in_place(cx, *file, &Write::default(), lent, bytes);
                done(answer, "write in place")?.count
            }
        };
        same("an operation over a link", count, bytes)
    }
}

/// Attaches a session over its own link; returns its context too.
fn attach(connect: Endpoint) -> Result<(Arc<VrpcFileSystem>, Ctx)> {
    let id = SessionId(1);
    let client = Client { session: id, label: "bench".to_owned(), checks: PermissionCheck::BackEnd };
    let files = VrpcExport::new(connect).attach_session(&client).or_wrong("attach")?;
    Ok((files, Ctx::root(id)))
}

#[inline]
fn done<T>(answer: Answer<T>, what: &str) -> Result<T> {
    answer.wait().or_wrong(what)
}
