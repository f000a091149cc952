//! Exports, and a session of the requested export for each link.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_core::{SessionId, SquashMode};
use tombolo_host_links::server::{IdentityPolicy, Peer, Refusal, Service, Session};
use tombolo_host_runtime::signing_keys::Keys;

use crate::client_id::client_id;
use crate::handle_signature::HandleSigner;
use crate::options::Options;
use crate::reconnect_fence::ReconnectFence;
use crate::session::LinkSession;

/// Maximum wait of a reconnecting client for requests of its previous link, before the client must retry:
/// short enough for a handshake, and longer than an interrupted request usually takes.
const PREVIOUS_LINK_TIMEOUT: Duration = Duration::from_secs(1);

/// Exports by name, for a [`Server`](tombolo_host_links::server::Server)'s links, each with its own session.
pub struct VrpcServer {
    exports: BTreeMap<String, ExportEntry>,
    signer: HandleSigner,
    /// Number of the next session.
    session_ids: Arc<AtomicU64>,
    fence: Arc<ReconnectFence>,
}

/// An export and its options.
struct ExportEntry {
    export: Arc<dyn Export>,
    options: Options,
}

impl VrpcServer {
    /// Creates a server without exports. It numbers its sessions; its handles are valid for its lifetime.
    #[must_use]
    pub fn new() -> Self {
        let session_ids = Arc::new(AtomicU64::new(1));
        Self { exports: BTreeMap::new(), signer: HandleSigner::default(), session_ids, fence: Arc::default() }
    }

    /// Signs handles with these keys, so that they survive restarts.
    #[must_use]
    pub fn with_keys(self, keys: Arc<Keys>) -> Self {
        Self { signer: HandleSigner::with(keys), ..self }
    }

    /// Assigns session numbers from this counter, for exports that are also used by other servers.
    #[must_use]
    pub fn with_session_ids(self, session_ids: Arc<AtomicU64>) -> Self {
        Self { session_ids, ..self }
    }

    /// Adds an export, replacing one with the same name.
    #[must_use]
    pub fn with_export(mut self, name: impl Into<String>, export: Arc<dyn Export>, options: Options) -> Self {
        self.exports.insert(name.into(), ExportEntry { export, options });
        self
    }

    /// Returns the export with this name, if there is one; for an empty name the only export.
    fn export(&self, name: &str) -> Option<(&String, &ExportEntry)> {
        match (name, self.exports.len()) {
            ("", 1) => self.exports.iter().next(),
            _ => self.exports.get_key_value(name),
        }
    }
}

impl Default for VrpcServer {
    fn default() -> Self {
        Self::new()
    }
}

impl Service for VrpcServer {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        let (name, entry) = self.export(&peer.export).ok_or(Refusal::NoSuchExport)?;
        let ExportEntry { export, options } = entry;
        // The previous session ends before any part of the next one exists.
        let guard = self
            .fence
            .enter(name, client_id(peer), PREVIOUS_LINK_TIMEOUT)
            .ok_or_else(|| Refusal::Failed("requests of the previous link are still under way".into()))?;
        let session = SessionId(self.session_ids.fetch_add(1, Ordering::Relaxed));
        let identity_policy = IdentityPolicy::of(peer);
        // A peer whose identities are not trusted is not trusted to check permissions either.
        let is_believed = identity_policy.allows_any() && options.squash.mode == SquashMode::None;
        let checks = if is_believed { options.checks } else { PermissionCheck::BackEnd };
        let client = Client { session, label: peer.label.to_string(), checks };
        let file_system = export.attach(&client).map_err(|error| {
            tracing::error!(export = peer.export, peer = &*peer.label, %error, "cannot attach to the export");
            Refusal::Failed(error.to_string().into())
        })?;
        let signer = self.signer.for_export(name);
        Ok(Arc::new(LinkSession::new(session, file_system, *options, identity_policy, signer, guard)))
    }
}

impl std::fmt::Debug for VrpcServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.exports.keys()).finish()
    }
}
