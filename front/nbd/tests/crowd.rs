//! Crowd of connections that stop at arbitrary points. A separate program, because it counts the descriptors
//! and threads of the whole process.

#[path = "it/common/mod.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Client, Disk, NONE, PAGE};
use tombolo_front_nbd::{Exports, Listeners, Options, Server};
use tombolo_sys::process;
use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the number of descriptors and threads of this process.
fn holds() -> (usize, usize) {
    let entries = |directory| fs::read_dir(directory).unwrap().count();
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Proceeds to a point chosen by `number`, and stops there.
fn misbehave(client: &mut Client, number: usize) {
    let mut option = Vec::new();
    encode_option(&mut option, OptionCode::GO, "disk");
    if number % 8 > 1 {
        client.send(&(ClientFlags::FIXED_NEWSTYLE | ClientFlags::NO_ZEROES).bits().to_be_bytes());
    }
    match number % 8 {
        0 => {}
        1 => client.send(&[0, 0]),
        2 => client.send(&option[..10]),
        3 => client.send(&[7; 64]),
        _ => {
            client.agree(OptionCode::GO);
            match number % 8 {
                4 => client.send(&[0x25, 0x60]),
                5 => client.request(1, Command::WRITE, NONE, (0, PAGE as u64), &[9; 100]),
                6 => client.request(1, Command::READ, NONE, (0, PAGE as u64), &[]),
                _ => client.request(1, Command::READ, NONE, (1 << 40, 512), &[]),
            }
        }
    }
}

#[test]
fn misbehaving_crowd_is_bounded_and_leaves_nothing() {
    process::raise_open_file_limit().unwrap();
    let crowd = if std::env::var_os("TOMBOLO_LONG").is_some() { 10_000 } else { 500 };
    let (dir, disk) = (tempfile::tempdir().unwrap(), Arc::new(Disk::new(4)));
    let (mut listeners, mut exports) = (Listeners::default(), Exports::default());
    let socket = dir.path().join("s");
    listeners.add_unix(&socket, 0o600).unwrap();
    let address = listeners.add_tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    exports.add("disk", disk.clone());
    let soon = Duration::from_secs(2);
    let options = Options { handshake_within: soon, stuck_after: soon, ..Options::default() };
    let connections_max = options.connections_max;
    let server = Server::start(listeners, exports, options).unwrap();

    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut other = Client { stream, style: ReplyStyle::Simple };
    other.greet();
    other.agree(OptionCode::GO);
    other.request(1, Command::WRITE, NONE, (0, PAGE as u64), &[5; PAGE]);
    assert_eq!(other.reply(0).1, Status::Ok);
    let mut reads = 0;
    let mut read = || {
        reads += 1;
        other.request(reads, Command::READ, NONE, (0, PAGE as u64), &[]);
        assert_eq!(other.reply(PAGE), (reads, Status::Ok, vec![5; PAGE]));
    };
    read();
    let before = holds();

    let mut members = Vec::new();
    for number in 0..crowd {
        let mut member = Client::connected(&socket);
        let is_let_in = std::io::Read::read_exact(&mut member.stream, &mut [0; 18]).is_ok();
        if is_let_in {
            misbehave(&mut member, number);
        }
        members.push(member);
        // One process among many clients: half of all.
        assert!(server.connections() <= connections_max / 2 + 1, "{} connections", server.connections());
        if number % 10 == 0 {
            read();
        }
    }
    // Ended threads may not be gone yet.
    let threads = holds().1 - before.1;
    assert!(threads <= connections_max, "{threads} threads more");
    // Connections idle between requests may stay. The others are disconnected, even if they do not leave.
    let waits = |number: &usize| number % 8 >= 6;
    for (_, member) in members.iter_mut().enumerate().filter(|(number, _)| !waits(number)) {
        let _ = std::io::Read::read_to_end(&mut member.stream, &mut Vec::new());
    }
    drop(members);
    let until = Instant::now() + PATIENCE;
    while holds() != before {
        assert!(Instant::now() < until, "{before:?} descriptors and threads before, and now {:?}", holds());
        std::thread::sleep(Duration::from_millis(5));
    }
    read();
    assert_eq!(server.connections(), 1);
    assert_eq!(disk.bytes()[..PAGE], [5; PAGE], "half a write is none");
}
