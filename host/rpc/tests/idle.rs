//! Thousands of idle connections, in a process where nothing else takes memory.
#![allow(clippy::print_stdout, reason = "it says what it measured")]

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_allocations::{Counting, live_bytes};
use tombolo_host_rpc::server::{Exchange, Listeners, Options, Outcome, Peer, Server, Service};
use tombolo_sys::process;

struct Echo;

impl Service for Echo {
    fn serve(
        self: Arc<Self>,
        _peer: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> impl Future<Output = (Box<Exchange>, Outcome)> + Send + 'static {
        exchange.reply.extend_from_slice(&exchange.head);
        std::future::ready((exchange, Outcome::Reply))
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many connections to open, of those wanted: both their ends are descriptors of this process.
fn affordable(wanted: usize) -> usize {
    process::raise_open_file_limit().expect("raise the limit");
    let limit = process::open_file_limit().soft;
    let possible = usize::try_from(limit.saturating_sub(100)).unwrap_or(usize::MAX) / 2;
    if possible < wanted {
        println!("not {wanted}: this process may open {limit} files");
    }
    possible.min(wanted)
}

fn ask(stream: &mut TcpStream, number: usize) {
    let call = [0x80, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, number as u8];
    stream.write_all(&call).expect("send");
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply, call);
}

#[test]
fn ten_thousand_idle_connections_take_little_memory_and_all_are_served() {
    let count = affordable(10_000);
    let bound = Listeners { tcp: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))], udp: vec![] }
        .bind()
        .expect("bind");
    let options = Options { threads: 2, stuck_after: Duration::from_secs(2), ..Options::default() };
    let server = Server::start(bound, options, &Arc::new(Echo)).expect("the server starts");
    let connect = || TcpStream::connect(server.tcp_addresses()[0]).expect("connect");
    ask(&mut connect(), 0);
    let mut crowd = Vec::with_capacity(count);
    let before = live_bytes();
    crowd.extend((0..count).map(|_| connect()));
    crowd.iter_mut().enumerate().for_each(|(number, stream)| ask(stream, number));
    let busy = live_bytes().saturating_sub(before) / count;
    // What a busy connection had, it gives back when it is idle for a while.
    let idle = || live_bytes().saturating_sub(before) / count;
    let end = Instant::now() + Duration::from_secs(20);
    while idle() > 1024 && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
    }
    println!("{count} connections: {busy} bytes for each while busy, {} when idle", idle());
    assert!(idle() <= 1024, "{} bytes for each", idle());
    crowd.iter_mut().enumerate().for_each(|(number, stream)| ask(stream, number));
    let counts = server.counts();
    assert_eq!((counts.connections, counts.lent_bytes), (count as u64, 0));
    let start = Instant::now();
    drop(crowd);
    while server.counts().connections > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "they are not gone");
        thread::yield_now();
    }
    assert_eq!(server.counts().connections_total, count as u64 + 1);
}
