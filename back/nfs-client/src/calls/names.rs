//! Look-up, creation, renaming, removal and listing of names.

use tombolo_core::Result;
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs, MknodKind, ReaddirArgs,
    ReaddirplusArgs, RenameArgs, SymlinkArgs,
};
use tombolo_wire_nfs3::listing::{ReaddirReply, ReaddirplusReply};
use tombolo_wire_nfs3::results::{
    CreateReply, LinkReply, LookupReply, ReadlinkReply, RemoveReply, RenameReply,
};
use tombolo_wire_nfs3::{Call, Cookie3, CookieVerifier, FileHandleBuf, PostOpAttr, Reply, Sattr3, WccData};
use tombolo_wire_xdr::{Decode, Decoder, Error as XdrError, Result as XdrResult};

use super::Nfs;
use super::answers::{Found, Listing, New, Target, owned};
use crate::caller::Caller;

/// Decodes results; trailing bytes are ignored, as by every client.
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

fn made(results: &[u8]) -> XdrResult<Reply<New, WccData>> {
    let reply: CreateReply<'_> = Decoder::new(results).value()?;
    Ok(owned(reply))
}

/// Returns the arguments for a name in a directory.
fn dir_op_args<'a>(dir: &'a FileHandleBuf, name: &'a [u8]) -> DirOpArgs<'a> {
    DirOpArgs { dir: dir.as_handle(), name }
}

impl Nfs {
    /// Calls LOOKUP (RFC 1813 §3.3.3), also for `..`.
    pub(crate) async fn lookup(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        name: &[u8],
    ) -> Result<Reply<Found, PostOpAttr>> {
        self.ask(caller, Call::Lookup(dir_op_args(&dir, name)), found).await
    }

    /// Calls READLINK (§3.3.5).
    pub(crate) async fn readlink(
        &self,
        caller: &Caller,
        link: FileHandleBuf,
    ) -> Result<Reply<Target, PostOpAttr>> {
        let read = |results: &[u8]| {
            let reply: ReadlinkReply<'_> = Decoder::new(results).value()?;
            Ok(owned(reply))
        };
        self.ask(caller, Call::Readlink(link.as_handle()), read).await
    }

    /// Calls CREATE (§3.3.8).
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        name: &[u8],
        how: CreateHow,
    ) -> Result<Reply<New, WccData>> {
        self.ask(caller, Call::Create(CreateArgs { location: dir_op_args(&dir, name), how }), made).await
    }

    /// Calls MKDIR (§3.3.9).
    pub(crate) async fn mkdir(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        name: &[u8],
        attributes: Sattr3,
    ) -> Result<Reply<New, WccData>> {
        self.ask(caller, Call::Mkdir(MkdirArgs { location: dir_op_args(&dir, name), attributes }), made).await
    }

    /// Calls SYMLINK (§3.3.10).
    pub(crate) async fn symlink(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        name: &[u8],
        target: &[u8],
    ) -> Result<Reply<New, WccData>> {
        let args = SymlinkArgs { location: dir_op_args(&dir, name), attributes: Sattr3::default(), target };
        self.ask(caller, Call::Symlink(args), made).await
    }

    /// Calls MKNOD (§3.3.11).
    pub(crate) async fn mknod(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        name: &[u8],
        what: MknodKind,
    ) -> Result<Reply<New, WccData>> {
        self.ask(caller, Call::Mknod(MknodArgs { location: dir_op_args(&dir, name), what }), made).await
    }

    /// Calls REMOVE (§3.3.12).
    pub(crate) async fn remove(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        name: &[u8],
    ) -> Result<RemoveReply> {
        self.ask(caller, Call::Remove(dir_op_args(&dir, name)), all_of).await
    }

    /// Calls RMDIR (§3.3.13).
    pub(crate) async fn rmdir(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        name: &[u8],
    ) -> Result<RemoveReply> {
        self.ask(caller, Call::Rmdir(dir_op_args(&dir, name)), all_of).await
    }

    /// Calls RENAME (§3.3.14).
    pub(crate) async fn rename(
        &self,
        caller: &Caller,
        (from_dir, from): (FileHandleBuf, &[u8]),
        (to_dir, to): (FileHandleBuf, &[u8]),
    ) -> Result<RenameReply> {
        let args = RenameArgs { from: dir_op_args(&from_dir, from), to: dir_op_args(&to_dir, to) };
        self.ask(caller, Call::Rename(args), all_of).await
    }

    /// Calls LINK (§3.3.15).
    pub(crate) async fn link(
        &self,
        caller: &Caller,
        file: FileHandleBuf,
        (dir, name): (FileHandleBuf, &[u8]),
    ) -> Result<LinkReply> {
        let args = LinkArgs { file: file.as_handle(), link: dir_op_args(&dir, name) };
        self.ask(caller, Call::Link(args), all_of).await
    }

    /// Calls READDIR (§3.3.16).
    pub(crate) async fn readdir(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        (cookie, verifier): (Cookie3, CookieVerifier),
    ) -> Result<Reply<Listing, PostOpAttr>> {
        let args = ReaddirArgs { dir: dir.as_handle(), cookie, verifier, count: self.sizes().listing };
        let read = |results: &[u8]| {
            let reply: ReaddirReply<'_> = Decoder::new(results).value()?;
            Ok(owned(reply))
        };
        self.ask(caller, Call::Readdir(args), read).await
    }

    /// Calls READDIRPLUS (§3.3.17).
    pub(crate) async fn readdirplus(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        (cookie, verifier): (Cookie3, CookieVerifier),
    ) -> Result<Reply<Listing, PostOpAttr>> {
        let maxcount = self.sizes().listing;
        // Names alone are a sixth of an entry with attributes and handle, so only `maxcount` limits the page.
        let args = ReaddirplusArgs { dir: dir.as_handle(), cookie, verifier, dircount: maxcount, maxcount };
        let read = |results: &[u8]| {
            let reply: ReaddirplusReply<'_> = Decoder::new(results).value()?;
            Ok(owned(reply))
        };
        self.ask(caller, Call::Readdirplus(args), read).await
    }
}
