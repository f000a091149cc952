//! What answers requests, and what a request is made of.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use thiserror::Error;
use tombolo_shm::link::Incarnation;

use super::responder::Responder;
use super::serving::LinkCutter;

/// Opens sessions. Knows no links.
pub trait Service: Send + Sync {
    /// A peer asks for a link; returns what answers its requests. Called before there is memory for the link,
    /// on a thread where it may block for a moment.
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal>;
}

/// Answers the requests of one link.
pub trait Session: Send + Sync {
    /// The link begins; with `cutter` it can be ended from anywhere. Called once, before any request comes. A
    /// session whose link is not made after all is dropped without.
    fn begun(&self, _cutter: LinkCutter) {}

    /// Answers one request, now or later, from any thread. Called on the link's thread, one request after the
    /// other, so it must not block: what takes longer keeps the responder and goes on on another thread. If
    /// it panics, the link is cut.
    ///
    /// It is dropped when the link has ended and all responders are gone.
    fn serve(&self, request: Request<'_>, responder: Responder);

    /// A window that the peer is to have (docs/formats/window.md). Called before the link begins.
    fn window(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// The link has ended, and what is under way is of no use: the time to interrupt it. Called once, from
    /// any thread, which must not be blocked; requests may still come to [`serve`](Self::serve) meanwhile.
    fn ended(&self) {}
}

/// A request. Nothing in it can change any more.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is asked.
    pub kind: u32,
    /// Arguments of fixed length.
    pub body: [u8; 48],
    /// Arguments of variable length: a private copy, at most 4 KiB. It is gone when `serve` returns.
    pub frame: &'a [u8],
}

/// The other end of a link.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Which export it asked for.
    pub export: String,
    /// Its process, as this kernel reports it; none without a common kernel, and then its identities cannot
    /// be checked.
    pub credentials: Option<VerifiedPeer>,
    /// The incarnation of the client, as it says itself.
    pub client: Incarnation,
    /// What to call it in the log.
    pub label: Arc<str>,
}

/// A process at the other end, in this process's namespaces, when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// A process whose credentials the kernel has reported, and the identities that it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPeer {
    /// The process.
    pub process: Credentials,
    /// Which identities its requests may name.
    pub identities: AllowedIdentities,
}

/// Which identities a peer's requests may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedIdentities {
    /// Any, root included.
    Any,
    /// Its own user, with its own group and these others, which its process had when it connected.
    Own {
        /// Supplementary groups.
        groups: Arc<[u32]>,
    },
}

/// Why a peer gets no session.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// There is no such export.
    #[error("there is no export of that name")]
    NoSuchExport,
    /// It may not have this export.
    #[error("not allowed")]
    NotAllowed,
    /// There are too many links.
    #[error("too many links")]
    TooMany,
    /// It cannot be opened at the moment.
    #[error("{0}")]
    Failed(Arc<str>),
}
