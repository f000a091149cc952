//! One of a session's links, and what both sides know of each other.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tombolo_core::fs::{Entry, File, NodeId, OpenFlags, OpenId, PersistentHandle, Volume};
use tombolo_core::{Error, Identity};
use tombolo_host_links::client::{Call, Line, LineError};
use tombolo_host_links::{End, ProtocolError};
use tombolo_host_runtime::task;
use tombolo_wire_vrpc::{
    BODY_BYTES, DecodeError, HandleBytes, Header, Kind, Offers, Reply, Request, Session, Translate,
};

use crate::bulk_memory::BulkWaiters;
use crate::callers::Callers;
use crate::connect::Connected;
use crate::frame::Frame;
use crate::nodes::Nodes;
use crate::openings::{Opening, Openings};
use crate::released::{ReleaseQueue, Released, What};
use crate::slab::Theirs;

/// One of a session's links.
pub(crate) struct Link {
    /// Which of them it is, from 1 on.
    pub(crate) number: u32,
    pub(crate) line: Line,
    /// What the server says of the session.
    pub(crate) terms: Session,
    pub(crate) callers: Arc<Callers>,
    pub(crate) bulk_waiters: BulkWaiters,
    pub(crate) things: Arc<Things>,
    _keep: Box<dyn Any + Send + Sync>,
}

/// The number of none of them: no server knows yet what bears it.
pub(crate) const NO_LINK: u32 = 0;

/// What a session has whatever link it has.
#[derive(Debug)]
pub(crate) struct Things {
    pub(crate) nodes: Nodes,
    pub(crate) openings: Openings,
    pub(crate) releases: ReleaseQueue,
    /// Which volume the nodes are of.
    volume: OnceLock<Volume>,
    sequence: AtomicU64,
}

impl Default for Things {
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

impl Things {
    /// An opening that is not needed any more, with the link whose server has it, and what that calls it.
    pub(crate) fn opening_gone(&self, node: NodeId, (link, open): (u32, OpenId)) -> Option<Released> {
        match self.nodes.theirs(node, link) {
            Theirs::Bound(node) => {
                Some(Released { link, what: What::Opening(File { node: NodeId(node), open }) })
            }
            Theirs::Unbound | Theirs::Gone => None,
        }
    }

    /// The session's number of an opening: what the server of that link calls it.
    pub(crate) fn opened(
        &self,
        node: NodeId,
        flags: OpenFlags,
        identity: Identity,
        (link, theirs): (u32, OpenId),
    ) -> OpenId {
        self.nodes.opened(node);
        self.openings.add(Opening::new(node, flags, identity), link, theirs)
    }

    /// The number of a new request.
    #[inline]
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }
}

/// What a request cannot be sent for.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// The server was not told of the node yet.
    Node(NodeId),
    /// Nor of the opening.
    Open(OpenId),
    /// There is none such.
    Gone(Error),
}

impl Link {
    /// Asks the server what the session is. `wait` waits for the answer.
    pub(crate) fn begin(
        connected: Connected,
        number: u32,
        things: Arc<Things>,
        wait: impl FnOnce(Call) -> Result<tombolo_host_links::client::Reply, LineError>,
    ) -> Result<Arc<Self>, Error> {
        let Connected { line, keep } = connected;
        let terms = profile(&line, things.next_sequence(), wait)?;
        things.volume.get_or_init(|| terms.volume);
        let callers = Arc::new(Callers::new(terms.callers_max));
        Ok(Arc::new(Self {
            number,
            callers,
            bulk_waiters: BulkWaiters::default(),
            things,
            terms,
            line,
            _keep: keep,
        }))
    }

    /// Whether handles come with nodes.
    pub(crate) fn has_handles(&self) -> bool {
        self.terms.offers.contains(Offers::HANDLES)
    }

    /// Whether its server has the volume that the nodes of the session are of, and finds them by their
    /// handles.
    pub(crate) fn knows_handles(&self) -> bool {
        self.has_handles() && self.things.volume.get() == Some(&self.terms.volume)
    }

    /// The server broke the protocol: the link ends.
    pub(crate) fn malformed(&self, error: DecodeError) -> Error {
        malformed(&self.line, error)
    }

    /// As [`Link::malformed`], for what only the caller can know.
    pub(crate) fn protocol_violation(&self, what: &'static str) -> Error {
        self.line.cut(End::ProtocolError(ProtocolError::Malformed(what.into())));
        Error::io(what)
    }

    /// Asks that the request with this id end early. The answer is not awaited.
    pub(crate) fn interrupt(&self, id: u32) {
        let header = Header { sequence: self.things.next_sequence(), ..Header::default() };
        let mut body = [0; BODY_BYTES];
        let request = Request::Interrupt { id };
        if request.encode(&header, &mut body, &mut Frame::default()).is_ok() {
            unattended(self.line.call(request.kind().number(), body, |_| {}));
        }
    }

    /// The session's number of a node that the server has given.
    pub(crate) fn adopt(&self, entry: Entry, handle: Option<HandleBytes<'_>>) -> Entry {
        let handle = handle.map(PersistentHandle::from);
        Entry { node: self.things.nodes.adopt(self.number, entry.node, handle), ..entry }
    }

    /// The session's number of a node that the server has listed.
    pub(crate) fn adopt_listed(&self, entry: Entry, handle: Option<HandleBytes<'_>>) -> Entry {
        let handle = handle.map(PersistentHandle::from);
        Entry { node: self.things.nodes.adopt_listed(self.number, entry.node, handle), ..entry }
    }

    /// The session's number of an opening that the server has given.
    pub(crate) fn opened(
        &self,
        node: NodeId,
        flags: OpenFlags,
        identity: Identity,
        theirs: OpenId,
    ) -> OpenId {
        self.things.opened(node, flags, identity, (self.number, theirs))
    }

    /// The request in the server's numbers.
    #[inline]
    pub(crate) fn translated<'a>(&self, request: &Request<'a>) -> Result<Request<'a>, Unknown> {
        request.translated(&mut Numbers(self))
    }
}

struct Numbers<'a>(&'a Link);

impl Translate for Numbers<'_> {
    type Error = Unknown;

    #[inline]
    fn node(&mut self, node: NodeId) -> Result<NodeId, Unknown> {
        match self.0.things.nodes.theirs(node, self.0.number) {
            Theirs::Bound(theirs) => Ok(NodeId(theirs)),
            Theirs::Unbound => Err(Unknown::Node(node)),
            Theirs::Gone => Err(Unknown::Gone(Error::Stale)),
        }
    }

    #[inline]
    fn open(&mut self, open: OpenId) -> Result<OpenId, Unknown> {
        match self.0.things.openings.theirs(open, self.0.number) {
            Theirs::Bound(theirs) => Ok(OpenId(theirs)),
            Theirs::Unbound => Err(Unknown::Open(open)),
            Theirs::Gone => Err(Unknown::Gone(Error::BadOpen)),
        }
    }
}

/// Lets a call go on that is not awaited. One that has not been sent yet would otherwise never be.
pub(crate) fn unattended(call: Call) {
    if call.id().is_none() {
        task::spawn(async move { drop(call.await) });
    }
}

fn malformed(line: &Line, error: DecodeError) -> Error {
    line.cut(End::ProtocolError(ProtocolError::Malformed(error.to_string().into())));
    Error::io(error)
}

fn profile(
    line: &Line,
    sequence: u64,
    wait: impl FnOnce(Call) -> Result<tombolo_host_links::client::Reply, LineError>,
) -> Result<Session, Error> {
    let mut body = [0; BODY_BYTES];
    let header = Header { sequence, ..Header::default() };
    Request::Profile.encode(&header, &mut body, &mut Frame::default()).map_err(Error::io)?;
    let reply = wait(line.call(Kind::Profile.number(), body, |_| {})).map_err(|error| match error {
        LineError::Lost { .. } => Error::Disconnected,
        other => Error::io(other),
    })?;
    let answered = Reply::decode(Kind::Profile, reply.kind, &reply.body, &reply.frame);
    match answered.map_err(|error| malformed(line, error))? {
        Ok(Reply::Session(terms)) => Ok(terms),
        Ok(_) => Err(Error::io("the server did not say what the session is")),
        Err(status) => Err(status.into()),
    }
}
