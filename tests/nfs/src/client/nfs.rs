//! Every procedure of NFS, typed.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tombolo_wire_nfs3::args::{
    AccessArgs, AccessBits, CommitArgs, CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs,
    MknodKind, ReadArgs, ReaddirArgs, ReaddirplusArgs, RenameArgs, SetattrArgs, StableHow, SymlinkArgs,
    WriteArgs,
};
use tombolo_wire_nfs3::results::{
    AccessOk, CommitOk, CreateReply, FsinfoOk, FsstatOk, LinkWcc, LookupReply, PathconfOk, ReaddirReply,
    ReaddirplusReply, ReadlinkReply, RenameWcc, WriteOk,
};
use tombolo_wire_nfs3::{
    Call, Cookie3, CookieVerifier, Data, Fattr3, FileHandleBuf, NfsTime3, PostOpAttr, Reply, Sattr3, WccData,
};

use super::Caller;
use super::answers::{Bytes, Found, LinkTarget, Listing, New, map, read_bytes};
use super::connection::{Connection, Transport, fresh_xid};
use super::message::{Answer, Message};

/// A client: some connections to one server, and a caller. Copies share the connections; each call takes one
/// for itself, so that calls of several threads are under way at once.
#[derive(Clone, Debug)]
pub struct Nfs {
    pool: Arc<Pool>,
    caller: Caller,
}

#[derive(Debug)]
struct Pool {
    transport: Transport,
    address: SocketAddr,
    idle: Mutex<Vec<Connection>>,
}

/// Returns attributes that set only the mode.
pub fn mode(bits: u32) -> Sattr3 {
    Sattr3 { mode: Some(bits), ..Sattr3::default() }
}

impl Nfs {
    /// Connects, as the superuser.
    pub fn connect(transport: Transport, address: SocketAddr) -> io::Result<Self> {
        let idle = Mutex::new(vec![Connection::new(transport, address)?]);
        Ok(Self { pool: Arc::new(Pool { transport, address, idle }), caller: Caller::ROOT })
    }

    /// Returns a client that shares the connection and acts for another caller.
    pub fn as_caller(&self, caller: Caller) -> Self {
        Self { caller, ..self.clone() }
    }

    /// Returns the caller.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.pool.address
    }

    /// Sends any call and waits for the reply.
    pub fn send(&self, message: &Message) -> Answer {
        let idle = || self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let mut connection = taken.unwrap_or_else(|| {
            Connection::new(self.pool.transport, self.pool.address).expect("one more connection")
        });
        let answer = connection.call(message);
        idle().push(connection);
        answer
    }

    /// Builds the message of a call.
    pub fn message(&self, call: &Call<'_>, data: &[u8]) -> Message {
        Message::nfs(fresh_xid(), &self.caller, call, data)
    }

    fn call(&self, call: &Call<'_>) -> Answer {
        self.send(&self.message(call, &[]))
    }

    /// Calls NULL.
    pub fn null(&self) {
        self.call(&Call::Null).results::<()>();
    }

    /// Calls GETATTR.
    pub fn getattr(&self, object: &FileHandleBuf) -> Reply<Fattr3, ()> {
        self.call(&Call::Getattr(object.as_handle())).results()
    }

    /// Calls SETATTR.
    pub fn setattr(
        &self,
        object: &FileHandleBuf,
        attributes: Sattr3,
        guard: Option<NfsTime3>,
    ) -> Reply<WccData, WccData> {
        let object = object.as_handle();
        self.call(&Call::Setattr(SetattrArgs { object, attributes, guard })).results()
    }

    /// Calls LOOKUP.
    pub fn lookup(&self, dir: &FileHandleBuf, name: &[u8]) -> Reply<Found, PostOpAttr> {
        let answer = self.call(&Call::Lookup(dir_op_args(dir, name)));
        map(answer.results::<LookupReply<'_>>(), Found::from)
    }

    /// Calls ACCESS.
    pub fn access(&self, object: &FileHandleBuf, access: AccessBits) -> Reply<AccessOk, PostOpAttr> {
        self.call(&Call::Access(AccessArgs { object: object.as_handle(), access })).results()
    }

    /// Calls READLINK.
    pub fn readlink(&self, link: &FileHandleBuf) -> Reply<LinkTarget, PostOpAttr> {
        let answer = self.call(&Call::Readlink(link.as_handle()));
        map(answer.results::<ReadlinkReply<'_>>(), LinkTarget::from)
    }

    /// Calls READ.
    pub fn read(&self, file: &FileHandleBuf, offset: u64, count: u32) -> Reply<Bytes, PostOpAttr> {
        let file = file.as_handle();
        read_bytes(&self.call(&Call::Read(ReadArgs { file, offset, count })))
    }

    /// Calls WRITE with all of `data`.
    pub fn write(
        &self,
        file: &FileHandleBuf,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Reply<WriteOk, WccData> {
        self.write_counted(file, offset, data.len() as u32, data, stable)
    }

    /// Calls WRITE with `count` as the announced length, independent of `data`.
    pub fn write_counted(
        &self,
        file: &FileHandleBuf,
        offset: u64,
        count: u32,
        data: &[u8],
        stable: StableHow,
    ) -> Reply<WriteOk, WccData> {
        let (file, len) = (file.as_handle(), Data::to_send(data.len() as u32));
        let call = Call::Write(WriteArgs { file, offset, count, stable, data: len });
        self.send(&self.message(&call, data)).results()
    }

    /// Calls CREATE.
    pub fn create(&self, dir: &FileHandleBuf, name: &[u8], how: CreateHow) -> Reply<New, WccData> {
        self.make(&Call::Create(CreateArgs { location: dir_op_args(dir, name), how }))
    }

    /// Calls MKDIR.
    pub fn mkdir(&self, dir: &FileHandleBuf, name: &[u8], attributes: Sattr3) -> Reply<New, WccData> {
        self.make(&Call::Mkdir(MkdirArgs { location: dir_op_args(dir, name), attributes }))
    }

    /// Calls SYMLINK.
    pub fn symlink(
        &self,
        dir: &FileHandleBuf,
        name: &[u8],
        target: &[u8],
        attributes: Sattr3,
    ) -> Reply<New, WccData> {
        self.make(&Call::Symlink(SymlinkArgs { location: dir_op_args(dir, name), attributes, target }))
    }

    /// Calls MKNOD.
    pub fn mknod(&self, dir: &FileHandleBuf, name: &[u8], what: MknodKind) -> Reply<New, WccData> {
        self.make(&Call::Mknod(MknodArgs { location: dir_op_args(dir, name), what }))
    }

    fn make(&self, call: &Call<'_>) -> Reply<New, WccData> {
        map(self.call(call).results::<CreateReply<'_>>(), New::from)
    }

    /// Calls REMOVE.
    pub fn remove(&self, dir: &FileHandleBuf, name: &[u8]) -> Reply<WccData, WccData> {
        self.call(&Call::Remove(dir_op_args(dir, name))).results()
    }

    /// Calls RMDIR.
    pub fn rmdir(&self, dir: &FileHandleBuf, name: &[u8]) -> Reply<WccData, WccData> {
        self.call(&Call::Rmdir(dir_op_args(dir, name))).results()
    }

    /// Calls RENAME.
    pub fn rename(
        &self,
        from_dir: &FileHandleBuf,
        from: &[u8],
        to_dir: &FileHandleBuf,
        to: &[u8],
    ) -> Reply<RenameWcc, RenameWcc> {
        let (from, to) = (dir_op_args(from_dir, from), dir_op_args(to_dir, to));
        self.call(&Call::Rename(RenameArgs { from, to })).results()
    }

    /// Calls LINK.
    pub fn link(&self, file: &FileHandleBuf, dir: &FileHandleBuf, name: &[u8]) -> Reply<LinkWcc, LinkWcc> {
        let (file, link) = (file.as_handle(), dir_op_args(dir, name));
        self.call(&Call::Link(LinkArgs { file, link })).results()
    }

    /// Calls READDIR.
    pub fn readdir(
        &self,
        dir: &FileHandleBuf,
        cookie: Cookie3,
        verifier: CookieVerifier,
        count: u32,
    ) -> Reply<Listing, PostOpAttr> {
        let dir = dir.as_handle();
        let answer = self.call(&Call::Readdir(ReaddirArgs { dir, cookie, verifier, count }));
        let result_bytes = answer.result_bytes().len() - 4;
        map(answer.results::<ReaddirReply<'_>>(), |ok| Listing::plain(ok, result_bytes))
    }

    /// Calls READDIRPLUS.
    pub fn readdirplus(
        &self,
        dir: &FileHandleBuf,
        cookie: Cookie3,
        verifier: CookieVerifier,
        dircount: u32,
        maxcount: u32,
    ) -> Reply<Listing, PostOpAttr> {
        let dir = dir.as_handle();
        let args = ReaddirplusArgs { dir, cookie, verifier, dircount, maxcount };
        let answer = self.call(&Call::Readdirplus(args));
        let result_bytes = answer.result_bytes().len() - 4;
        map(answer.results::<ReaddirplusReply<'_>>(), |ok| Listing::plus(ok, result_bytes))
    }

    /// Calls FSSTAT.
    pub fn fsstat(&self, root: &FileHandleBuf) -> Reply<FsstatOk, PostOpAttr> {
        self.call(&Call::Fsstat(root.as_handle())).results()
    }

    /// Calls FSINFO.
    pub fn fsinfo(&self, root: &FileHandleBuf) -> Reply<FsinfoOk, PostOpAttr> {
        self.call(&Call::Fsinfo(root.as_handle())).results()
    }

    /// Calls PATHCONF.
    pub fn pathconf(&self, object: &FileHandleBuf) -> Reply<PathconfOk, PostOpAttr> {
        self.call(&Call::Pathconf(object.as_handle())).results()
    }

    /// Calls COMMIT.
    pub fn commit(&self, file: &FileHandleBuf, offset: u64, count: u32) -> Reply<CommitOk, WccData> {
        let file = file.as_handle();
        self.call(&Call::Commit(CommitArgs { file, offset, count })).results()
    }
}

/// Returns the location of `name` in `dir`.
pub fn dir_op_args<'a>(dir: &'a FileHandleBuf, name: &'a [u8]) -> DirOpArgs<'a> {
    DirOpArgs { dir: dir.as_handle(), name }
}
