//! Clients of one address, some of which receive no replies: they delay only themselves.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_rpc::server::Options;

use crate::server::common::{Client, DATA, ECHO, HOLD, TestHost, data_call, eventually, framed, numbered};

const MEBIBYTE: usize = 1 << 20;

/// Returns a connection that requested this much and received nothing.
fn greedy(host: &TestHost, stream: &[u8]) -> Client {
    let mut client = host.connect();
    client.0.set_write_timeout(Some(Duration::from_millis(100))).expect("timeout");
    // At some point the server stops reading.
    let _ = client.0.write_all(stream);
    client
}

fn crowd(host: &TestHost, count: usize, stream: &[u8]) -> Vec<Client> {
    let crowd = (0..count).map(|_| greedy(host, stream)).collect();
    // Until the server has finished its work for them.
    let mut before = host.counts();
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = host.counts();
        if now.calls == before.calls && now.sent_bytes == before.sent_bytes {
            return crowd;
        }
        before = now;
    }
}

/// Far less than the time after which the server closes a stalled receiver, and far more than a call takes on
/// a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Returns the longest duration of some calls.
fn slowest(client: &mut Client, call: &[u8]) -> Duration {
    let times = (0..10).map(|_| {
        let begun = Instant::now();
        client.ask(call);
        begun.elapsed()
    });
    times.max().unwrap_or_default()
}

#[test]
fn unsent_long_replies_do_not_slow_other_connections() {
    let host = TestHost::default();
    let mut honest = host.connect();
    let _crowd = crowd(&host, 8, &framed(&data_call(1, MEBIBYTE), 8).repeat(300));
    let lent = host.counts().lent_bytes;
    assert!(lent <= 24 << 20, "two or three replies each: {lent}");
    for call in [numbered(ECHO, 1, 120), data_call(2, 4096), data_call(3, MEBIBYTE)] {
        let slowest = slowest(&mut honest, &call);
        assert!(slowest < AT_ONCE, "{slowest:?}");
    }
    assert_eq!(host.counts().closed_stuck, 0, "there is memory enough");
}

#[test]
fn small_calls_proceed_while_unsent_replies_exhaust_memory() {
    // Nothing is closed meanwhile, so a call that waited for memory would wait forever.
    let never = Duration::from_secs(3600);
    let host =
        TestHost::new(Options { stuck_after: never, stuck_after_if_short: never, ..Options::default() });
    let mut honest = host.connect();
    let crowd = crowd(&host, 100, &framed(&data_call(1, MEBIBYTE), 8).repeat(20));
    host.until("all memory of the address is lent", |counts| counts.lent_bytes >= 61 << 20);
    let slowest = slowest(&mut honest, &numbered(ECHO, 1, 120));
    assert!(slowest < AT_ONCE, "{slowest:?}");
    assert_eq!(host.counts().closed_stuck, 0);
    drop(crowd);
}

#[test]
fn long_call_waits_for_stalled_connections_to_close() {
    let host = TestHost::default();
    let mut honest = host.connect();
    let crowd = crowd(&host, 100, &framed(&data_call(1, MEBIBYTE), 8).repeat(20));
    let begun = Instant::now();
    assert_eq!(honest.ask(&data_call(3, MEBIBYTE)).len(), MEBIBYTE + 8);
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    drop(crowd);
    host.until("all buffers are back", |counts| counts.lent_bytes == 0);
}

#[test]
fn unsent_small_replies_occupy_no_client_calls() {
    let host = TestHost::new(Options { client_calls_max: 64, ..Options::default() });
    let mut honest = host.connect();
    let _crowd = crowd(&host, 4, &framed(&numbered(ECHO, 1, 4000), 4000).repeat(3000));
    let slowest = slowest(&mut honest, b"e");
    assert!(slowest < AT_ONCE, "{slowest:?}");
}

#[test]
fn records_under_way_count_for_their_connection() {
    let host = TestHost::default();
    let mut honest = host.connect();
    let mut greedy = host.connect();
    // Each retains its record of half a mebibyte.
    let call = numbered(HOLD, 1, MEBIBYTE / 2);
    let mut writer = greedy.0.try_clone().expect("clone");
    thread::spawn(move || writer.write_all(&framed(&call, call.len()).repeat(60)).expect("send"));
    eventually("some are held", || host.player.held() >= 20);
    thread::sleep(Duration::from_millis(100));
    let lent = host.counts().lent_bytes;
    assert!(lent <= 18 << 20, "what one connection may have: {lent}");
    assert_eq!(honest.ask(&data_call(DATA, MEBIBYTE)).len(), MEBIBYTE + 8);
    let taker = thread::spawn(move || (0..60).for_each(|_| drop(greedy.receive())));
    while !taker.is_finished() {
        host.player.release(false);
        thread::yield_now();
    }
    taker.join().expect("all are answered");
}
