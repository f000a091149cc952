//! A link of a session, and the translation of the session's ids to those of the link's server.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tombolo_core::fs::{Entry, File, NodeId, OpenFlags, OpenId, PersistentHandle, Volume};
use tombolo_core::{Error, Identity, Wakers};
use tombolo_host_links::client::{Call, Line, LineError};
use tombolo_host_links::{EndReason, ProtocolError};
use tombolo_host_runtime::task;
use tombolo_shm::link::Features;
use tombolo_wire_vrpc::{DecodeError, HandleBytes, Header, Kind, Offers, Reply, Request, Session, Translate};

use crate::callers::Callers;
use crate::connect::Connected;
use crate::frame::encoded;
use crate::nodes::Nodes;
use crate::openings::{Opening, Openings};
use crate::released::{ReleaseQueue, Released, ReleasedKind};
use crate::slab::ServerId;

/// A link of a session, with the state that is valid only for its server.
pub(crate) struct Link {
    /// Ordinal number of the attempt that established it, from 1 on.
    pub(crate) number: u32,
    pub(crate) line: Line,
    /// The session as described by the server.
    pub(crate) terms: Session,
    pub(crate) callers: Arc<Callers>,
    /// Requests that wait for bulk memory, woken when some is freed or the link is lost.
    pub(crate) bulk_waiters: Wakers,
    pub(crate) objects: Arc<SessionObjects>,
    _keep: Box<dyn Any + Send + Sync>,
}

/// Link number of openings that no server has yet.
pub(crate) const NO_LINK: u32 = 0;

/// State of a session that outlives its links.
#[derive(Debug)]
pub(crate) struct SessionObjects {
    pub(crate) nodes: Nodes,
    pub(crate) openings: Openings,
    pub(crate) releases: ReleaseQueue,
    /// Volume of the nodes, as the first link's server described it.
    volume: OnceLock<Volume>,
    sequence: AtomicU64,
}

impl Default for SessionObjects {
    fn default() -> Self {
        Self {
            nodes: Nodes::default(),
            openings: Openings::default(),
            releases: ReleaseQueue::default(),
            volume: OnceLock::new(),
            sequence: AtomicU64::new(1),
        }
    }
}

impl SessionObjects {
    /// Returns the release to send for an unneeded opening, given the link whose server has it and its id
    /// there.
    pub(crate) fn opening_gone(&self, node: NodeId, (link, open): (u32, OpenId)) -> Option<Released> {
        match self.nodes.server_id(node, link) {
            ServerId::Bound(node) => {
                Some(Released { link, kind: ReleasedKind::Opening(File { node: NodeId(node), open }) })
            }
            ServerId::Unbound | ServerId::Gone => None,
        }
    }

    /// Registers an opening of the link's server, and returns the session's id for it.
    pub(crate) fn opened(
        &self,
        node: NodeId,
        flags: OpenFlags,
        identity: Identity,
        (link, server_id, is_prompt): (u32, OpenId, bool),
    ) -> OpenId {
        self.nodes.opened(node);
        self.openings.add(Opening::new(node, flags, identity, is_prompt), link, server_id)
    }

    #[inline]
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }
}

/// Reasons why a request cannot be sent.
#[derive(Debug)]
pub(crate) enum Untranslatable {
    /// The server does not know the node yet.
    Node(NodeId),
    /// The server does not know the opening yet.
    Open(OpenId),
    /// The node or opening does not exist.
    Gone(Error),
}

impl Link {
    /// Creates a link and requests the session's description; `wait` waits for the reply.
    pub(crate) fn begin(
        connected: Connected,
        number: u32,
        objects: Arc<SessionObjects>,
        wait: impl FnOnce(Call) -> Result<tombolo_host_links::client::Reply, LineError>,
    ) -> Result<Arc<Self>, Error> {
        let Connected { line, keep } = connected;
        let terms = profile(&line, objects.next_sequence(), wait)?;
        objects.volume.get_or_init(|| terms.volume);
        let callers = Arc::new(Callers::new(terms.callers_max));
        Ok(Arc::new(Self {
            number,
            callers,
            bulk_waiters: Wakers::default(),
            objects,
            terms,
            line,
            _keep: keep,
        }))
    }

    /// Returns `true` if the server offers the handles of nodes, so that replies can contain them.
    pub(crate) fn has_handles(&self) -> bool {
        self.terms.offers.contains(Offers::HANDLES)
    }

    /// Returns `true` if both sides support quiet requests, for whose replies the server does not ring the
    /// doorbell, and prompt openings (`docs/protocols/vrpc.md`).
    pub(crate) fn has_quiet_requests(&self) -> bool {
        self.line.features().contains(Features::QUIET)
    }

    /// Returns `true` if the link's server has the volume of the session's nodes, and finds nodes by handle.
    pub(crate) fn knows_handles(&self) -> bool {
        self.has_handles() && self.objects.volume.get() == Some(&self.terms.volume)
    }

    /// Ends the link, because the server violated the protocol.
    pub(crate) fn malformed(&self, error: DecodeError) -> Error {
        malformed(&self.line, error)
    }

    /// Ends the link as [`Link::malformed`] does, for a violation that the caller has detected.
    pub(crate) fn protocol_violation(&self, what: &'static str) -> Error {
        self.line.cut(EndReason::ProtocolError(ProtocolError::Malformed(what.into())));
        Error::io(what)
    }

    /// Requests the interruption of the request with this id, without waiting for the reply.
    pub(crate) fn interrupt(&self, id: u32) {
        let header = Header { sequence: self.objects.next_sequence(), ..Header::default() };
        let request = Request::Interrupt { id };
        if let Ok((body, _)) = encoded(&request, &header) {
            unattended(self.line.call(request.kind().number(), body, |_| {}));
        }
    }

    /// Replaces the server's node id in the entry of a reply, perhaps of a listing, by the session's; counts
    /// a look-up.
    pub(crate) fn adopt(&self, listed: bool, entry: Entry, handle: Option<HandleBytes<'_>>) -> Entry {
        let handle = handle.map(PersistentHandle::from);
        Entry { node: self.objects.nodes.adopt(listed, self.number, entry.node, handle), ..entry }
    }

    /// Returns the server's id of an opening and the promise to be prompt. A promise on a link without quiet
    /// requests violates the protocol.
    pub(crate) fn prompt_as_agreed(&self, open: OpenId, is_prompt: bool) -> Result<(OpenId, bool), Error> {
        match is_prompt && !self.has_quiet_requests() {
            true => Err(self.protocol_violation("a prompt opening without the extension")),
            false => Ok((open, is_prompt)),
        }
    }

    /// Registers an opening from a reply of this link's server, and returns the session's id for it.
    pub(crate) fn opened(
        &self,
        node: NodeId,
        flags: OpenFlags,
        identity: Identity,
        (server_id, is_prompt): (OpenId, bool),
    ) -> OpenId {
        self.objects.opened(node, flags, identity, (self.number, server_id, is_prompt))
    }

    #[inline]
    pub(crate) fn translated<'a>(&self, request: &Request<'a>) -> Result<Request<'a>, Untranslatable> {
        request.translated(&mut Numbers(self))
    }
}

struct Numbers<'a>(&'a Link);

impl Translate for Numbers<'_> {
    type Error = Untranslatable;

    #[inline]
    fn node(&mut self, node: NodeId) -> Result<NodeId, Untranslatable> {
        match self.0.objects.nodes.server_id(node, self.0.number) {
            ServerId::Bound(server_id) => Ok(NodeId(server_id)),
            ServerId::Unbound => Err(Untranslatable::Node(node)),
            ServerId::Gone => Err(Untranslatable::Gone(Error::Stale)),
        }
    }

    #[inline]
    fn open(&mut self, open: OpenId) -> Result<OpenId, Untranslatable> {
        match self.0.objects.openings.server_id(open, self.0.number) {
            ServerId::Bound(server_id) => Ok(OpenId(server_id)),
            ServerId::Unbound => Err(Untranslatable::Open(open)),
            ServerId::Gone => Err(Untranslatable::Gone(Error::BadOpen)),
        }
    }
}

/// Completes a call without waiting for it. A call not yet sent would never be sent if it were dropped.
pub(crate) fn unattended(call: Call) {
    if call.id().is_none() {
        task::spawn(async move { drop(call.await) });
    }
}

fn malformed(line: &Line, error: DecodeError) -> Error {
    line.cut(EndReason::ProtocolError(ProtocolError::Malformed(error.to_string().into())));
    Error::io(error)
}

fn profile(
    line: &Line,
    sequence: u64,
    wait: impl FnOnce(Call) -> Result<tombolo_host_links::client::Reply, LineError>,
) -> Result<Session, Error> {
    let (body, _) = encoded(&Request::Profile, &Header { sequence, ..Header::default() })?;
    let reply = wait(line.call(Kind::Profile.number(), body, |_| {})).map_err(|error| match error {
        LineError::Lost { .. } => Error::Disconnected,
        other => Error::io(other),
    })?;
    let answered = Reply::decode(Kind::Profile, reply.kind, &reply.body, &reply.frame);
    match answered.map_err(|error| malformed(line, error))? {
        Ok(Reply::Session(terms)) => Ok(terms),
        Ok(_) => Err(Error::io("the server did not describe the session")),
        Err(status) => Err(status.into()),
    }
}
