//! What a server is told.

use std::sync::Arc;

use tombolo_core::SessionId;
use tombolo_core::fs::Export;

use crate::access::{AllowList, Identities, Squash};
use crate::export::Durability;
use crate::handle::Signer;

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
