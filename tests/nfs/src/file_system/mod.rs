//! The waist over the thin client, for the conformance suite: what a client of a server of ours gets to see.
//!
//! It keeps no state but what the waist asks for: which node has which handle, and which openings there are. Everything is
//! asked of the server every time. What NFS version 3 has no word for is refused or not there; a suite must be told so.

mod creating;
mod data;
mod handles;
mod listing;
mod nodes;
mod openings;
mod operations;
mod view;

use std::net::SocketAddr;
use std::sync::Arc;

use tombolo_core::fs::{Client, Export, FileSystem, NodeId, PermissionCheck, Profile};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::Reply;

use crate::client::{Caller, Nfs, Transport};
use nodes::Nodes;
use openings::Openings;
use view::answered;

/// An export of a server, mounted anew for each session.
#[derive(Debug)]
pub struct NfsExport {
    transport: Transport,
    address: SocketAddr,
    path: String,
}

impl NfsExport {
    /// The export `path` of the server at `address`.
    pub fn new(transport: Transport, address: SocketAddr, path: &str) -> Self {
        Self { transport, address, path: path.to_owned() }
    }
}

impl Export for NfsExport {
    fn attach(&self, _: &Client) -> Result<Arc<dyn FileSystem>> {
        let nfs = Nfs::connect(self.transport, self.address).map_err(Error::io)?;
        let root = match nfs.mnt(&self.path) {
            Reply::Ok(mounted) => mounted.root,
            Reply::Failed(status, ()) => return Err(Error::io(format!("MNT: {status:?}"))),
        };
        let fsinfo = answered(nfs.fsinfo(&root))?;
        let pathconf = answered(nfs.pathconf(&root))?;
        let profile = Profile {
            permission_check: PermissionCheck::BackEnd,
            read_only: false,
            name_max: pathconf.name_max,
            file_size_max: fsinfo.file_size_max,
            time_granularity_ns: fsinfo.time_delta.nseconds.max(1),
            writes_by_owner: false,
        };
        Ok(Arc::new(NfsFileSystem {
            nfs,
            profile,
            read_max: fsinfo.read_max,
            write_max: fsinfo.write_max,
            nodes: Nodes::new(NodeId::ROOT, root),
            openings: Openings::default(),
        }))
    }
}

/// A session: one mount.
#[derive(Debug)]
struct NfsFileSystem {
    nfs: Nfs,
    profile: Profile,
    read_max: u32,
    write_max: u32,
    nodes: Nodes,
    openings: Openings,
}

impl From<&tombolo_core::Identity> for Caller {
    /// As kernels do: the groups beyond those that AUTH_SYS can carry are left out.
    fn from(identity: &tombolo_core::Identity) -> Self {
        let groups = identity.groups();
        let carried = &groups[..groups.len().min(tombolo_wire_rpc::GIDS_MAX)];
        Self::with_groups(identity.uid, identity.gid, carried)
    }
}
