//! Hostile peers at the socket, which must not affect other clients.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tombolo_host_links::listen::ListenOptions;
use tombolo_shm::link::{
    Cause, Goodbye, Hello, Incarnation, MESSAGE_BYTES_MAX, Message, RefusalCode, Refused,
};
use tombolo_shm::region::sealed::Sealed;

use tombolo_sys::{Errno, memfd, packet};

use crate::listener::common::{TestHost, found, until, works};

const BYTES: u64 = 1 << 20;

fn hello() -> Hello {
    Hello {
        export: "/src".into(),
        label: "stranger".into(),
        ..Hello::new(Incarnation([9; 16]), 64, 8, BYTES)
    }
}

/// Returns the server's answer; `None` if it just closes the socket.
fn answer(socket: &OwnedFd) -> Option<Refused> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let len = found("an answer", || match packet::receive(socket, &mut buffer) {
        Ok(packet) => Some(packet.len),
        Err(Errno::AGAIN | Errno::CONNRESET) => None,
        Err(error) => panic!("{error}"),
    });
    match Message::decode(&buffer[..len]) {
        Ok(Message::Refused(refused)) => Some(refused),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

/// Connects once the server has accepted some of the earlier connections.
fn knock(host: &TestHost) -> OwnedFd {
    found("a place in the queue", || packet::connect(&host.path).ok())
}

fn refused(host: &TestHost, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Option<RefusalCode> {
    let socket = knock(host);
    packet::send(&socket, bytes, descriptors).expect("send");
    answer(&socket).map(|refused| refused.code)
}

#[test]
fn invalid_client_memory_is_refused() {
    let host = TestHost::new(ListenOptions::default());
    let (line, _control_socket) = host.link();
    let bytes = Message::Hello(hello()).encode();
    let unsealed = memfd::create("stranger", BYTES).expect("memory");
    assert_eq!(refused(&host, &bytes, &[unsealed.as_fd()]), Some(RefusalCode::Memory));
    let small = Sealed::create("stranger", BYTES - 4096).expect("memory");
    assert_eq!(refused(&host, &bytes, &[small.as_fd()]), Some(RefusalCode::Memory));
    let file = std::fs::File::open("/proc/self/status").expect("a file");
    assert_eq!(refused(&host, &bytes, &[file.as_fd()]), Some(RefusalCode::Memory));
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    assert_eq!(refused(&host, &bytes, &[reader.as_fd()]), Some(RefusalCode::Memory));
    assert!(works(&line));
    assert_eq!(host.listener.guests().len(), 1);
}

#[test]
fn hellos_that_are_none_are_refused() {
    let host = TestHost::new(ListenOptions::default());
    let (line, _control_socket) = host.link();
    let memory = Sealed::create("stranger", BYTES).expect("memory");
    let one = [memory.as_fd()];
    let sound = Message::Hello(hello()).encode();
    let malformed = Some(RefusalCode::Malformed);
    for len in [1, 15, 16, 87, sound.len() - 1] {
        assert_eq!(refused(&host, &sound[..len], &one), malformed, "{len} bytes");
    }
    assert_eq!(refused(&host, &[sound.as_slice(), &[0]].concat(), &one), malformed);
    assert_eq!(refused(&host, &[sound.as_slice(), &[0; 4096]].concat(), &one), malformed);
    assert_eq!(refused(&host, &sound, &[]), malformed);
    assert_eq!(refused(&host, &sound, &[memory.as_fd(), memory.as_fd()]), malformed);
    assert_eq!(refused(&host, &sound, &[memory.as_fd(); 4]), malformed);
    let goodbye = Message::Goodbye(Goodbye::new(Cause::Leaving, "")).encode();
    assert_eq!(refused(&host, &goodbye, &one), malformed);
    assert_eq!(refused(&host, b"GET / HTTP/1.1\r\n\r\n", &one), malformed);
    assert!(works(&line));
    assert_eq!(host.listener.guests().len(), 1);
}

#[test]
fn a_peer_without_a_hello_is_refused() {
    let options = ListenOptions { hello_timeout: Duration::from_millis(50), ..ListenOptions::default() };
    let host = TestHost::new(options);
    let silent = packet::connect(&host.path).expect("connect");
    let refused = answer(&silent).expect("a reason");
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (RefusalCode::Malformed, "no hello received in time")
    );
}

#[test]
fn thousand_silent_peers_do_not_block_clients() {
    let options = ListenOptions {
        hello_timeout: Duration::from_millis(200),
        pending_max: 16,
        ..ListenOptions::default()
    };
    let host = TestHost::new(options);
    let (line, _control_socket) = host.link();
    tombolo_sys::process::raise_open_file_limit().expect("descriptors");
    let crowd: Vec<_> = (0..1000).map(|_| knock(&host)).collect();
    assert!(works(&line));
    // The few pending ones use up their user's permits, and all others are refused at once.
    let codes: Vec<_> = crowd.iter().filter_map(answer).map(|refused| refused.code).collect();
    assert!(codes.iter().filter(|code| **code == RefusalCode::TooMany).count() > 900);
    assert!(works(&line));
    until("a link for a client with a hello", || host.try_link("/src").is_ok());
}

#[test]
fn a_second_message_ends_the_link() {
    let host = TestHost::new(ListenOptions::default());
    let (line, _control_socket) = host.link();
    let memory = Sealed::create("stranger", BYTES).expect("memory");
    let socket = packet::connect(&host.path).expect("connect");
    let bytes = Message::Hello(hello()).encode();
    packet::send(&socket, &bytes, &[memory.as_fd()]).expect("send");
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    until("a welcome", || packet::receive(&socket, &mut buffer).is_ok());
    packet::send(&socket, &bytes, &[memory.as_fd()]).expect("send");
    host.wait_closed();
    assert!(works(&line));
}
