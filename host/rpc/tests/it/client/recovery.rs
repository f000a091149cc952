//! Servers that disconnect, return, or do not answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_host_rpc::client::{CallError, Options, Recovery, Transport};
use tombolo_host_rpc::server::Options as ServerOptions;

use super::common::*;
use super::script::Script;

#[test]
fn calls_go_on_when_the_server_starts_again() {
    let host = TestHost::default();
    let address = host.server.tcp_addresses()[0];
    let client = host.client(Options::default());
    let held: Vec<_> = (0..10).map(|index| echo(&client, HOLD, &pattern(index, 100))).collect();
    eventually("all are held", || host.player.held.held() == 10);
    drop(host);
    let host = TestHost::at(address, ServerOptions::default());
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
fn soft_call_to_unused_port_fails_with_reason() {
    let unused = TestHost::default().target(Transport::Tcp);
    let options = Options { recovery: Recovery::Soft, label: "there:/export".into(), ..Options::default() };
    let client = tombolo_host_rpc::client::RpcClient::start(unused, options).expect("start");
    let start = std::time::Instant::now();
    let error = wait(echo(&client, ECHO, b"")).expect_err("no server is there");
    assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(error.to_string(), "there:/export: cannot connect: Connection refused (os error 111)");
}

#[test]
fn calls_resume_soon_after_network_outage() {
    let (mut script, line, first) = Script::connected(Options::default());
    assert_eq!(line.calls().len(), 1);
    script.set_reachable(false);
    script.pass(Duration::from_secs(8));
    assert_eq!(script.line_count(), 1, "nothing is gained before the line is back");
    script.set_reachable(true);
    let next = script.reconnected(Duration::from_millis(1500));
    assert_eq!(script.line_count(), 2);
    assert!(line.is_shut_down());
    let calls = next.calls();
    assert_eq!(calls.len(), 1, "the same once more");
    script.bring(&next, &calls[0].reply(b"late"));
    assert_eq!(wait(first).expect("an answer").results, b"late");
}

#[test]
fn connect_attempt_restarts_after_network_outage() {
    let mut script = Script::new(Transport::Tcp, Options::default());
    let first = echo(&script.client, ECHO, b"first");
    script.set_reachable(false);
    script.pass(Duration::from_secs(8));
    assert_eq!(script.line_count(), 1);
    script.set_reachable(true);
    let line = script.reconnected(Duration::from_millis(1500));
    assert_eq!(script.line_count(), 2);
    script.bring(&line, &line.calls()[0].reply(b"here"));
    assert_eq!(wait(first).expect("an answer").results, b"here");
}

#[test]
fn a_server_that_takes_its_time_keeps_its_connection() {
    let (mut script, line, first) = Script::connected(Options::default());
    let calls = line.calls();
    script.set_reachable(true);
    script.pass(Duration::from_secs(50));
    assert_eq!(script.line_count(), 1);
    script.bring(&line, &calls[0].reply(b"late"));
    assert_eq!(wait(first).expect("an answer").results, b"late");
}
