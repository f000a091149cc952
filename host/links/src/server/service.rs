//! Interface of a link server: its user's [`Service`] opens a [`Session`] for each link's requests.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use thiserror::Error;
use tombolo_core::fs::WindowMirror;
use tombolo_mem::Region;
use tombolo_shm::link::Incarnation;

use super::responder::Responder;
use super::serving::LinkCutter;

/// A factory of sessions, independent of links.
pub trait Service: Send + Sync {
    /// Opens a session for a peer that requests a link. At a socket, called before this side's memory is
    /// allocated, so that a refused peer costs none. May block briefly: other links do not wait for it.
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal>;
}

/// A handler of one link's requests.
pub trait Session: Send + Sync {
    /// Passes a handle that can end the link from anywhere, once before the first request. A session whose
    /// link is not made may be dropped without this call.
    fn begun(&self, _cutter: LinkCutter) {}

    /// Answers one request, now or later, from any thread. Called for one request after the other on the
    /// link's thread. It must not block, unless the link's later requests have to wait anyway, and never
    /// beyond the [end](Self::ended) of the link: longer work moves to another thread, with the responder. A
    /// panic cuts the link.
    ///
    /// The session is dropped once the link has ended and all responders are dropped.
    fn serve(&self, request: Request<'_>, responder: Responder);

    /// Returns the window for the peer (docs/formats/window.md), if there is one. Called before the link
    /// begins.
    fn window(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Maintains a mirror of the window for the peer at `offset` of `memory`, until the result is dropped.
    /// Returns `None` if there is no window. Called before the link begins.
    fn mirror_window(&self, _memory: &Region, _offset: usize) -> Option<Box<dyn WindowMirror>> {
        None
    }

    /// Reports the end of the link, once, on any thread. Must not block. Work in progress is useless and
    /// should be interrupted now. [`serve`](Self::serve) may still be called concurrently.
    fn ended(&self) {}
}

/// A request, copied to private memory: the peer can no longer change it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Operation requested, as numbered by the protocol that the link carries.
    pub kind: u32,
    /// Arguments of fixed length, encoded as the link's protocol specifies.
    pub body: [u8; 48],
    /// Arguments of variable length: a private copy of at most 4 KiB, valid until `serve` returns.
    pub frame: &'a [u8],
}

/// The peer of a link.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Requested export.
    pub export: String,
    /// Process of the peer, as attested by this kernel; `None` on a link without a socket, even within one
    /// host: then the peer's identities cannot be verified.
    pub credentials: Option<VerifiedPeer>,
    /// Incarnation of the client, as claimed by itself.
    pub client: Incarnation,
    /// Name for the log.
    pub label: Arc<str>,
}

/// Credentials of a peer's process when it connected, in this process's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// A process with kernel-attested credentials, and the identities that it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPeer {
    /// The process.
    pub process: Credentials,
    /// Identities that the peer's requests may name.
    pub identities: AllowedIdentities,
}

/// Identities that a peer's requests may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedIdentities {
    /// Any, including root.
    Any,
    /// The process's own user, group and supplementary groups.
    Own {
        /// Supplementary groups of the process when it connected.
        groups: Arc<[u32]>,
    },
}

/// Reason why a peer gets no session.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The export does not exist.
    #[error("there is no export of that name")]
    NoSuchExport,
    /// The peer may not use this export.
    #[error("not allowed")]
    NotAllowed,
    /// There are too many links.
    #[error("too many links")]
    TooMany,
    /// The export cannot be opened at present.
    #[error("{0}")]
    Failed(Arc<str>),
}
