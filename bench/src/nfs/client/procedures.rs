//! Procedures of RFC 1813 in use, and decoding of their replies.

use tombolo_wire_nfs3::args::{
    CommitArgs, CreateArgs, CreateHow, DirOpArgs, ReadArgs, ReaddirplusArgs, StableHow, WriteArgs,
};
use tombolo_wire_nfs3::mount::{self, DirPath, MntReply};
use tombolo_wire_nfs3::results::{
    CommitReply, CreateReply, LookupReply, ReaddirplusReply, RemoveReply, WriteReply,
};
use tombolo_wire_nfs3::{
    self as nfs3, Call as Args, Cookie3, CookieVerifier, Data, FileHandle, FileHandleBuf, PROGRAM, Sattr3,
    VERSION,
};
use tombolo_wire_xdr::padded;

use super::call::{Call, Procedure, Reply};
use crate::error::{Error, Result};

pub type Handle = FileHandleBuf;

fn call(args: &Args<'_>) -> Call {
    Call::new(procedure(args), args)
}

fn procedure(args: &Args<'_>) -> Procedure {
    let procedure = args.procedure();
    Procedure {
        name: format!("{procedure:?}").to_uppercase(),
        program: PROGRAM,
        version: VERSION,
        number: procedure.number(),
    }
}

pub fn mnt(export: &str) -> Result<Call> {
    let procedure = Procedure {
        name: "MNT".to_owned(),
        program: mount::PROGRAM,
        version: mount::VERSION,
        number: mount::Procedure::Mnt.number(),
    };
    let path = DirPath::new(export.as_bytes());
    let path = path.ok_or_else(|| Error::Absent(format!("{export} is too long to be mounted")))?;
    Ok(Call::new(procedure, &path))
}

pub fn getattr(file: &Handle) -> Call {
    call(&Args::Getattr(file.as_handle()))
}

pub fn lookup(folder: &Handle, name: &[u8]) -> Call {
    call(&Args::Lookup(DirOpArgs { dir: folder.as_handle(), name }))
}

pub fn read(file: &Handle, count: u32) -> Call {
    call(&Args::Read(ReadArgs { file: file.as_handle(), offset: 0, count }))
}

pub fn write(file: &Handle, content: &[u8], stable: StableHow) -> Call {
    let count = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let file = file.as_handle();
    let args = Args::Write(WriteArgs { file, offset: 0, count, stable, data: Data::to_send(count) });
    Call::with_data(procedure(&args), &args, content)
}

/// Returns the position of the offset in the arguments of [`read`] and [`write`], after the handle.
pub fn offset_at(file: &Handle) -> usize {
    size_of::<u32>() + padded(file.as_handle().as_bytes().len())
}

pub fn commit(file: &Handle) -> Call {
    call(&Args::Commit(CommitArgs { file: file.as_handle(), offset: 0, count: 0 }))
}

pub fn create(folder: &Handle, name: &[u8]) -> Call {
    let how = CreateHow::Unchecked(Sattr3 { mode: Some(0o644), ..Sattr3::default() });
    call(&Args::Create(CreateArgs { location: DirOpArgs { dir: folder.as_handle(), name }, how }))
}

pub fn remove(folder: &Handle, name: &[u8]) -> Call {
    call(&Args::Remove(DirOpArgs { dir: folder.as_handle(), name }))
}

/// Returns a call for directory entries after a page, with attributes and handles, in a reply of at most
/// `reply_bytes`.
pub fn readdirplus(folder: &Handle, from: &Page, reply_bytes: u32) -> Call {
    call(&Args::Readdirplus(ReaddirplusArgs {
        dir: folder.as_handle(),
        cookie: from.cookie,
        verifier: from.verifier,
        dircount: reply_bytes,
        maxcount: reply_bytes,
    }))
}

pub fn mounted(reply: &Reply) -> Result<Handle> {
    match reply.read::<MntReply<'_>>()? {
        nfs3::Reply::Ok(found) => Ok(found.handle.to_owned()),
        nfs3::Reply::Failed(status, ()) => Err(failed(reply, status)),
    }
}

pub fn found(reply: &Reply) -> Result<Handle> {
    match reply.read::<LookupReply<'_>>()? {
        nfs3::Reply::Ok(found) => Ok(found.object.to_owned()),
        nfs3::Reply::Failed(status, _) => Err(failed(reply, status)),
    }
}

/// Returns the handle in a CREATE reply; both servers send it.
pub fn created(reply: &Reply) -> Result<Handle> {
    match reply.read::<CreateReply<'_>>()? {
        nfs3::Reply::Ok(made) => {
            made.object.map(FileHandle::to_owned).ok_or_else(|| failed(reply, "no handle"))
        }
        nfs3::Reply::Failed(status, _) => Err(failed(reply, status)),
    }
}

pub fn removed(reply: &Reply) -> Result<()> {
    done(reply, &reply.read::<RemoveReply>()?)
}

/// Checks that WRITE has written all bytes with at least this stability.
pub fn written(reply: &Reply, count: usize, stable: StableHow) -> Result<()> {
    match reply.read::<WriteReply>()? {
        nfs3::Reply::Ok(ok) if ok.count as usize == count && ok.committed >= stable => Ok(()),
        other => Err(failed(reply, other)),
    }
}

pub fn committed(reply: &Reply) -> Result<()> {
    done(reply, &reply.read::<CommitReply>()?)
}

fn done<T, F>(reply: &Reply, answer: &nfs3::Reply<T, F>) -> Result<()> {
    answer.status().map_or(Ok(()), |status| Err(failed(reply, status)))
}

fn failed(reply: &Reply, answer: impl std::fmt::Debug) -> Error {
    Error::Wrong { what: reply.name().to_owned(), answer: format!("{answer:?}") }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    pub cookie: Cookie3,
    pub verifier: CookieVerifier,
    pub entries: usize,
    /// Number of entries without `.` and `..`.
    pub named: usize,
    /// `true` at the end of the directory.
    pub end: bool,
}

pub fn page(reply: &Reply) -> Result<Page> {
    let ok = match reply.read::<ReaddirplusReply<'_>>()? {
        nfs3::Reply::Ok(ok) => ok,
        nfs3::Reply::Failed(status, _) => return Err(failed(reply, status)),
    };
    let mut page = Page { verifier: ok.verifier, end: ok.eof, ..Page::default() };
    for plus in ok.entries {
        page.cookie = plus.entry.cookie;
        page.entries += 1;
        page.named += usize::from(!matches!(plus.entry.name, b"." | b".."));
    }
    Ok(page)
}
