//! Servers made up by tests: session terms, replies, and a dialer.

use std::sync::Arc;

use tombolo_back_vrpc_client::{Connect, ConnectError, Connected};
use tombolo_core::fs::{Client, PermissionCheck, Profile, Volume};
use tombolo_host_links::client::Line;
use tombolo_host_links::server::{LinkCutter, Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Features, Incarnation, Layout};
use tombolo_wire_vrpc::{Body, FrameBuf, Kind, Offers, Reply, Session as Terms};

/// A reply as number, body and frame.
pub type Said = (u32, Body, Vec<u8>);

/// Returns valid session terms: all features offered, eight caller numbers.
pub fn terms() -> Terms {
    let profile = Profile {
        permission_check: PermissionCheck::BackEnd,
        read_only: false,
        name_max: 255,
        file_size_max: u64::MAX,
        time_granularity_ns: 1,
        writes_by_owner: false,
    };
    let (volume, offers) = (Volume::default(), Offers::all());
    Terms { profile, offers, volume, transfer_bytes_max: 1 << 20, callers_max: 8 }
}

/// Encodes a reply.
pub fn said(kind: Kind, reply: &Reply<'_>) -> Said {
    let (mut body, mut memory) = ([0; 48], [0; 4096]);
    let mut frame = FrameBuf::new(&mut memory);
    let number = reply.encode(kind, &mut body, &mut frame).expect("an answer");
    (number, body, frame.as_bytes().to_vec())
}

/// A service that treats each request as a closure says.
#[derive(Clone)]
pub struct MadeUp(Arc<dyn Fn(Kind, Responder) + Send + Sync>);

impl MadeUp {
    /// Creates a service whose closure keeps or uses the responder of each request.
    pub fn serving(serve: impl Fn(Kind, Responder) + Send + Sync + 'static) -> Arc<dyn Service> {
        Arc::new(Self(Arc::new(serve)))
    }

    /// Creates a service that replies at once.
    pub fn replying(reply: impl Fn(Kind) -> Said + Send + Sync + 'static) -> Arc<dyn Service> {
        Self::serving(move |kind, responder| {
            let (number, body, frame) = reply(kind);
            responder.send(number, body, &frame);
        })
    }
}

impl Service for MadeUp {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(self.clone()))
    }
}

impl Session for MadeUp {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        (self.0)(Kind::from_number(request.kind).expect("the client is honest"), responder);
    }
}

/// A service whose requests a closure passes on to the session of another service, or does not.
pub struct Between<F>(pub Arc<dyn Service>, pub Arc<F>);

impl<F> Service for Between<F>
where
    F: Fn(&Arc<dyn Session>, Request<'_>, Responder) + Send + Sync + 'static,
{
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(BetweenSession(self.0.open(peer)?, self.1.clone())))
    }
}

struct BetweenSession<F>(Arc<dyn Session>, Arc<F>);

impl<F: Fn(&Arc<dyn Session>, Request<'_>, Responder) + Send + Sync> Session for BetweenSession<F> {
    fn begun(&self, cutter: LinkCutter) {
        self.0.begun(cutter);
    }

    fn serve(&self, request: Request<'_>, responder: Responder) {
        (self.1)(&self.0, request, responder);
    }

    fn ended(&self) {
        self.0.ended();
    }
}

/// Dials a server of that service, in memory, over a link without extensions.
pub struct Dial(pub Arc<dyn Service>);

impl Connect for Dial {
    fn connect(&self, _client: &Client, _instance: Incarnation) -> Result<Connected, ConnectError> {
        let (mut ours, mut theirs) = Ends::in_memory(Layout::with_bulk(8, 8, 1 << 20)?);
        (ours.features, theirs.features) = (Features::empty(), Features::empty());
        let server = Server::new(self.0.clone());
        let (client, label) = (Incarnation([0; 16]), "client".into());
        let peer = Peer { export: String::new(), credentials: None, client, label };
        let session = server.open(&peer)?;
        let handle = server.serve(&theirs, &peer, session, Mode::Event)?;
        Ok(Connected { line: Line::start(&ours, "server", Mode::Event)?, keep: Box::new((server, handle)) })
    }
}
