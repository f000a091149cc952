//! Numbers of callers: in whose name a request is performed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_back_vrpc_client::{Connect, ConnectError, Connected, VrpcExport};
use tombolo_core::fs::{
    Client, Ctx, Error, FileSystem, Identity, NodeId, PermissionCheck, Profile, StatFs, Volume,
};
use tombolo_host::links::client::Line;
use tombolo_host::links::server::{Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_shm::bell::Mode;
use tombolo_shm::link::{Ends, Instance, Layout};
use tombolo_vrpc_tests::bed::{client, root};
use tombolo_wire_vrpc::{FrameBuf, Kind, Offers, Reply, Session as Terms};

/// Far longer than it takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server with one number, which takes its time for SYNCFS.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Vec<Responder>>>);

impl Service for Slow {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(self.clone()))
    }
}

impl Session for Slow {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        let kind = Kind::from_number(request.kind).expect("the client is honest");
        match kind {
            Kind::Profile => say(responder, kind, &Reply::Session(terms())),
            Kind::Syncfs => self.0.lock().expect("no panics").push(responder),
            Kind::Statfs => say(responder, kind, &Reply::StatFs(StatFs::default())),
            _ => say(responder, kind, &Reply::Done),
        }
    }
}

fn terms() -> Terms {
    let profile = Profile {
        permission_check: PermissionCheck::BackEnd,
        read_only: false,
        name_max: 255,
        file_size_max: u64::MAX,
        time_granularity_ns: 1,
    };
    let (volume, offers) = (Volume::default(), Offers::empty());
    Terms { profile, offers, volume, transfer_bytes_max: 1 << 20, callers_max: 1 }
}

fn say(responder: Responder, kind: Kind, reply: &Reply<'_>) {
    let (mut body, mut memory) = ([0; 48], [0; 4096]);
    let mut frame = FrameBuf::new(&mut memory);
    let number = reply.encode(kind, &mut body, &mut frame).expect("an answer");
    responder.send(number, body, frame.as_bytes());
}

struct Dial(Slow);

impl Connect for Dial {
    fn connect(&self, _client: &Client) -> Result<Connected, ConnectError> {
        let (ours, theirs) = Ends::in_memory(Layout::with_bulk(8, 8, 1 << 20)?);
        let server = Server::new(Arc::new(self.0.clone()));
        let (client, label) = (Instance([0; 16]), "client".into());
        let peer = Peer { export: String::new(), credentials: None, client, label };
        let session = server.open(&peer)?;
        let handle = server.serve(&theirs, &peer, session, Mode::Event)?;
        Ok(Connected { line: Line::start(&ours, "server", Mode::Event)?, keep: Box::new((server, handle)) })
    }
}

/// Whoever asked may go away before the answer comes. Nobody else gets the number that the request bears until it has come, or the
/// server could perform it in the wrong name.
#[test]
fn the_number_of_a_request_whose_asker_left_is_nobody_elses() {
    let server = Slow::default();
    let fs = VrpcExport::new(Dial(server.clone())).attach_session(&client()).expect("a session");
    let other = Ctx { identity: Identity { uid: 5, ..Identity::default() }, ..root() };
    let as_other = || fs.statfs(&other, NodeId::ROOT).wait();
    fs.statfs(&root(), NodeId::ROOT).wait().expect("the server knows root by its number");
    as_other().expect("nothing is under way");
    fs.statfs(&root(), NodeId::ROOT).wait().expect("nothing is under way");
    let asked = fs.syncfs(&root());
    assert!(!asked.is_done());
    drop(asked);
    assert!(matches!(as_other(), Err(Error::WouldBlock)), "the only number is in use");
    let until = Instant::now() + PATIENCE;
    while as_other().is_err() {
        server.0.lock().expect("no panics").drain(..).for_each(|held| say(held, Kind::Syncfs, &Reply::Done));
        assert!(Instant::now() < until, "the number is never free again");
        std::thread::yield_now();
    }
}
