//! Server options, and errors of attaching exports.

use std::sync::Arc;

use thiserror::Error;
use tombolo_core::SessionId;
use tombolo_core::fs::{Export, LeaseTable};

use crate::access::{AllowList, Identities, LeaseHolders, Squash};
use crate::handle::{ExportCollision, Signer};

/// An export to be served.
pub struct ExportOptions {
    /// Path that clients mount, `/NAME`.
    pub name: String,
    /// Tree that is served under the name.
    pub export: Arc<dyn Export>,
    /// Session of the waist that the export's clients share.
    pub session: SessionId,
    /// Squashing of callers.
    pub squash: Squash,
    /// Client addresses that may call.
    pub allow: AllowList,
    /// Durability of changes of names and attributes at the time of the reply.
    pub durability: Durability,
    /// Leases of the tree; `None` to grant none, as for a tree that others than this server may change.
    pub leases: Option<Arc<LeaseTable>>,
    /// Clients that may hold leases.
    pub lease_holders: LeaseHolders,
}

/// Options of the service.
pub struct Options {
    /// The exports, with unique names.
    pub exports: Vec<ExportOptions>,
    /// Signer of file handles.
    pub signer: Arc<Signer>,
    /// Mapper of credentials to identities.
    pub identities: Identities,
}

/// Durability of changes of names and attributes when they are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// On stable storage, as required by RFC 1813 §4.7 and §4.8: an answered change survives a loss of power.
    #[default]
    Stable,
    /// As durable as the host's own changes: an answered change survives a crash of the server, but not a
    /// loss of power.
    Relaxed,
}

/// Error of attaching exports.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Attaching failed.
    #[error("cannot serve {name} to NFS clients")]
    Attach {
        /// The export.
        name: String,
        /// Cause.
        #[source]
        source: tombolo_core::Error,
    },
    /// The file system has no persistent handles.
    #[error("cannot serve {name} to NFS clients: its file system has no persistent handles")]
    NoHandles {
        /// The export.
        name: String,
    },
    /// Two exports would have the same handles.
    #[error(transparent)]
    Alike(#[from] ExportCollision),
}
