//! Connections reset while they wait for memory leave nothing behind. Runs in a process of its own, as it
//! counts descriptors.

#[path = "it/server/common.rs"]
#[allow(dead_code, reason = "what the tests of the server share")]
mod common;

use std::fs;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tombolo_host_rpc::server::Options;
use tombolo_host_runtime::buffer_pool::BufferLimits;

use common::{Client, HOLD, TestHost, data_call, eventually, numbered};

const MEBIBYTE: usize = 1 << 20;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

/// Closes the connection with a reset (socket(7), SO_LINGER).
#[allow(clippy::needless_pass_by_value, reason = "it is closed")]
fn reset(client: Client) {
    set_socket_linger(&client.0, Some(Duration::ZERO)).expect("linger");
}

#[test]
fn reset_of_waiting_connection_leaks_nothing() {
    let buffers = BufferLimits { share_bytes: 4 << 20, ..BufferLimits::default() };
    let host = TestHost::new(Options { buffers, ..Options::default() });
    // Calls that occupy all memory of the address while they are held.
    let mut holders: Vec<_> = (0..3).map(|_| host.connect()).collect();
    holders.iter_mut().for_each(|holder| holder.send(&numbered(HOLD, 1, MEBIBYTE)));
    eventually("they are held", || host.player.held() == 3);
    let before = descriptors();
    for round in 0..100 {
        let received = host.counts().received_bytes;
        let mut waiting = host.connect();
        waiting.send(&data_call(1, MEBIBYTE));
        host.until("the call has come", |counts| counts.received_bytes > received);
        assert_eq!(host.counts().connections, 4, "round {round}: there is no room for its reply");
        reset(waiting);
        host.until("it is closed", |counts| counts.connections == 3);
    }
    let after = descriptors();
    assert!(after <= before, "{} descriptors more after 100 resets", after - before);
    // A pending call keeps the descriptor, which counts.
    holders.drain(..).for_each(reset);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((host.counts().connections, descriptors()), (3, before - 3));
    while host.player.release(false) {}
    host.until("all are closed", |counts| counts.connections == 0 && counts.lent_bytes == 0);
    assert!(descriptors() <= before - 6);
}
