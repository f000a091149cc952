//! Thin client that leaves the server as the bottleneck: calls are encoded once and sent in batches, and
//! replies of a batch are matched by xid and dropped. The column `null responder` of table `nfs` shows its
//! own cost.

use std::fmt::Debug;
use std::io::IoSlice;
use std::net::SocketAddr;

pub use connection::{Connection, Records};
use tombolo_wire_nfs3::args::{
    CommitArgs, CreateArgs, CreateHow, DirOpArgs, ReadArgs, ReaddirplusArgs, StableHow, WriteArgs,
};
use tombolo_wire_nfs3::mount::{DirPath, MntReply};
use tombolo_wire_nfs3::results::{
    CommitReply, CreateReply, LookupReply, ReaddirplusReply, RemoveReply, WriteReply,
};
use tombolo_wire_nfs3::{
    self as nfs3, Call as Args, Cookie3, CookieVerifier, Data, FileHandle, FileHandleBuf, PROGRAM, Sattr3,
    VERSION, mount,
};
use tombolo_wire_rpc::{
    Accepted, AuthSys, CallHeader, Credential, Gids, Mark, ReplyBody, ReplyHeader, SUCCESS_BYTES, Xid,
};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, padded, padding};

use crate::error::{Error, Result};
use crate::nfs::Wait;
use crate::peer::Nfs;

mod connection;

/// Offset of the xid, after the record mark.
const XID_AT: usize = Mark::BYTES;
/// Successful reply after its xid: accepted, without verifier, executed, with status 0.
const GOOD: [u8; SUCCESS_BYTES] = {
    let mut good = [0; SUCCESS_BYTES];
    // REPLY (RFC 5531 §9); all that follows is 0.
    good[3] = 1;
    good
};

pub fn root<'a>() -> Credential<'a> {
    Credential::Sys(AuthSys { stamp: 0, machine: b"bench", uid: 0, gid: 0, gids: Gids::default() })
}

/// A call, encoded once and sent many times.
#[derive(Clone, Debug)]
pub struct Call {
    name: String,
    /// Encoded record mark, header and arguments.
    head: Vec<u8>,
    /// File data with padding.
    data: Vec<u8>,
    /// Offset of the arguments.
    args_at: usize,
    /// Expected length of a reply, if that shows that its data are complete.
    reply_bytes: Option<usize>,
}

impl Call {
    /// Creates a call of a procedure: name; program, version and number.
    fn new(name: &str, (program, version, number): (u32, u32, u32), args: &impl Encode) -> Self {
        let mut head = vec![0; Mark::BYTES];
        let mut xdr = Encoder::new(&mut head);
        xdr.value(&CallHeader::new(Xid(0), program, version, number, root()));
        let args_at = Mark::BYTES + xdr.position();
        xdr.value(args);
        let mut call = Self { name: name.to_owned(), head, data: Vec::new(), args_at, reply_bytes: None };
        call.set_mark();
        call
    }

    /// Adds file data after the arguments.
    fn with_data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self.data.resize(data.len() + padding(data.len()), 0);
        self.set_mark();
        self
    }

    /// Sets the expected length of replies, without their record mark.
    pub fn expect_reply_bytes(mut self, bytes: usize) -> Self {
        self.reply_bytes = Some(bytes);
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn bytes(&self) -> usize {
        self.head.len() + self.data.len()
    }

    /// Overwrites eight bytes of the arguments with a number.
    pub fn patch_u64(&mut self, at: usize, value: u64) {
        let place = self.head.get_mut(self.args_at + at..).and_then(|bytes| bytes.first_chunk_mut());
        if let Some(place) = place {
            *place = value.to_be_bytes();
        }
    }

    pub(super) fn set_xid(&mut self, xid: u32) {
        if let Some(place) = self.head.get_mut(XID_AT..).and_then(|bytes| bytes.first_chunk_mut()) {
            *place = xid.to_be_bytes();
        }
    }

    pub(super) fn has_data(&self) -> bool {
        !self.data.is_empty()
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    pub(super) fn parts(&self) -> [IoSlice<'_>; 2] {
        [IoSlice::new(&self.head), IoSlice::new(&self.data)]
    }

    /// Checks a reply by its first bytes and its length.
    pub(super) fn check(&self, head: &[u8], len: usize) -> Result<()> {
        let good = head.get(XID_BYTES..XID_BYTES + GOOD.len()).is_some_and(|found| found == GOOD);
        if good && self.reply_bytes.is_none_or(|expected| expected == len) {
            return Ok(());
        }
        let answer = match Reply::open(&self.name, head) {
            Ok(mut results) if good => {
                let _status = results.u32();
                format!("a reply of {len} bytes instead of {}", self.reply_bytes.unwrap_or_default())
            }
            Ok(mut results) => format!("status {}", results.u32().unwrap_or(u32::MAX)),
            Err(error) => return Err(error),
        };
        Err(Error::Wrong { what: self.name.clone(), answer })
    }

    fn set_mark(&mut self) {
        let len = self.bytes() - Mark::BYTES;
        if let (Some(place), Some(mark)) = (self.head.first_chunk_mut(), Mark::whole(len)) {
            *place = mark.to_bytes();
        }
    }
}

const XID_BYTES: usize = 4;

/// Results of a call.
#[derive(Debug, Default)]
pub struct Reply {
    name: String,
    results: Vec<u8>,
    /// Length of the reply without its record mark.
    pub bytes: usize,
}

impl Reply {
    pub(super) fn read<'a, T: Decode<'a>>(&'a self) -> Result<T> {
        let read = Decoder::new(&self.results).value();
        read.map_err(|error| Error::Wrong { what: self.name.clone(), answer: error.to_string() })
    }

    pub(super) fn take(&mut self, call: &Call, xid: u32, record: &[u8]) -> Result<()> {
        self.name.clone_from(&call.name);
        let found = record.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        if found != Some(xid) {
            let answer = "a reply to another call".to_owned();
            return Err(Error::Wrong { what: call.name.clone(), answer });
        }
        let results = Self::open(&call.name, record)?;
        self.results.clear();
        self.results.extend_from_slice(results.rest());
        self.bytes = record.len();
        Ok(())
    }

    /// Opens the results of a successful reply.
    fn open<'a>(name: &str, record: &'a [u8]) -> Result<Decoder<'a>> {
        let wrong = |answer: String| Error::Wrong { what: name.to_owned(), answer };
        let mut xdr = Decoder::new(record);
        let header: ReplyHeader<'_> = xdr.value().map_err(|error| wrong(error.to_string()))?;
        match header.body {
            ReplyBody::Accepted { status: Accepted::Success, .. } => Ok(xdr),
            other => Err(wrong(format!("{other:?}"))),
        }
    }
}

/// A connection to a server, with the root of its export.
pub struct Mounted {
    pub connection: Connection,
    pub root: Handle,
    reply: Reply,
}

impl Mounted {
    /// Mounts the server's export.
    pub fn new(server: &Nfs, wait: Wait) -> Result<Self> {
        Self::at((server.nfs, server.mount), &server.export, wait)
    }

    /// Mounts an export of the server at these addresses of NFS and MOUNT.
    pub fn at((nfs, server): (SocketAddr, SocketAddr), export: &str, wait: Wait) -> Result<Self> {
        let mut reply = Reply::default();
        let path = DirPath::new(export.as_bytes());
        let path = path.ok_or_else(|| Error::Absent(format!("{export} is too long to be mounted")))?;
        let procedure = (mount::PROGRAM, mount::VERSION, mount::Procedure::Mnt.number());
        Connection::connect(server, Wait::Sleep)?
            .call(&mut Call::new("MNT", procedure, &path), &mut reply)?;
        let root = ok(&reply, reply.read::<MntReply<'_>>()?)?.handle.to_owned();
        let connection = Connection::connect(nfs, wait)?;
        Ok(Self { connection, root, reply })
    }

    pub fn lookup(&mut self, folder: &Handle, name: &str) -> Result<Handle> {
        let args = DirOpArgs { dir: folder.as_handle(), name: name.as_bytes() };
        self.connection.call(&mut call(&Args::Lookup(args)), &mut self.reply)?;
        Ok(ok(&self.reply, self.reply.read::<LookupReply<'_>>()?)?.object.to_owned())
    }

    /// Looks up a path relative to the root.
    pub fn walk(&mut self, path: &str) -> Result<Handle> {
        let mut file = self.root;
        for name in path.split('/') {
            file = self.lookup(&file, name)?;
        }
        Ok(file)
    }
}

pub type Handle = FileHandleBuf;

fn call(args: &Args<'_>) -> Call {
    let procedure = args.procedure();
    Call::new(&format!("{procedure:?}").to_uppercase(), (PROGRAM, VERSION, procedure.number()), args)
}

pub fn getattr(file: &Handle) -> Call {
    call(&Args::Getattr(file.as_handle()))
}

pub fn read(file: &Handle, count: u32) -> Call {
    call(&Args::Read(ReadArgs { file: file.as_handle(), offset: 0, count }))
}

pub fn write(file: &Handle, content: &[u8], stable: StableHow) -> Call {
    let count = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let file = file.as_handle();
    let args = Args::Write(WriteArgs { file, offset: 0, count, stable, data: Data::to_send(count) });
    call(&args).with_data(content)
}

/// Returns the position of the offset in the arguments of [`read`] and [`write()`], after the handle.
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

/// Returns the handle in a CREATE reply, which Tombolo and nfs-ganesha send although it is optional.
pub fn created(reply: &Reply) -> Result<Handle> {
    let made = ok(reply, reply.read::<CreateReply<'_>>()?)?;
    made.object.map(FileHandle::to_owned).ok_or_else(|| failed(reply, "no handle"))
}

pub fn removed(reply: &Reply) -> Result<()> {
    ok(reply, reply.read::<RemoveReply>()?).map(drop)
}

/// Checks that WRITE has written all bytes with at least this stability.
pub fn written(reply: &Reply, count: usize, stable: StableHow) -> Result<()> {
    let ok = ok(reply, reply.read::<WriteReply>()?)?;
    let is_done = ok.count as usize == count && ok.committed >= stable;
    if is_done { Ok(()) } else { Err(failed(reply, ok)) }
}

pub fn committed(reply: &Reply) -> Result<()> {
    ok(reply, reply.read::<CommitReply>()?).map(drop)
}

/// Returns the results of a call, unless it failed.
fn ok<T, F, S: Debug>(reply: &Reply, answer: nfs3::Reply<T, F, S>) -> Result<T> {
    match answer {
        nfs3::Reply::Ok(results) => Ok(results),
        nfs3::Reply::Failed(status, _) => Err(failed(reply, status)),
    }
}

fn failed(reply: &Reply, answer: impl Debug) -> Error {
    Error::Wrong { what: reply.name.clone(), answer: format!("{answer:?}") }
}

/// A page of a directory listing: the position after it, and counts.
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
    let ok = ok(reply, reply.read::<ReaddirplusReply<'_>>()?)?;
    let mut page = Page { verifier: ok.verifier, end: ok.eof, ..Page::default() };
    for plus in ok.entries {
        page.cookie = plus.entry.cookie;
        page.entries += 1;
        page.named += usize::from(!matches!(plus.entry.name, b"." | b".."));
    }
    Ok(page)
}
