//! Region forwarding: messages to the server, the end of either side, and protocol violations.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use tombolo_host_links::client::{Call, Line};
use tombolo_host_links::connect::{ConnectOptions, connect};
use tombolo_host_links::control_socket::{ControlSocket, Watcher};
use tombolo_host_links::listen::ListenOptions;
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Service, Session};
use tombolo_host_links::{EndReason, ProtocolError};
use tombolo_mem::Source;
use tombolo_shm::address::{Domain, GlobalAddress};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{
    Cause, Epoch, Features, ForwardRegion, Goodbye, Hello, Incarnation, Limits, MESSAGE_BYTES_MAX, Message,
    RegionForwarded, Withdraw,
};
use tombolo_shm::region::sealed::Sealed;
use tombolo_sys::memfd;
use tombolo_sys::packet::{self, Packet};
use tombolo_sys::{Errno, creds};

use crate::listener::common::{TestHost, found, until, works};

/// Returns the next message on a socket with its descriptors, or `None` at its end.
fn next(socket: &OwnedFd) -> Option<(Message, Vec<OwnedFd>)> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let Packet { len, descriptors, .. } = found("a message", || match packet::receive(socket, &mut buffer) {
        Err(Errno::AGAIN | Errno::CONNRESET) => None,
        Err(error) => panic!("{error}"),
        Ok(packet) => Some(packet),
    });
    let message = (len > 0).then(|| Message::decode(&buffer[..len]).expect("a message"))?;
    Some((message, descriptors.into_iter().collect()))
}

fn say(socket: &OwnedFd, message: &Message, descriptors: &[BorrowedFd<'_>]) {
    packet::send(socket, &message.encode(), descriptors).expect("sent");
}

fn answer(domain: Domain, is_known: bool) -> Message {
    Message::RegionForwarded(RegionForwarded { domain, is_known })
}

/// The domain between: it retains the memory of the program's requests, and has a link to a server played by
/// the test.
struct Middle {
    host: TestHost<Keep>,
    program: Line,
    /// Dropping it ends the program's link.
    control_socket: ControlSocket,
    call: Option<Call>,
    line: Line,
    _line_control_socket: ControlSocket,
    /// The server's end.
    server: OwnedFd,
}

/// A session that retains requests of kind 1, which refer to bulk memory, and echoes all others.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Vec<(Source, Responder)>>>);

impl Service for Keep {
    fn open(&self, _: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(self.clone()))
    }
}

impl Session for Keep {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        if request.kind != 1 {
            return responder.send(request.kind, request.body, request.frame);
        }
        let address = u64::from_le_bytes(request.body[..8].try_into().expect("eight bytes"));
        match responder.source(GlobalAddress::from_bits(address), 4096) {
            Ok(source) => self.0.lock().expect("unpoisoned").push((source, responder)),
            Err(error) => responder.cut(error),
        }
    }
}

fn connected(path: &Path, watcher: &Watcher) -> (Line, ControlSocket) {
    let offered = Features::FORWARDED_REGIONS | Features::REGION_FORWARDING;
    let options = ConnectOptions { offered, ..TestHost::options("") };
    connect(path, &options).expect("a link").start(watcher, "link", Mode::Event).expect("a line")
}

impl Middle {
    fn new() -> Middle {
        let host = TestHost::of(Keep::default(), ListenOptions::default());
        let (program, control_socket) = connected(&host.path, &host.watcher);
        let path = host.dir.path().join("last");
        let door = packet::listen(&path, 0o600, 8).expect("a socket");
        let (server, (line, _line_control_socket)) = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let socket = found("a client", || packet::accept(&door).ok());
                let Some((Message::Hello(hello), _)) = next(&socket) else { panic!("no hello") };
                let agreed =
                    Limits::default().agree(&hello, Epoch::FIRST, Incarnation([3; 16])).expect("agreed");
                let memory = Sealed::create("last", agreed.layout.bytes()).expect("memory");
                say(&socket, &Message::Welcome(agreed.welcome()), &[memory.as_fd()]);
                socket
            });
            let line = connected(&path, &host.watcher);
            (server.join().expect("no panic"), line)
        });
        Middle { host, program, control_socket, call: None, line, _line_control_socket, server }
    }

    fn held(&self) -> MutexGuard<'_, Vec<(Source, Responder)>> {
        self.host.service.0.lock().expect("unpoisoned")
    }

    /// Returns memory that the program refers to and the domain between retains.
    fn source(&mut self) -> Source {
        let span = self.program.out_area().take(4096).expect("room");
        let address = self.program.out_address(&span);
        self.program.out_sink(&span).expect("memory").write_at(0, b"the program's");
        let mut body = [0; 48];
        body[..8].copy_from_slice(&address.bits().to_le_bytes());
        self.call = Some(self.program.call_with(1, body, span.into(), |_| {}));
        found("the middle has it", || self.held().first().map(|held| held.0.clone()))
    }

    /// Returns such memory after the server has registered it.
    fn known(&mut self) -> Source {
        let source = self.source();
        assert!(self.line.remote_buffer(&source).is_none(), "nothing is known yet");
        let Some((Message::ForwardRegion(forwarded), _)) = next(&self.server) else {
            panic!("no forwarded region")
        };
        say(&self.server, &answer(forwarded.domain, true), &[]);
        until("it is known", || self.line.remote_buffer(&source).is_some());
        source
    }

    fn goodbye(&self) {
        say(&self.server, &Message::Goodbye(Goodbye::new(Cause::Leaving, "")), &[]);
        until("the line is lost", || self.line.is_lost());
    }
}

#[test]
fn forwarded_region_exposes_bulk_memory_only() {
    let mut middle = Middle::new();
    let source = middle.source();
    assert!(middle.line.remote_buffer(&source).is_none());
    let (message, memory) = next(&middle.server).expect("a forwarded region");
    let Message::ForwardRegion(forwarded) = message else { panic!("{message:?}") };
    assert_eq!((forwarded.domain, forwarded.user), (Domain::FIRST_OTHER, creds::own_ids().0));
    assert_eq!(forwarded.nameable.end, forwarded.bytes);
    let [memory] = &memory[..] else { panic!("{} descriptors", memory.len()) };
    let region = tombolo_shm::region::sealed::map_peer(memory, forwarded.bytes).expect("sealed");
    // Neither forwarded a second time, nor answered yet.
    assert!(middle.line.remote_buffer(&source).is_none());
    say(&middle.server, &answer(forwarded.domain, true), &[]);
    let remote = found("it is known", || middle.line.remote_buffer(&source));
    let [(address, 4096)] = remote.parts[..] else { panic!("{remote:?}") };
    assert_eq!(address.domain(), forwarded.domain);
    assert!(forwarded.nameable.contains(&address.offset()), "{address:?}");
    let mut bytes = [0; 13];
    let at = usize::try_from(address.offset()).expect("small");
    region.read_at(at, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"the program's");
    // Other memory has no name on the server.
    assert!(middle.line.remote_buffer(&Source::from(vec![0; 4096])).is_none());
    // The program's memory is dropped with it, once it is not in use.
    drop((source, middle.call.take()));
    middle.held().clear();
    middle.control_socket.leave();
    until("the program's link is gone", || middle.host.listener.guests().is_empty());
    drop(remote);
    let withdraw = Message::Withdraw(Withdraw { domain: forwarded.domain });
    assert_eq!(next(&middle.server).map(|(message, _)| message), Some(withdraw));
}

#[test]
fn memory_that_is_not_taken_is_copied_for_good() {
    let mut middle = Middle::new();
    let source = middle.source();
    assert!(middle.line.remote_buffer(&source).is_none());
    let Some((Message::ForwardRegion(forwarded), _)) = next(&middle.server) else {
        panic!("no forwarded region")
    };
    say(&middle.server, &answer(forwarded.domain, false), &[]);
    // An answer for a region that was never forwarded is a protocol error: once it is detected, the previous
    // answer was handled.
    say(&middle.server, &answer(Domain(9), true), &[]);
    until("the violation is noticed", || middle.line.is_lost());
    assert!(
        matches!(middle.line.end(), Some(EndReason::ProtocolError(ProtocolError::Malformed(_)))),
        "{:?}",
        middle.line.end()
    );
    assert!(middle.line.remote_buffer(&source).is_none());
    assert!(works(&middle.program), "nothing was lent");
}

#[test]
fn a_second_answer_is_a_protocol_error() {
    let mut middle = Middle::new();
    let _source = middle.known();
    say(&middle.server, &answer(Domain::FIRST_OTHER, false), &[]);
    until("the violation is noticed", || middle.line.is_lost());
    assert!(matches!(middle.line.end(), Some(EndReason::ProtocolError(_))));
}

/// A server that says goodbye may still be using lent memory, which must not be reused.
#[test]
fn lost_server_ends_link_of_lent_memory() {
    let mut middle = Middle::new();
    let source = middle.known();
    let lent = middle.line.remote_buffer(&source).expect("known");
    middle.goodbye();
    until("the program's link ends", || middle.program.is_lost());
    assert!(matches!(middle.program.end(), Some(EndReason::Failed(_))), "{:?}", middle.program.end());
    drop(lent);
}

#[test]
fn dead_server_does_not_end_link_of_lent_memory() {
    // Nothing is lent when the server disconnects.
    let mut middle = Middle::new();
    let source = middle.known();
    middle.goodbye();
    assert!(works(&middle.program));
    drop(source);
    // Memory is lent, but the server is dead.
    let mut middle = Middle::new();
    let source = middle.known();
    let lent = middle.line.remote_buffer(&source).expect("known");
    middle.server = memfd::create("nothing", 1).expect("a descriptor");
    until("the line is lost", || middle.line.is_lost());
    assert_eq!(middle.line.end(), Some(EndReason::Died));
    assert!(works(&middle.program));
    drop(lent);
}

/// Connects a client played by the test to a real server.
fn stranger(host: &TestHost, offered: Features) -> OwnedFd {
    let layout = TestHost::options("").layout;
    let hello = Hello {
        offered,
        export: "/src".into(),
        label: "stranger".into(),
        ..Hello::new(Incarnation([9; 16]), layout.slots(), layout.back_slots(), layout.bytes())
    };
    let memory = Sealed::create("stranger", layout.bytes()).expect("memory");
    let socket = packet::connect(&host.path).expect("connected");
    say(&socket, &Message::Hello(hello), &[memory.as_fd()]);
    let Some((Message::Welcome(_), _)) = next(&socket) else { panic!("no welcome") };
    socket
}

/// Returns `true` if the server cuts the link with a goodbye.
fn is_cut(socket: &OwnedFd) -> bool {
    let goodbye = next(socket).map(|(message, _)| message);
    let said = matches!(&goodbye, Some(Message::Goodbye(goodbye)) if goodbye.cause == Cause::Cut);
    said && next(socket).is_none()
}

fn forward(domain: u16, bytes: u64) -> Message {
    Message::ForwardRegion(ForwardRegion { domain: Domain(domain), user: 0, bytes, nameable: 0..bytes })
}

#[test]
fn malformed_forwarded_regions_end_their_link_and_no_other() {
    let host = TestHost::new(ListenOptions::default());
    let (line, _control_socket) = host.link();
    let memory = Sealed::create("stranger", 8192).expect("memory");
    let (none, one, two) = (vec![], vec![memory.as_fd()], vec![memory.as_fd(), memory.as_fd()]);
    let agreed = Features::FORWARDED_REGIONS;
    let outside = ForwardRegion { domain: Domain(2), user: 0, bytes: 8192, nameable: 4096..8193 };
    let backwards = ForwardRegion { nameable: std::ops::Range { start: 4096, end: 0 }, ..outside.clone() };
    let unknown = Message::Withdraw(Withdraw { domain: Domain(2) });
    for (what, offered, message, descriptors) in [
        ("not agreed on", Features::REGION_FORWARDING, forward(2, 8192), &one),
        ("without memory", agreed, forward(2, 8192), &none),
        ("with too much", agreed, forward(2, 8192), &two),
        ("names what is not there", agreed, Message::ForwardRegion(outside), &one),
        ("ends before it begins", agreed, Message::ForwardRegion(backwards), &one),
        ("withdraws nothing", agreed, unknown, &none),
        ("answers nothing", agreed, answer(Domain(2), true), &none),
    ] {
        let socket = stranger(&host, offered);
        say(&socket, &message, descriptors);
        assert!(is_cut(&socket), "{what}");
        until("it is gone", || host.listener.guests().len() == 1);
        assert!(works(&line), "{what}");
    }
    // A number is used once, even if it was withdrawn.
    let socket = stranger(&host, agreed);
    say(&socket, &forward(7, 8192), &one);
    assert_eq!(next(&socket).map(|(message, _)| message), Some(answer(Domain(7), true)));
    say(&socket, &Message::Withdraw(Withdraw { domain: Domain(7) }), &[]);
    say(&socket, &forward(7, 8192), &one);
    assert!(is_cut(&socket));
    assert!(works(&line));
}

#[test]
fn invalid_or_excessive_forwarded_memory_is_rejected() {
    let limits = Limits { bytes: 8 << 20, ..Limits::default() };
    let host = TestHost::new(ListenOptions { limits, ..ListenOptions::default() });
    let socket = stranger(&host, Features::FORWARDED_REGIONS);
    let sealed = Sealed::create("stranger", 8192).expect("memory");
    let large = Sealed::create("stranger", 12 << 20).expect("memory");
    let plain = memfd::create("stranger", 8192).expect("memory");
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let mut domain = 1;
    let mut taken = |bytes, memory: BorrowedFd<'_>| {
        domain += 1;
        say(&socket, &forward(domain, bytes), &[memory]);
        match next(&socket) {
            Some((Message::RegionForwarded(answer), _)) if answer.domain == Domain(domain) => answer.is_known,
            other => panic!("{other:?}"),
        }
    };
    assert!(!taken(8192, plain.as_fd()), "it could be truncated");
    assert!(!taken(8192, reader.as_fd()), "no memory at all");
    assert!(!taken(8193, sealed.as_fd()), "shorter than declared");
    assert!(!taken(0, sealed.as_fd()), "nothing");
    assert!(!taken(u64::MAX, sealed.as_fd()), "more than there is");
    assert!(taken(12 << 20, large.as_fd()));
    assert!(!taken(12 << 20, large.as_fd()), "more than twice what a link may have");
    for _ in 1..tombolo_shm::link::FORWARDED_REGIONS_MAX {
        assert!(taken(8192, sealed.as_fd()));
    }
    assert!(!taken(8192, sealed.as_fd()), "too many");
    let (line, _control_socket) = host.link();
    assert!(works(&line));
    assert_eq!(host.listener.guests().len(), 2, "no link was cut");
}

#[test]
fn a_peer_that_reads_no_answers_is_cut() {
    let host = TestHost::new(ListenOptions::default());
    let (line, _control_socket) = host.link();
    let socket = stranger(&host, Features::FORWARDED_REGIONS);
    let plain = memfd::create("stranger", 8192).expect("memory");
    let mut domain = 2;
    until("the link ends", || {
        match packet::send(&socket, &forward(domain, 8192).encode(), &[plain.as_fd()]) {
            Ok(()) => domain += 1,
            Err(Errno::AGAIN) => {}
            // The listener closed it, with or without unread packets (unix(7)).
            Err(error) => {
                assert!(matches!(error, Errno::PIPE | Errno::CONNRESET), "{error}");
                return true;
            }
        }
        false
    });
    assert!(works(&line));
}
