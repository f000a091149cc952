//! The NFS version 3 server: RFC 1813 in, the waist out.
//!
//! One [`NfsService`] answers the calls of all clients of all exports, MOUNT and NFS on one port. It knows no
//! transport: `tombolo_host_rpc::server` brings calls over TCP and UDP, and whatever else carries ONC RPC
//! records can do so too.
//!
//! [`NfsServer`] puts the two together.
//!
//! Exports are attached once, for all their clients ([decision
//! nfs-server](../../../docs/decisions/nfs-server.md)).
//!
//! Reading order: `service` (a call's header, program and procedure), `caller` (identity and node),
//! `procedures`, then what is kept between calls: `export`, `nodes`, `openings`, `permission`.
//!
//! Not here: locks (NLM), NFS version 4, Kerberos, the portmapper.
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
