//! NFS version 3 server (RFC 1813) over the file-system waist.
//!
//! One [`NfsService`] serves MOUNT, NFS and the side program (`wire/nfs3`) for all clients of all exports, on
//! one port. It is independent of the transport: `tombolo_host_rpc::server` delivers calls over TCP and UDP,
//! and other carriers of ONC RPC records can do the same. [`NfsServer`] combines service and transport.
//!
//! Each export is attached once, for all its clients ([decision
//! nfs-server](../../../docs/decisions/nfs-server.md)).
//!
//! Reading order: `service` (header, program and procedure of a call), `caller` (identity and node),
//! `procedures`, then the state that outlives calls: `export`, `nodes`, `openings`, `permission`.
//!
//! Non-goals: locks (NLM), NFS version 4, Kerberos, the portmapper.
#![forbid(unsafe_code)]

mod access;
mod caller;
mod digests;
mod export;
mod failure;
mod handle;
mod mount;
mod mount_table;
mod nodes;
mod openings;
mod options;
mod packer;
mod permission;
mod procedures;
mod server;
mod service;
mod shared_sync;
mod unchecked_creates;

pub use access::{
    AllowList, Claim, ClaimRule, Claims, Groups, Identities, LeaseHolders, NO_ID, Network, NetworkError,
    Squash, SquashMode,
};
pub use export::NfsService;
pub use handle::{ExportCollision, ExportId, Signer};
pub use options::{Durability, ExportOptions, Options, ServeError};
pub use server::{IdleCloser, NfsServer};
