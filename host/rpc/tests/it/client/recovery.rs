//! Servers that go away, come back, or do not answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_host_rpc::client::{CallError, Options, Recovery};

use super::common::*;

#[test]
fn calls_go_on_when_the_server_starts_again() {
    let host = TestHost::default();
    let address = host.server.tcp_addresses()[0];
    let client = host.client(Options::default());
    let held: Vec<_> = (0..10).map(|index| echo(&client, HOLD, &pattern(index, 100))).collect();
    eventually("all are held", || host.player.held.held() == 10);
    drop(host);
    let host = TestHost::at(address);
    eventually("all are held again", || host.player.held.held() == 10);
    (0..10).for_each(|_| assert!(host.player.held.release(false)));
    for (index, pending) in (0..).zip(held) {
        assert_eq!(wait(pending).expect("an answer").results, pattern(index, 100));
    }
    assert_eq!(host.player.begun.load(Ordering::SeqCst), 10, "each was sent once more");
    let counts = client.counts();
    assert_eq!((counts.reconnects, counts.retransmissions), (1, 10));
}

#[test]
fn a_soft_call_to_an_unused_port_fails_soon_and_says_why() {
    let unused = {
        let host = TestHost::default();
        host.target(tombolo_host_rpc::client::Transport::Tcp)
    };
    let options = Options { recovery: Recovery::Soft, label: "there:/export".into(), ..Options::default() };
    let client = tombolo_host_rpc::client::RpcClient::start(unused, options).expect("start");
    let start = std::time::Instant::now();
    let error = wait(echo(&client, ECHO, b"")).expect_err("no server is there");
    assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(error.to_string(), "there:/export: cannot connect: Connection refused (os error 111)");
}
