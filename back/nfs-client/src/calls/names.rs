//! Look-up, creation, renaming, removal and listing of names.

use tombolo_core::Result;
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs, MknodKind, ReaddirArgs,
    ReaddirplusArgs, RenameArgs, SymlinkArgs,
};
use tombolo_wire_nfs3::listing::{ReaddirOk, ReaddirplusOk};
use tombolo_wire_nfs3::results::{CreateOk, LinkReply, LookupReply, ReadlinkOk, RemoveReply, RenameReply};
use tombolo_wire_nfs3::{Call, Cookie3, CookieVerifier, FileHandleBuf, PostOpAttr, Reply, Sattr3};
use tombolo_wire_xdr::{Decode, Decoder, Error as XdrError, Result as XdrResult};

use super::Nfs;
use super::answers::{Found, ListingReply, NewReply, Target, owned};
use crate::caller::Caller;

/// Decodes results; trailing bytes are ignored.
pub(super) fn all_of<T: for<'r> Decode<'r>>(results: &[u8]) -> XdrResult<T> {
    Decoder::new(results).value()
}

/// Decodes the results of LOOKUP; an empty handle is an error.
fn found(results: &[u8]) -> XdrResult<Reply<Found, PostOpAttr>> {
    let reply: LookupReply<'_> = Decoder::new(results).value()?;
    if let Reply::Ok(ok) = &reply
        && ok.object.as_bytes().is_empty()
    {
        return Err(XdrError::Short { missing_bytes: 1 });
    }
    Ok(owned(reply))
}

fn made(results: &[u8]) -> XdrResult<NewReply> {
    Decoder::new(results).value().map(owned::<CreateOk<'_>, _, _>)
}

/// A name in a directory.
pub(crate) type DirOp<'a> = (FileHandleBuf, &'a [u8]);

fn dir_op_args<'a>((dir, name): &'a DirOp<'_>) -> DirOpArgs<'a> {
    DirOpArgs { dir: dir.as_handle(), name }
}

impl Nfs {
    /// Calls LOOKUP (RFC 1813 §3.3.3), also for `..`.
    pub(crate) async fn lookup(&self, caller: &Caller, at: DirOp<'_>) -> Result<Reply<Found, PostOpAttr>> {
        self.ask(caller, Call::Lookup(dir_op_args(&at)), found).await
    }

    /// Calls READLINK (§3.3.5).
    pub(crate) async fn readlink(
        &self,
        caller: &Caller,
        link: FileHandleBuf,
    ) -> Result<Reply<Target, PostOpAttr>> {
        let read = |results: &[u8]| Decoder::new(results).value().map(owned::<ReadlinkOk<'_>, _, _>);
        self.ask(caller, Call::Readlink(link.as_handle()), read).await
    }

    /// Calls CREATE (§3.3.8).
    pub(crate) async fn create(&self, caller: &Caller, at: DirOp<'_>, how: CreateHow) -> Result<NewReply> {
        self.ask(caller, Call::Create(CreateArgs { location: dir_op_args(&at), how }), made).await
    }

    /// Calls MKDIR (§3.3.9).
    pub(crate) async fn mkdir(&self, caller: &Caller, at: DirOp<'_>, attributes: Sattr3) -> Result<NewReply> {
        self.ask(caller, Call::Mkdir(MkdirArgs { location: dir_op_args(&at), attributes }), made).await
    }

    /// Calls SYMLINK (§3.3.10).
    pub(crate) async fn symlink(&self, caller: &Caller, at: DirOp<'_>, target: &[u8]) -> Result<NewReply> {
        let args = SymlinkArgs { location: dir_op_args(&at), attributes: Sattr3::default(), target };
        self.ask(caller, Call::Symlink(args), made).await
    }

    /// Calls MKNOD (§3.3.11).
    pub(crate) async fn mknod(&self, caller: &Caller, at: DirOp<'_>, what: MknodKind) -> Result<NewReply> {
        self.ask(caller, Call::Mknod(MknodArgs { location: dir_op_args(&at), what }), made).await
    }

    /// Calls REMOVE (§3.3.12) or RMDIR (§3.3.13).
    pub(crate) async fn remove(
        &self,
        caller: &Caller,
        at: DirOp<'_>,
        is_directory: bool,
    ) -> Result<RemoveReply> {
        let args = dir_op_args(&at);
        let call = if is_directory { Call::Rmdir(args) } else { Call::Remove(args) };
        self.ask(caller, call, all_of).await
    }

    /// Calls RENAME (§3.3.14).
    pub(crate) async fn rename(
        &self,
        caller: &Caller,
        from: DirOp<'_>,
        to: DirOp<'_>,
    ) -> Result<RenameReply> {
        let args = RenameArgs { from: dir_op_args(&from), to: dir_op_args(&to) };
        self.ask(caller, Call::Rename(args), all_of).await
    }

    /// Calls LINK (§3.3.15).
    pub(crate) async fn link(
        &self,
        caller: &Caller,
        file: FileHandleBuf,
        at: DirOp<'_>,
    ) -> Result<LinkReply> {
        let args = LinkArgs { file: file.as_handle(), link: dir_op_args(&at) };
        self.ask(caller, Call::Link(args), all_of).await
    }

    /// Calls READDIR (§3.3.16).
    pub(crate) async fn readdir(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        (cookie, verifier): (Cookie3, CookieVerifier),
    ) -> Result<ListingReply> {
        let args = ReaddirArgs { dir: dir.as_handle(), cookie, verifier, count: self.sizes().listing };
        let read = |results: &[u8]| Decoder::new(results).value().map(owned::<ReaddirOk<'_>, _, _>);
        self.ask(caller, Call::Readdir(args), read).await
    }

    /// Calls READDIRPLUS (§3.3.17).
    pub(crate) async fn readdirplus(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        (cookie, verifier): (Cookie3, CookieVerifier),
    ) -> Result<ListingReply> {
        let maxcount = self.sizes().listing;
        // Entries without attributes and handles are smaller than whole ones, so only `maxcount` limits the
        // page.
        let args = ReaddirplusArgs { dir: dir.as_handle(), cookie, verifier, dircount: maxcount, maxcount };
        let read = |results: &[u8]| Decoder::new(results).value().map(owned::<ReaddirplusOk<'_>, _, _>);
        self.ask(caller, Call::Readdirplus(args), read).await
    }
}
