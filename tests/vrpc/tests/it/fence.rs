//! The reconnect fence: no request of a client's former link runs when its next link begins.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tombolo_back_memory::Memory;
use tombolo_core::fs::Op;
use tombolo_core::fs::{Client, Export, FileSystem, NodeId, Write};
use tombolo_core::{Answer, Result};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::EndReason;
use tombolo_host_links::connect::ConnectOptions;
use tombolo_host_links::rendezvous::{self, MemoryListener};
use tombolo_host_links::server::{LinkHandle, Peer, Refusal, Server, Session as LinkSession};
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::around::{Around, Call, Layered, Payload};
use tombolo_layer_replies as replies;
use tombolo_mem::Source;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{
    ClientHandshake, ClientStep, Doorbells, Ends, Hello, Incarnation, Layout, Limits, length_of,
};
use tombolo_shm::region::file;
use tombolo_test_support::{Session, until};
use tombolo_vrpc_tests::site::{Plan, Site};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Attached,
    WriteBegun,
    WriteEnded,
}

/// Events at an export whose writes end only when the test lets them.
#[derive(Default)]
struct Watch {
    events: Mutex<Vec<Event>>,
    go_on: Arc<Promise<()>>,
}

impl Watch {
    fn note(&self, event: Event) {
        self.events.lock().expect("no panics").push(event);
    }

    fn events(&self) -> Vec<Event> {
        self.events.lock().expect("no panics").clone()
    }
}

struct Slow(Arc<Watch>);

impl Around for Slow {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if call.op != Op::Write {
            return inner();
        }
        let (watch, answer) = (self.0.clone(), inner());
        watch.note(Event::WriteBegun);
        Answer::later(async move {
            // It cannot be interrupted, as with a disk.
            watch.go_on.clone().kept().await;
            let result = answer.resolve().await;
            watch.note(Event::WriteEnded);
            result
        })
    }
}

struct Slowed {
    inner: Layered<dyn Export, Slow>,
    watch: Arc<Watch>,
}

impl Export for Slowed {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        self.watch.note(Event::Attached);
        self.inner.attach(client)
    }
}

/// Tests the reconnect fence alone: nothing else keeps the former link's write from overwriting later data.
#[test]
fn next_link_waits_for_pending_write_of_same_client() {
    let watch = Arc::<Watch>::default();
    let inner = Layered::new(Arc::new(Memory::default()) as Arc<dyn Export>, Arc::new(Slow(watch.clone())));
    let slowed: Arc<dyn Export> = Arc::new(Slowed { inner, watch: watch.clone() });
    let site = Site::serving(Arc::new(replies::over(slowed, &replies::Options::default())), Plan::default());
    let session = Session::attach(&site.export());
    let file = session.file("file");
    let writing = session.fs.write(&session.cx, file, &Write::default(), Source::from(b"data".to_vec()));
    assert!(!writing.is_done());
    until("the write is under way", || watch.events().contains(&Event::WriteBegun));
    let (asked, before) = (site.asked(), watch.events());
    assert_eq!(before, [Event::Attached, Event::WriteBegun]);
    site.cut();
    until("it was refused once at least", || site.asked() > asked + 1 || watch.events() != before);
    assert_eq!(watch.events(), before, "the next link begins while a request of the former is under way");
    let other = Session::attach(&site.export());
    other.fs.statfs(&other.cx, NodeId::ROOT).wait().expect("it is not held up");
    assert_eq!(watch.events()[2..], [Event::Attached]);
    watch.go_on.keep(());
    // It is performed again: that leaves the same.
    assert_eq!(writing.wait().expect("written").count, 4);
    let after = [Event::WriteEnded, Event::Attached, Event::WriteBegun, Event::WriteEnded];
    assert_eq!(watch.events()[3..], after);
}

/// A server, and links without traffic.
struct Idle(Server);

impl Idle {
    fn new() -> Idle {
        let service = VrpcServer::new().with_export("a", Arc::new(Memory::default()), Options::default());
        let service = service.with_export("b", Arc::new(Memory::default()), Options::default());
        Idle(Server::new(Arc::new(service)))
    }

    fn open(&self, incarnation: u8, export: &str) -> std::result::Result<Arc<dyn LinkSession>, Refusal> {
        self.0.open(&peer(incarnation, export))
    }

    fn link(&self, session: Arc<dyn LinkSession>) -> (LinkHandle, Ends) {
        let (ours, theirs) = Ends::in_memory(Layout::with_bulk(8, 8, 1 << 20).expect("a layout"));
        let handle = self.0.serve(&theirs, &peer(0, "-"), session, Mode::Event).expect("a link");
        (handle, ours)
    }
}

fn peer(incarnation: u8, export: &str) -> Peer {
    let client = Incarnation([incarnation; 16]);
    Peer { export: export.into(), credentials: None, client, label: "client".into() }
}

/// Reconnects before the server has noticed the loss of the link.
#[test]
fn reconnecting_client_ends_its_former_link() {
    let server = Idle::new();
    let former = server.link(server.open(1, "a").expect("a session"));
    let elsewhere = server.link(server.open(1, "b").expect("of another export"));
    let others = server.link(server.open(2, "a").expect("another's session"));
    let next = server.link(server.open(1, "a").expect("the next session"));
    assert_eq!(former.0.end(), Some(EndReason::Left));
    assert_eq!(former.0.counts(), None, "and all of it is gone");
    for (link, _) in [&elsewhere, &others, &next] {
        assert_eq!(link.end(), None);
    }
}

/// Requests a second session between the first one's welcome and its link.
#[test]
fn superseded_session_without_link_gets_none() {
    let server = Idle::new();
    let former = server.open(1, "a").expect("a session");
    let refused = server.open(1, "a").err();
    assert!(matches!(refused, Some(Refusal::Failed(_))), "{refused:?}");
    let (link, _ends) = server.link(former);
    assert_eq!(link.end(), Some(EndReason::Left), "nothing that comes over it is performed");
    server.link(server.open(1, "a").expect("the former has gone"));
}

/// Repeats the handshake, as after a guest was killed between the welcome and its link.
#[test]
fn client_welcomed_without_link_may_claim_again() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a scratch directory");
    let place = MemoryLocation::File(dir.path().join("memory"));
    let watch = Arc::<Watch>::default();
    let inner = Layered::new(Arc::new(Memory::default()) as Arc<dyn Export>, Arc::new(Slow(watch.clone())));
    let export = Arc::new(Slowed { inner, watch: watch.clone() });
    let server =
        Arc::new(Server::new(Arc::new(VrpcServer::new().with_export("a", export, Options::default()))));
    let memory = SharedMemory::to_serve(&place, Some(1 << 20)).expect("memory");
    let listener = MemoryListener::start(memory, server, Limits::default(), Mode::Adaptive, "guest");
    let _listener = listener.expect("a listener");
    let hello = Hello {
        doorbells: Doorbells::SILENT,
        export: "a".into(),
        ..Hello::new(Incarnation([1; 16]), 8, 8, u64::MAX)
    };
    let region = file::open(&dir.path().join("memory")).expect("memory");
    let total = length_of(&region).expect("a page");
    for round in 1..=2 {
        let mut handshake = ClientHandshake::new(region.clone(), total, hello.clone(), round, Instant::now())
            .expect("a handshake");
        until("it is welcomed", || {
            let is_welcome = watch.events().len() >= round as usize;
            let step = (!is_welcome).then(|| handshake.step(Instant::now()).expect("the page"));
            assert!(!matches!(step, Some(ClientStep::Refused(_))), "{step:?}");
            is_welcome
        });
    }
    let options = ConnectOptions::new("a", "test", Incarnation([1; 16])).expect("a layout");
    let memory = SharedMemory::to_use(&place).expect("memory");
    rendezvous::join(memory, &options, "link", Mode::Adaptive).expect("a link");
}
