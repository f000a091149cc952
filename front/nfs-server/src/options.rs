//! What a server is told, and why exports cannot be served.

use std::sync::Arc;

use thiserror::Error;
use tombolo_core::SessionId;
use tombolo_core::fs::{Export, LeaseTable};

use crate::access::{AllowList, Identities, LeaseHolders, Squash};
use crate::handle::{ExportCollision, Signer};

/// An export to be served.
pub struct ExportOptions {
    /// The path that clients mount, `/NAME`.
    pub name: String,
    /// The tree.
    pub export: Arc<dyn Export>,
    /// The waist session that its clients share.
    pub session: SessionId,
    /// How callers are squashed.
    pub squash: Squash,
    /// The addresses that may call.
    pub allow: AllowList,
    /// What is stable when it is answered.
    pub durability: Durability,
    /// The leases of the tree that its clients may hold; `None` where not all changes of it come through this
    /// server.
    pub leases: Option<Arc<LeaseTable>>,
    /// The clients that may.
    pub lease_holders: LeaseHolders,
}

/// How the exports are served.
pub struct Options {
    /// The exports, each with a name of its own.
    pub exports: Vec<ExportOptions>,
    /// Signs the handles.
    pub signer: Arc<Signer>,
    /// Maps credentials to identities.
    pub identities: Identities,
}

/// Whether a change of names or attributes is on stable storage before it is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is, as RFC 1813 §1.5 and §4.8 want it: what was answered survives a loss of power.
    #[default]
    Stable,
    /// It is as safe as the host's own changes: it survives the end of the server, but not a loss of power.
    Relaxed,
}

/// Why exports cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Attaching to one failed.
    #[error("cannot serve {name} to NFS clients")]
    Attach {
        /// The export.
        name: String,
        /// Why.
        #[source]
        source: tombolo_core::Error,
    },
    /// Its files have no handles that would outlive a restart.
    #[error("cannot serve {name} to NFS clients: its file system has no persistent handles")]
    NoHandles {
        /// The export.
        name: String,
    },
    /// Two exports would be told apart by nothing in their handles.
    #[error(transparent)]
    Alike(#[from] ExportCollision),
}
