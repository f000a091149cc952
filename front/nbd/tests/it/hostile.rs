//! Malicious clients, which harm only themselves.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_front_nbd::Options;
use tombolo_test_support::until;
use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::*;

use crate::common::{Client, Disk, NONE, Served};

fn works(served: &Served) {
    let mut client = served.client(ReplyStyle::Structured);
    assert_eq!(client.ask(Command::READ, NONE, (0, 512), &[]).0, Status::Ok);
}

fn impatient() -> Options {
    let soon = Duration::from_secs(2);
    Options { handshake_within: soon, stuck_after: soon, ..Options::default() }
}

#[test]
fn nbd_protocol_violation_ends_its_connection() {
    let served = Served::new(Disk::new(4));
    let mut nonsense = Client::greeted(&served.socket());
    nonsense.send(&[7; 64]);
    assert!(nonsense.is_closed());
    let mut long_option = Client::greeted(&served.socket());
    let mut option = Vec::new();
    encode_option(&mut option, OptionCode::GO, "disk");
    option[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    long_option.send(&option);
    assert!(long_option.is_closed());
    let mut unknown_name = Client::greeted(&served.socket());
    let mut option = Vec::new();
    encode_option(&mut option, OptionCode::EXPORT_NAME, "other");
    unknown_name.send(&option);
    assert!(unknown_name.is_closed());
    let mut transmission = served.client(ReplyStyle::Simple);
    transmission.send(&[7; 28]);
    assert!(transmission.is_closed());
    let mut four_gibibytes = served.client(ReplyStyle::Extended);
    four_gibibytes.request(1, Command::WRITE, NONE, (0, 4 << 30), &[]);
    assert!(four_gibibytes.is_closed());
    works(&served);
}

#[test]
fn client_stopping_mid_message_is_disconnected() {
    let served = Served::with(Disk::new(4), impatient());
    let mut in_handshake = Client::greeted(&served.socket());
    let mut in_request = served.client(ReplyStyle::Simple);
    in_request.send(&[0x25, 0x60]);
    let mut in_data = served.client(ReplyStyle::Simple);
    in_data.request(1, Command::WRITE, NONE, (0, 4096), &[1; 100]);
    assert!(in_handshake.is_closed());
    assert!(in_request.is_closed());
    in_data.stream.read_timeout().unwrap();
    // The request fails first, then the connection ends.
    let _ = std::io::Read::read_to_end(&mut in_data.stream, &mut Vec::new());
    works(&served);
    assert_eq!(served.disk.bytes()[0], 0, "half a write is none");
}

#[test]
fn a_client_that_is_silent_between_requests_stays() {
    let served = Served::with(Disk::new(4), impatient());
    let mut client = served.client(ReplyStyle::Simple);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(client.ask(Command::READ, NONE, (0, 512), &[]).0, Status::Ok);
}

#[test]
fn client_not_receiving_replies_is_disconnected() {
    let served = Served::with(Disk::new(1024), impatient());
    let mut greedy = served.client(ReplyStyle::Simple);
    greedy.stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut request = Vec::new();
    let read = Request { flags: NONE, command: Command::READ, cookie: 1, offset: 0, len_bytes: 1 << 20 };
    read.encode(HeaderStyle::Compact, &mut request);
    // The client is disconnected while it sends requests, or before it has sent all.
    for _ in 0..10_000 {
        if greedy.stream.write_all(&request).is_err() {
            break;
        }
    }
    works(&served);
    until("no connection is left", || served.server.as_ref().unwrap().connections() == 0);
}

#[test]
fn panicking_disk_fails_one_request_or_connection() {
    let served = Served::new(Disk::new(4));
    let mut client = served.client(ReplyStyle::Simple);
    served.disk.panics.store(true, Ordering::SeqCst);
    client.request(1, Command::READ, NONE, (0, 512), &[]);
    let _ = std::io::Read::read_to_end(&mut client.stream, &mut Vec::new());
    served.disk.panics.store(false, Ordering::SeqCst);
    works(&served);
}

#[test]
fn one_client_has_at_most_half_the_connections() {
    let served = Served::with(Disk::new(4), Options { connections_max: 16, ..Options::default() });
    let mut taken = Vec::new();
    let mut refused = 0;
    for _ in 0..1000 {
        let mut client = Client::connected(&served.socket());
        let mut greeting = [0; 18];
        match std::io::Read::read_exact(&mut client.stream, &mut greeting) {
            Ok(()) => taken.push(client),
            Err(_) => refused += 1,
        }
    }
    assert_eq!((taken.len(), refused), (8, 992));
    // Another process counts as another client.
    let info = std::process::Command::new("nbdinfo").arg("--size").arg(served.url()).output().unwrap();
    assert!(info.status.success(), "{}", String::from_utf8_lossy(&info.stderr));
    drop(taken);
}

#[test]
fn stopping_server_answers_received_requests() {
    let mut served = Served::new(Disk::new(4));
    let mut client = served.client(ReplyStyle::Simple);
    served.disk.open_gate(false);
    client.request(1, Command::READ, NONE, (0, 512), &[]);
    client.request(2, Command::WRITE, NONE, (0, 512), &[1; 512]);
    assert_eq!(client.reply(0).0, 2, "both are received");
    let server = served.server.take();
    let stopping = std::thread::spawn(move || drop(server));
    std::thread::sleep(Duration::from_millis(50));
    served.disk.open_gate(true);
    assert_eq!(client.reply(512).0, 1);
    assert!(client.is_closed());
    stopping.join().unwrap();
    assert!(!served.socket().exists());
}
