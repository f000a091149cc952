//! Many clients, and clients that do not behave: others do not notice, and memory stays bounded.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::SocketAddr;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_nfs_tests::client::{Answer, Caller, Message, PATIENCE, Stream, closes, fragment, fresh_xid};
use tombolo_nfs_tests::fixture::Fixture;
use tombolo_nfs_tests::test_server::Plan;
use tombolo_wire_nfs3::args::ReadArgs;
use tombolo_wire_nfs3::{Call, PROGRAM, Sattr3, VERSION};

const MEBIBYTE: u32 = 1 << 20;

fn getattr(fixture: &Fixture) -> Message {
    fixture.nfs.message(&Call::Getattr(fixture.root.as_handle()), b"")
}

#[track_caller]
fn assert_served(stream: &mut Stream, fixture: &Fixture) {
    stream.send(&getattr(fixture).to_bytes()).expect("sent");
    let reply = stream.receive().expect("a reply").expect("an open connection");
    assert_eq!(Answer::new(reply).status(), Ok(()));
}

/// Waits for something that the server notices by itself.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_thousand_connections_are_served() {
    let fixture = Fixture::in_memory();
    let mut streams: Vec<_> = (0..2000).map(|_| fixture.server.stream()).collect();
    for stream in &mut streams {
        assert_served(stream, &fixture);
    }
    // All at once.
    for stream in &mut streams {
        stream.send(&getattr(&fixture).to_bytes()).expect("sent");
    }
    for stream in &mut streams {
        let reply = stream.receive().expect("a reply").expect("an open connection");
        assert_eq!(Answer::new(reply).status(), Ok(()));
    }
    assert!(fixture.server.counts().connections >= 2000);
    assert!(fixture.server.counts().lent_bytes < 64 << 20, "{:?}", fixture.server.counts());
    drop(streams);
    eventually("connections that ended are forgotten", || fixture.server.counts().connections <= 1);
}

/// As many as the limits of two processes allow: the server is one of its own, this test run again.
#[test]
fn ten_thousand_connections_are_served() {
    const CONNECTIONS: usize = 10_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit < CONNECTIONS as u64 + 200) {
        eprintln!("skipped: 10,000 connections need as many descriptors, and the limit is {limit:?}");
        return;
    }
    let mut server = Child::start();
    let place_of = server.address();
    let mut streams: Vec<_> =
        (0..CONNECTIONS).map(|_| Stream::connect(place_of).expect("one more connection")).collect();
    let null = Message::new(fresh_xid(), PROGRAM, VERSION, 0, &Caller::ROOT).to_bytes();
    for stream in &mut streams {
        stream.send(&null).expect("sent");
    }
    for stream in &mut streams {
        assert!(stream.receive().expect("a reply").is_some());
    }
    let mebibytes = server.resident_kib() / 1024;
    assert!(mebibytes < 256, "{mebibytes} MiB for connections that do nothing");
}

/// Not a test: the server of the one above, for as long as its standard input is open.
#[test]
#[ignore = "a part of another test"]
#[expect(clippy::print_stdout, reason = "how the other test is told")]
fn serve_until_told() {
    let fixture = Fixture::in_memory();
    println!("\nserving {}", fixture.server.address());
    drop(std::io::stdin().read_line(&mut String::new()));
}

/// A server in another process.
struct Child {
    process: std::process::Child,
    output: BufReader<ChildStdout>,
}

impl Child {
    fn start() -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--exact", "server::crowds::serve_until_told", "--ignored", "--nocapture"]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.expect("this program again");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, output }
    }

    fn address(&mut self) -> SocketAddr {
        let mut told = self.output.by_ref().lines().map(|line| line.expect("a line"));
        let address = told.find_map(|line| Some(line.strip_prefix("serving ")?.to_owned()));
        address.expect("an address").parse().expect("an address")
    }

    fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(path).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its size");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}

#[test]
fn connections_beyond_the_limit_are_refused_and_the_others_served() {
    let mut plan = Plan::over(Arc::new(Memory::default()));
    plan.rpc.connections_max = 20;
    let fixture = Fixture::new(plan, None);
    let mut streams: Vec<_> = (0..9).map(|_| fixture.server.stream()).collect();
    for stream in &mut streams {
        assert_served(stream, &fixture);
    }
    for _ in 0..5 {
        let mut more = fixture.server.stream();
        drop(more.send(&getattr(&fixture).to_bytes()));
        assert_eq!(more.receive().expect("the end"), None);
    }
    for stream in &mut streams {
        assert_served(stream, &fixture);
    }
    drop(streams.pop());
    eventually("there is room again", || {
        let mut stream = fixture.server.stream();
        let sent = stream.send(&getattr(&fixture).to_bytes());
        sent.is_ok() && stream.receive().expect("a reply or the end").is_some()
    });
}

/// A client that asks for much and takes nothing.
#[test]
fn a_client_that_stops_reading_waits_alone() {
    let fixture = Fixture::in_memory();
    let file = fixture.file("file", b"");
    let size = Sattr3 { size: Some(MEBIBYTE.into()), ..Sattr3::default() };
    tombolo_nfs_tests::client::Expect::done(fixture.nfs.setattr(&file, size, None));
    let args = ReadArgs { file: file.as_handle(), offset: 0, count: MEBIBYTE };
    let read = || fixture.nfs.message(&Call::Read(args), b"");
    let mut deaf = fixture.server.stream();
    deaf.socket().set_nonblocking(true).expect("does not wait");
    let mut asked = 0;
    for _ in 0..2000 {
        match deaf.send_bytes(&fragment(&read().to_bytes(), true)) {
            Ok(()) => asked += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(asked > 100, "{asked}");
    let mut other = fixture.server.stream();
    for _ in 0..100 {
        assert_served(&mut other, &fixture);
    }
    // Two gibibytes of replies are pending.
    assert!(fixture.server.counts().lent_bytes < 128 << 20, "{:?}", fixture.server.counts());
    // It comes to its senses: nothing of what it asked is lost.
    deaf.socket().set_nonblocking(false).expect("waits again");
    for _ in 0..50 {
        let reply = deaf.receive().expect("a reply").expect("an open connection");
        assert_eq!(Answer::new(reply).status(), Ok(()));
    }
}

#[test]
fn stalled_receivers_do_not_slow_others_at_their_address() {
    let fixture = Fixture::in_memory();
    let file = fixture.file("file", b"");
    let size = Sattr3 { size: Some(MEBIBYTE.into()), ..Sattr3::default() };
    tombolo_nfs_tests::client::Expect::done(fixture.nfs.setattr(&file, size, None));
    let read =
        |count| fixture.nfs.message(&Call::Read(ReadArgs { file: file.as_handle(), offset: 0, count }), b"");
    let asked: Vec<u8> = (0..300).flat_map(|_| fragment(&read(MEBIBYTE).to_bytes(), true)).collect();
    let mut deaf: Vec<_> = (0..8).map(|_| fixture.server.stream()).collect();
    for stream in &mut deaf {
        stream.send_bytes(&asked).expect("sent");
    }
    let mut honest = fixture.server.stream();
    for message in [getattr(&fixture), read(4096), read(MEBIBYTE)] {
        let begun = Instant::now();
        for _ in 0..10 {
            honest.send(&message.to_bytes()).expect("sent");
            let reply = honest.receive().expect("a reply").expect("an open connection");
            assert_eq!(Answer::new(reply).status(), Ok(()));
        }
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
    assert!(fixture.server.counts().lent_bytes <= 32 << 20, "{:?}", fixture.server.counts());
}

#[test]
fn a_client_that_stops_receiving_is_disconnected() {
    let mut plan = Plan::over(Arc::new(Memory::default()));
    plan.rpc.stuck_after = Duration::from_millis(200);
    let fixture = Fixture::new(plan, None);
    let file = fixture.file("file", b"");
    let size = Sattr3 { size: Some(MEBIBYTE.into()), ..Sattr3::default() };
    tombolo_nfs_tests::client::Expect::done(fixture.nfs.setattr(&file, size, None));
    let args = ReadArgs { file: file.as_handle(), offset: 0, count: MEBIBYTE };
    let mut deaf = fixture.server.stream();
    for _ in 0..50 {
        let message = fixture.nfs.message(&Call::Read(args), b"");
        match deaf.send(&message.to_bytes()) {
            Ok(()) => {}
            Err(error) if closes(error.kind()) => break,
            Err(error) => panic!("{error}"),
        }
    }
    eventually("it is cut off", || fixture.server.counts().closed_stuck == 1);
    eventually("its buffers are free", || fixture.server.counts().lent_bytes < 4 << 20);
    assert_served(&mut fixture.server.stream(), &fixture);
}
