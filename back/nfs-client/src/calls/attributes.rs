//! Attributes of nodes and of file systems.

use tombolo_core::Result;
use tombolo_wire_nfs3::args::{AccessArgs, AccessBits, SetattrArgs};
use tombolo_wire_nfs3::results::{
    AccessReply, FsinfoReply, FsstatReply, GetattrReply, PathconfReply, SetattrReply,
};
use tombolo_wire_nfs3::{Call, FileHandleBuf, NfsTime3, Sattr3};

use super::Nfs;
use super::names::all_of;
use crate::caller::Caller;

impl Nfs {
    /// Calls GETATTR (RFC 1813 §3.3.1).
    pub(crate) async fn getattr(&self, caller: &Caller, node: FileHandleBuf) -> Result<GetattrReply> {
        self.ask(caller, Call::Getattr(node.as_handle()), all_of).await
    }

    /// Calls SETATTR (§3.3.2).
    pub(crate) async fn setattr(
        &self,
        caller: &Caller,
        node: FileHandleBuf,
        attributes: Sattr3,
        guard: Option<NfsTime3>,
    ) -> Result<SetattrReply> {
        let args = SetattrArgs { object: node.as_handle(), attributes, guard };
        self.ask(caller, Call::Setattr(args), all_of).await
    }

    /// Calls ACCESS (§3.3.4).
    pub(crate) async fn access(
        &self,
        caller: &Caller,
        node: FileHandleBuf,
        access: AccessBits,
    ) -> Result<AccessReply> {
        let args = AccessArgs { object: node.as_handle(), access };
        self.ask(caller, Call::Access(args), all_of).await
    }

    /// Calls FSSTAT (§3.3.18).
    pub(crate) async fn fsstat(&self, caller: &Caller, node: FileHandleBuf) -> Result<FsstatReply> {
        self.ask(caller, Call::Fsstat(node.as_handle()), all_of).await
    }

    /// Calls FSINFO (§3.3.19).
    pub(crate) async fn fsinfo(&self, caller: &Caller, node: FileHandleBuf) -> Result<FsinfoReply> {
        self.ask(caller, Call::Fsinfo(node.as_handle()), all_of).await
    }

    /// Calls PATHCONF (§3.3.20).
    pub(crate) async fn pathconf(&self, caller: &Caller, node: FileHandleBuf) -> Result<PathconfReply> {
        self.ask(caller, Call::Pathconf(node.as_handle()), all_of).await
    }
}
