//! Calls allocate almost nothing on either side once as many were made before; idle connections need little
//! memory, and an idle client no processor time.
#![allow(clippy::print_stdout, reason = "it says what it measured")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_allocations::{Counting, live_bytes, of_all_threads};
use tombolo_host_rpc::client::{
    Call, DataLocation, InFlight, Options, ReceiveBuffer, RpcClient, Target, Transport,
};
use tombolo_host_rpc::server::{
    self as rpc_server, Exchange, Listeners, Outcome, Peer, ReplyData, Server, Service,
};
use tombolo_mem::{Buffer, Source};
use tombolo_sys::process;
use tombolo_wire_rpc::{CallHeader, Credential, Mark, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decoder, Encoder};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A service that returns as many bytes of data as the first argument requests.
struct Null;

impl Service for Null {
    async fn serve(self: Arc<Self>, _: Arc<Peer>, mut exchange: Box<Exchange>) -> (Box<Exchange>, Outcome) {
        let mut arguments = Decoder::new(&exchange.head);
        let call = CallHeader::receive(&mut arguments).expect("a call");
        let wanted = arguments.u32().unwrap_or(0) as usize;
        let mut reply = Encoder::new(&mut exchange.reply);
        reply.value(&ReplyHeader::success(call.xid)).u64(0);
        if wanted > 0 {
            exchange.data = exchange.buffers.take(wanted).map(|lease| ReplyData::new(lease, wanted));
        }
        // Locals across an await are part of the future, whose memory is reused.
        std::future::ready(()).await;
        (exchange, Outcome::Reply)
    }
}

fn find(_: &[u8], results_bytes: usize) -> DataLocation {
    DataLocation::Data(8..results_bytes)
}

/// Concurrent calls of one kind, each with data sent or received.
struct Row {
    name: &'static str,
    count: usize,
    data_out: usize,
    data_in: usize,
}

const fn row(name: &'static str, count: usize, data_out: usize, data_in: usize) -> Row {
    Row { name, count, data_out, data_in }
}

const ROWS: [Row; 6] = [
    row("one small call", 1, 0, 0),
    row("32 small calls", 32, 0, 0),
    row("a write of 32 KiB", 1, 32 << 10, 0),
    row("four writes of 1 MiB", 4, 1 << 20, 0),
    row("a read of 32 KiB", 1, 0, 32 << 10),
    row("four reads of 1 MiB", 4, 0, 1 << 20),
];

fn server(options: rpc_server::Options) -> Server {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bound = Listeners { tcp: vec![any], udp: vec![any] }.bind().expect("bind");
    Server::start(bound, options, &Arc::new(Null)).expect("the server starts")
}

fn client(server: &Server) -> RpcClient {
    let address = server.tcp_addresses()[0];
    let target = Target { address, transport: Transport::Tcp, program: 1, version: 1 };
    let options = Options { in_flight: InFlight::Fixed(32), ..Options::default() };
    RpcClient::start(target, options).expect("the client starts")
}

/// Serializes the tests: each would be in the other's count.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn calls_allocate_nothing() {
    let _alone = ALONE.lock();
    let server = server(rpc_server::Options { threads: 1, ..Default::default() });
    let client = client(&server);
    for row in &ROWS {
        let data = Source::from(vec![7; row.data_out]);
        let buffers: Vec<_> = (0..row.count).map(|_| Buffer::new(row.data_in)).collect();
        let bulk = row.data_in + row.data_out > 0;
        let mut pending = Vec::with_capacity(row.count);
        let mut ask = || {
            for buffer in &buffers {
                let receive_buffer =
                    (row.data_in > 0).then(|| ReceiveBuffer { sink: buffer.sink(0..buffer.len()), find });
                let data = (row.data_out > 0).then(|| data.clone());
                let bulk = row.data_in + row.data_out > 0;
                let call = Call { receive_buffer, data, bulk, ..Call::new(1, Credential::None) };
                pending.push(client.call(call, |xdr| {
                    xdr.u32(row.data_in as u32);
                }));
            }
            for pending in pending.drain(..) {
                let reply = pending.wait().expect("a reply");
                assert_eq!(reply.data_bytes, row.data_in);
                client.recycle(reply.results);
            }
        };
        // Warm-up: the grouping of replies into turns varies.
        let (first, counted) = if bulk { (50, 25) } else { (200, 50) };
        (0..first).for_each(|_| ask());
        let attempt = || {
            let before = of_all_threads();
            (0..counted).for_each(|_| ask());
            (of_all_threads() - before) as f64 / (counted * row.count) as f64
        };
        // Occasionally a reply overtakes the end of its own sending, and one more buffer is needed: one of
        // twenty attempts must pass.
        let least = std::iter::repeat_with(attempt).take(20).find(|&each| each <= 0.05);
        assert!(least.is_some(), "{}: more than 0.05 for each call", row.name);
    }
}

#[test]
fn an_idle_client_takes_no_processor_time() {
    let _alone = ALONE.lock();
    let server = server(rpc_server::Options { threads: 1, ..Default::default() });
    let client = client(&server);
    let call = || client.call(Call::new(1, Credential::None), |_| {}).wait().expect("a reply");
    (0..100).for_each(|_| drop(call()));
    // The last call's timer is still to fire.
    std::thread::sleep(Duration::from_millis(2500));
    let before = client.counts().sleeps;
    std::thread::sleep(Duration::from_millis(1500));
    assert!(client.counts().sleeps - before <= 1, "{} wake-ups", client.counts().sleeps - before);
    drop(call());
}

/// Returns an encoded call.
fn call() -> Vec<u8> {
    let mut call = Vec::new();
    Encoder::new(&mut call).value(&CallHeader::new(Xid(7), 1, 1, 1, Credential::None)).u32(0);
    call
}

/// Length of its reply.
const REPLY_BYTES: usize = 32;

#[test]
fn a_datagram_is_answered_without_allocating() {
    let _alone = ALONE.lock();
    let server = server(rpc_server::Options { threads: 1, ..Default::default() });
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let (call, mut reply) = (call(), [0; 200]);
    let mut ask = || {
        socket.send_to(&call, server.udp_addresses()[0]).expect("send");
        assert_eq!(socket.recv(&mut reply).expect("a reply"), REPLY_BYTES);
    };
    (0..20).for_each(|_| ask());
    // Every few seconds the server frees memory that seems idle, and allocates it again: one attempt in three
    // must pass.
    let mut attempt = || {
        let before = of_all_threads();
        (0..50).for_each(|_| ask());
        of_all_threads() - before
    };
    assert_eq!((0..3).map(|_| attempt()).min(), Some(0));
}

/// Returns the number of connections to open, at most `wanted`: both ends are descriptors of this process.
fn affordable(wanted: usize) -> usize {
    process::raise_open_file_limit().expect("raise the limit");
    let limit = process::open_file_limit().soft;
    let possible = usize::try_from(limit.saturating_sub(100)).unwrap_or(usize::MAX) / 2;
    if possible < wanted {
        println!("not {wanted}: this process may open {limit} files");
    }
    possible.min(wanted)
}

#[test]
fn ten_thousand_idle_connections_use_little_memory() {
    let _alone = ALONE.lock();
    let count = affordable(10_000);
    let options =
        rpc_server::Options { threads: 2, stuck_after: Duration::from_secs(2), ..Default::default() };
    let server = server(options);
    let call = call();
    let call = [&Mark::whole(call.len()).expect("short").to_bytes()[..], &call].concat();
    let ask = |stream: &mut TcpStream| {
        stream.write_all(&call).expect("send");
        stream.read_exact(&mut [0; Mark::BYTES + REPLY_BYTES]).expect("a reply");
    };
    let connect = || TcpStream::connect(server.tcp_addresses()[0]).expect("connect");
    ask(&mut connect());
    let mut crowd = Vec::with_capacity(count);
    let before = live_bytes();
    crowd.extend((0..count).map(|_| connect()));
    crowd.iter_mut().for_each(ask);
    let busy = live_bytes().saturating_sub(before) / count;
    // A connection frees its memory once it is idle for a while.
    let idle = || live_bytes().saturating_sub(before) / count;
    let end = Instant::now() + Duration::from_secs(20);
    while idle() > 1024 && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
    }
    println!("{count} connections: {busy} bytes for each while busy, {} when idle", idle());
    assert!(idle() <= 1024, "{} bytes for each", idle());
    crowd.iter_mut().for_each(ask);
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
