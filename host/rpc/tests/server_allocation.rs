//! A call that is answered at once allocates nothing: not in the transport, and not for its future.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;

use tombolo_allocations::{Counting, of_all_threads};
use tombolo_host_rpc::server::{Exchange, Listeners, Options, Outcome, Peer, ReplyData, Server, Service};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Answers with 100 bytes, and as much file data as bytes 0..4 of the call ask for.
struct Null;

impl Service for Null {
    async fn serve(
        self: Arc<Self>,
        _peer: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> (Box<Exchange>, Outcome) {
        exchange.reply.resize(100, 7);
        let len = exchange.head.first_chunk().map_or(0, |len| u32::from_be_bytes(*len)) as usize;
        if len > 0 {
            let lease = exchange.buffers.take(len).expect("a buffer");
            exchange.data = Some(ReplyData::new(lease, len));
        }
        // What a service awaits is part of its future, whose memory is used again.
        std::future::ready(()).await;
        (exchange, Outcome::Reply)
    }
}

/// The fewest allocations of three attempts: every few seconds the server gives up memory that seems idle, and has to get it
/// again.
fn allocations(mut work: impl FnMut()) -> u64 {
    let mut attempt = || {
        let before = of_all_threads();
        work();
        of_all_threads() - before
    };
    (0..3).map(|_| attempt()).min().unwrap_or(u64::MAX)
}

/// A kind of call: how many are sent at once, how long they are, and how much data they ask for.
struct Row {
    name: &'static str,
    count: usize,
    call: usize,
    data: usize,
}

const fn row(name: &'static str, count: usize, call: usize, data: usize) -> Row {
    Row { name, count, call, data }
}

const ROWS: [Row; 6] = [
    row("one small call", 1, 120, 0),
    row("32 small calls", 32, 120, 0),
    row("a write of 32 KiB", 1, 140 + (32 << 10), 0),
    row("four writes of 1 MiB", 4, 140 + (1 << 20), 0),
    row("a read of 32 KiB", 1, 120, 32 << 10),
    row("two reads of 1 MiB", 2, 120, 1 << 20),
];

#[test]
fn calls_that_are_answered_at_once_allocate_nothing() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bound = Listeners { tcp: vec![any], udp: vec![any] }.bind().expect("bind");
    let options = Options { threads: 1, ..Options::default() };
    let server = Server::start(bound, options, &Arc::new(Null)).expect("the server starts");
    let mut stream = TcpStream::connect(server.tcp_addresses()[0]).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    for row in &ROWS {
        let mut call = vec![0; 4 + row.call];
        call[..4].copy_from_slice(&(0x8000_0000 | row.call as u32).to_be_bytes());
        call[4..8].copy_from_slice(&(row.data as u32).to_be_bytes());
        let calls = call.repeat(row.count);
        let mut replies = vec![0; (104 + row.data) * row.count];
        let mut ask = || {
            stream.write_all(&calls).expect("send");
            stream.read_exact(&mut replies).expect("replies");
        };
        // To fill what is filled once: how calls meet in one turn differs from time to time.
        (0..200).for_each(|_| ask());
        assert_eq!(allocations(|| (0..50).for_each(|_| ask())), 0, "{}", row.name);
    }
    let socket = UdpSocket::bind(any).expect("bind");
    let mut reply = [0; 200];
    let mut ask = || {
        socket.send_to(&[0; 120], server.udp_addresses()[0]).expect("send");
        assert_eq!(socket.recv(&mut reply).expect("a reply"), 100);
    };
    (0..20).for_each(|_| ask());
    assert_eq!(allocations(|| (0..50).for_each(|_| ask())), 0, "a datagram");
}
