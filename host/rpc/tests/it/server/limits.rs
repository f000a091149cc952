//! A client at its limits delays only itself.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_rpc::server::Options;
use tombolo_host_runtime::buffer_pool::BufferLimits;

use crate::server::common::{Client, ECHO, HOLD, TestHost, data_call, echoed, eventually, framed, numbered};

#[test]
fn call_limit_holds_with_out_of_order_replies() {
    let host = TestHost::new(Options { connection_calls_max: 16, ..Options::default() });
    let mut client = host.connect();
    let calls: Vec<_> = (0..100).map(|number| numbered(HOLD, number, 100)).collect();
    client.0.write_all(&calls.iter().flat_map(|call| framed(call, 100)).collect::<Vec<_>>()).expect("send");
    eventually("the first are held", || host.player.held() == 16);
    thread::sleep(Duration::from_millis(30));
    assert_eq!(host.player.held(), 16, "the others wait");
    assert_eq!(host.connect().ask(b"e"), b"e", "and no other connection does");
    let (mut answered, end) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while answered.len() < calls.len() {
        assert!(Instant::now() < end, "{} were answered", answered.len());
        if host.player.release(true) {
            answered.push(client.receive());
        } else {
            thread::yield_now();
        }
    }
    assert_ne!(answered, calls);
    answered.sort();
    let mut wanted = calls.clone();
    wanted.sort();
    assert_eq!(answered, wanted);
}

#[test]
fn all_connections_of_an_address_have_a_limit_together() {
    let host = TestHost::new(Options { client_calls_max: 10, ..Options::default() });
    let mut clients: Vec<Client> = (0..8).map(|_| host.connect()).collect();
    for client in &mut clients {
        (0..5).for_each(|number| client.send(&[HOLD, number]));
    }
    eventually("some are held", || host.player.held() == 10);
    thread::sleep(Duration::from_millis(30));
    assert_eq!(host.player.held(), 10);
    let end = Instant::now() + Duration::from_secs(20);
    let mut released = 0;
    while released < 40 {
        assert!(Instant::now() < end, "{released} were released");
        assert!(host.player.held() <= 10);
        if host.player.release(false) {
            released += 1;
        }
        thread::yield_now();
    }
    for client in &mut clients {
        (0..5).for_each(|_| drop(client.receive()));
    }
    assert_eq!(host.player.begun.load(std::sync::atomic::Ordering::SeqCst), 40);
}

#[test]
fn stalled_receiver_is_bounded_and_closed() {
    let stuck_after = Duration::from_millis(1500);
    let host = TestHost::new(Options { stuck_after, ..Options::default() });
    let (mut greedy, mut other) = (host.connect(), host.connect_from(Ipv4Addr::new(127, 0, 0, 2)));
    (0..400).for_each(|_| greedy.send(&data_call(3, 1 << 20)));
    let (mut slowest, mut most, end) = (Duration::ZERO, 0, Instant::now() + Duration::from_secs(30));
    while host.counts().closed_stuck == 0 {
        assert!(Instant::now() < end, "it was not closed");
        most = most.max(host.counts().lent_bytes);
        let start = Instant::now();
        assert_eq!(other.ask(b"e"), b"e");
        slowest = slowest.max(start.elapsed());
    }
    assert!((1 << 20..=(18 << 20)).contains(&most), "what one connection may have: {most}");
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    host.until("its memory is back", |counts| counts.lent_bytes == 0 && counts.connections == 1);
    // Replies already in the kernel can be read; then the stream ends.
    let _ = greedy.0.read_to_end(&mut Vec::new());
    assert_eq!(other.ask(b"e"), b"e");
}

#[test]
fn untaken_small_replies_are_bounded_as_well() {
    let host = TestHost::new(Options { stuck_after: Duration::from_millis(1500), ..Options::default() });
    let mut greedy = host.connect();
    greedy.0.set_write_timeout(Some(Duration::from_millis(300))).expect("timeout");
    let stream = framed(&numbered(ECHO, 1, 8000), 8000);
    let taken = (0..1_000_000).take_while(|_| greedy.0.write_all(&stream).is_ok()).count();
    assert!(host.counts().calls <= taken as u64 + 1);
    let lent = host.counts().lent_bytes;
    assert!(lent <= 4 << 20, "256 replies of 8,000 bytes: {lent}");
    host.until("it is closed", |counts| counts.closed_stuck == 1 && counts.lent_bytes == 0);
}

#[test]
fn a_slow_client_gets_everything() {
    let host = TestHost::default();
    let mut client = host.connect();
    let mut writer = client.0.try_clone().expect("clone");
    let sender = thread::spawn(move || {
        for number in 0..300u32 {
            writer.write_all(&framed(&data_call(number as u8, 300_000), 8)).expect("send");
        }
    });
    for number in 0..300u32 {
        let reply = client.receive();
        assert_eq!(reply.len(), 300_008);
        assert!(reply[8..].iter().all(|byte| *byte == number as u8));
        if number % 50 == 0 {
            thread::sleep(Duration::from_millis(20));
        }
    }
    sender.join().expect("the sender");
    host.until("all buffers are back", |counts| counts.lent_bytes == 0);
}

/// Makes concurrent calls in fragments of this length. Returns the most that was lent.
fn lent_to_concurrent_calls(
    share_bytes: usize,
    connections: usize,
    call_bytes: usize,
    fragment: usize,
) -> u64 {
    let buffers = BufferLimits { total_bytes: 64 << 20, share_bytes, retained_bytes: 8 << 20 };
    let host = TestHost::new(Options { buffers, threads: 2, ..Options::default() });
    let call = numbered(ECHO, 5, call_bytes);
    let stream = framed(&call, fragment);
    let most = thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let mut client = host.connect();
                for _ in 0..4 {
                    client.0.write_all(&stream).expect("send");
                    assert!(client.receive() == echoed(&call));
                }
            });
        }
        let mut most = 0;
        while host.counts().calls < connections as u64 * 4 {
            most = most.max(host.counts().lent_bytes);
            thread::sleep(Duration::from_millis(1));
        }
        most
    });
    host.until("all buffers are back", |counts| counts.lent_bytes == 0);
    most
}

#[test]
fn concurrent_long_calls_share_bounded_memory() {
    let most = lent_to_concurrent_calls(8 << 20, 32, 1 << 20, 1 << 20);
    assert!(most <= 8 << 20, "{most}");
}

#[test]
fn fragmented_records_share_bounded_memory() {
    let most = lent_to_concurrent_calls(16 << 20, 24, 300_000, 8_000);
    assert!(most <= 16 << 20, "{most}");
}

#[test]
fn busy_connection_does_not_delay_others() {
    let host = TestHost::default();
    let test = Arc::new(());
    thread::scope(|scope| {
        for _ in 0..4 {
            let mut busy = host.connect();
            let mut writer = busy.0.try_clone().expect("clone");
            let running = Arc::downgrade(&test);
            scope.spawn(move || {
                let stream = framed(&numbered(ECHO, 1, 4000), 4000).repeat(50);
                while running.strong_count() > 0 {
                    writer.write_all(&stream).expect("send");
                }
                writer.shutdown(std::net::Shutdown::Write).expect("shutdown");
            });
            scope.spawn(move || while busy.try_receive().is_ok() {});
        }
        let mut client = host.connect();
        let mut times: Vec<_> = (0..20)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(client.ask(b"e"), b"e");
                start.elapsed()
            })
            .collect();
        times.sort();
        drop(test);
        assert!(times[10] < Duration::from_secs(5), "half of them took longer than {:?}", times[10]);
    });
}
