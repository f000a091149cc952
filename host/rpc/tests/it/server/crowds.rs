//! Many concurrent connections. (`memory` measures the memory of idle ones in a process of its own.)

use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use tombolo_sys::process;

use crate::server::common::{Client, HOLD, TestHost, eventually, framed};
use std::io::Write;

/// Serializes the tests: descriptors are limited.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of connections to open, at most `wanted`: both ends are descriptors of this process.
fn affordable(wanted: usize) -> usize {
    process::raise_open_file_limit().expect("raise the limit");
    let limit = process::open_file_limit().soft;
    let possible = usize::try_from(limit.saturating_sub(500)).unwrap_or(usize::MAX) / 2;
    if possible < wanted {
        println!("only {possible} connections: this process may open {limit} files");
    }
    possible.min(wanted)
}

fn crowd(host: &TestHost, count: usize) -> Vec<Client> {
    let address = host.server.tcp_addresses()[0];
    let crowd: Vec<_> = (0..count).map(|_| Client(TcpStream::connect(address).expect("connect"))).collect();
    host.until("all are there", |counts| counts.connections == count as u64);
    crowd
}

#[test]
fn a_crowd_with_a_half_record_each_is_bounded() {
    let _turn = turn();
    let count = affordable(200);
    let host = TestHost::default();
    let mut crowd = crowd(&host, count);
    let stream = framed(&vec![b'e'; (1 << 20) + 4], (1 << 20) + 4);
    crowd.iter_mut().for_each(|client| client.0.write_all(&stream[..1000]).expect("send"));
    eventually("most of a share is lent", || host.counts().lent_bytes >= 56 << 20);
    thread::sleep(std::time::Duration::from_millis(100));
    let lent = host.counts().lent_bytes;
    assert!(lent <= 66 << 20, "a share: {lent}");
    // Each is served nevertheless, as calls that have memory proceed.
    thread::scope(|scope| {
        for client in &mut crowd {
            scope.spawn(|| {
                client.0.write_all(&stream[1000..]).expect("send");
                assert!(client.receive().len() > 1 << 20);
            });
        }
    });
}

#[test]
fn held_calls_of_many_connections_are_bounded() {
    let _turn = turn();
    let host = TestHost::default();
    let mut crowd = crowd(&host, affordable(2_000));
    crowd.iter_mut().for_each(|client| client.send(&[HOLD, 1]));
    eventually("the limit is reached", || host.player.held() == 1024);
    drop(crowd);
    while host.counts().connections > 0 {
        host.player.release(false);
    }
    while host.player.release(false) {}
    host.until("nothing is left", |counts| counts.lent_bytes == 0);
    assert_eq!(host.connect().ask(b"e"), b"e");
}
