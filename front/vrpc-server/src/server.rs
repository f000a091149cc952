//! Which exports there are, and a session of one for each link.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::fs::{Client, Export, PermissionCheck, SessionId};
use tombolo_host::links::server::{Peer, Refusal, Service, Session};

use crate::options::Options;
use crate::seal::Seal;
use crate::session::LinkSession;
use crate::voice::Voice;

/// Exports by name, for the links of a [`Server`](tombolo_host::links::server::Server). Whoever gets a link to one gets a session of
/// its own.
#[derive(Default)]
pub struct VrpcServer {
    exports: BTreeMap<String, Offered>,
    seal: Seal,
    next_session: AtomicU64,
}

/// An export under its name.
struct Offered {
    export: Arc<dyn Export>,
    options: Options,
    seal: Seal,
}

impl VrpcServer {
    /// Nothing is exported.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Exports a tree under a name, in the place of what had the name before.
    #[must_use]
    pub fn with_export(mut self, name: impl Into<String>, export: Arc<dyn Export>, options: Options) -> Self {
        let name = name.into();
        let seal = self.seal.for_export(&name);
        self.exports.insert(name, Offered { export, options, seal });
        self
    }

    /// The export of that name; without one the only one there is.
    fn export(&self, name: &str) -> Option<&Offered> {
        match (name, self.exports.len()) {
            ("", 1) => self.exports.values().next(),
            _ => self.exports.get(name),
        }
    }
}

impl Service for VrpcServer {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        let Offered { export, options, seal } = self.export(&peer.export).ok_or(Refusal::NoSuchExport)?;
        let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed) + 1);
        let voice = Voice::of(peer);
        // Whoever is not believed in whose name it asks is not believed to have checked what they may do either.
        let checks = if voice.is_anybodys() { options.checks } else { PermissionCheck::BackEnd };
        let client = Client { session, label: peer.label.to_string(), checks };
        let file_system = export.attach(&client).map_err(|error| {
            tracing::error!(export = peer.export, peer = &*peer.label, %error, "no session");
            Refusal::Failed(error.to_string().into())
        })?;
        Ok(Arc::new(LinkSession::new(session, file_system, *options, voice, seal.clone())))
    }
}

impl std::fmt::Debug for VrpcServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.exports.keys()).finish()
    }
}
