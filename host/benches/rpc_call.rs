//! What the RPC client costs over a bare socket: `cargo bench -p tombolo-host --bench rpc_call`.
//!
//! Three clients make the same calls to the same server (ours, with a service that does nothing) in turn: a thread that writes
//! and reads and knows the sizes, our client with a thread that waits for each answer, and our client with tasks that go on
//! where the answer comes in. Then 64 tasks make bulk calls under in-flight limits, fixed and adaptive. An argument chooses loads by
//! a part of their name; `limit` the last part.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tombolo_host::rpc_client::{
    Call, Found, InFlight, Landing, Options, Pending, RpcClient, Target, Transport,
};
use tombolo_host::rpc_server::{self, Exchange, Listeners, Outcome, Peer, ReplyData, Server, Service};
use tombolo_host::task;
use tombolo_mem::{Buffer, Source};
use tombolo_sys::thread::waits;
use tombolo_wire_rpc::Credential;

const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_millis(150);
const LIMIT_TIME: Duration = Duration::from_millis(400);

/// Bytes of the arguments or data of a call and of its reply's data, and how many calls are outstanding.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    data_out: usize,
    data_in: usize,
    outstanding: usize,
}

const fn load(name: &'static str, data_out: usize, data_in: usize, outstanding: usize) -> Load {
    Load { name, data_out, data_in, outstanding }
}

const LOADS: [Load; 8] = [
    load("GETATTR", 0, 0, 1),
    load("GETATTR", 0, 0, 32),
    load("WRITE 32 KiB", 32 << 10, 0, 8),
    load("WRITE 1 MiB", 1 << 20, 0, 1),
    load("WRITE 1 MiB", 1 << 20, 0, 8),
    load("READ 32 KiB", 0, 32 << 10, 8),
    load("READ 1 MiB", 0, 1 << 20, 1),
    load("READ 1 MiB", 0, 1 << 20, 8),
];

/// The header, four words and a handle's worth of arguments.
const ARGUMENT_BYTES: usize = 80;
const CALL_BYTES: usize = 4 + 40 + ARGUMENT_BYTES;
/// The header of a reply, and attributes.
const REPLY_BYTES: usize = 4 + 24 + 104;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bare,
    Waiting,
    Tasks,
}

const KINDS: [Kind; 3] = [Kind::Bare, Kind::Waiting, Kind::Tasks];

/// What a round came to.
#[derive(Clone, Copy, Default)]
struct Row {
    calls_per_s: f64,
    p50_us: f64,
    cpu_us: f64,
    switches_per_call: f64,
}

fn main() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bound = Listeners { tcp: vec![any], udp: vec![] }.bind().expect("bind");
    let options = rpc_server::Options { threads: 1, ..rpc_server::Options::default() };
    let server = Server::start(bound, options, &Arc::new(Null)).expect("start");
    let address = server.tcp_addresses()[0];
    println!(
        "medians of {ROUNDS} rounds in turn; processor time is the whole process's, the server's with it"
    );
    println!(
        "{:>13} {:>4} {:>8} {:>9} {:>10} {:>8} {:>8}",
        "", "out", "client", "p50 us", "calls/s", "MB/s", "cpu us"
    );
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    if wanted.is_empty() || wanted == "limit" {
        limits(address);
    }
    for load in LOADS.iter().filter(|load| load.name.contains(&wanted)) {
        let mut rounds = KINDS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (kind, rows) in KINDS.iter().zip(&mut rounds) {
                rows.push(measure(*kind, address, *load));
            }
        }
        for (kind, rows) in KINDS.iter().zip(&rounds) {
            let median = |of: fn(&Row) -> f64| {
                let mut values: Vec<_> = rows.iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            let rate = median(|row| row.calls_per_s);
            let mb = rate * (load.data_in + load.data_out) as f64 / 1e6;
            print!(
                "{:>13} {:>4} {:>8} {:>9.1} ",
                load.name,
                load.outstanding,
                format!("{kind:?}"),
                median(|row| row.p50_us)
            );
            println!(
                "{rate:>10.0} {mb:>8.0} {:>8.2} {:>6.2}",
                median(|row| row.cpu_us),
                median(|row| row.switches_per_call)
            );
        }
    }
}

/// Bulk calls under several limits, in turn.
fn limits(address: SocketAddr) {
    const MODES: [InFlight; 7] = [
        InFlight::Fixed(1),
        InFlight::Fixed(2),
        InFlight::Fixed(4),
        InFlight::Fixed(8),
        InFlight::Fixed(16),
        InFlight::Fixed(64),
        InFlight::Adaptive { max: 64 },
    ];
    for load in LOADS.iter().filter(|load| load.outstanding == 8) {
        let load = Load { outstanding: 64, ..*load };
        let mut rounds = MODES.map(|_| (Vec::new(), 0));
        for _ in 0..ROUNDS {
            for (mode, (rates, limit)) in MODES.iter().zip(&mut rounds) {
                let client = client(address, *mode);
                let begin = Instant::now();
                let count = tasks(&client, load, LIMIT_TIME).len();
                let bytes = count * (load.data_in + load.data_out);
                rates.push(bytes as f64 / 1e6 / begin.elapsed().as_secs_f64());
                *limit = client.in_flight();
            }
        }
        for (mode, (mut rates, limit)) in MODES.iter().zip(rounds) {
            rates.sort_by(f64::total_cmp);
            println!("{:>13} {mode:?} (at last {limit}): {:.0} MB/s", load.name, rates[rates.len() / 2]);
        }
    }
}

fn measure(kind: Kind, address: SocketAddr, load: Load) -> Row {
    let (begin, cpu, before) = (Instant::now(), processor_time(), waits());
    let mut times = match kind {
        Kind::Bare => bare(address, load),
        Kind::Waiting => waiting(&client(address, InFlight::Fixed(64)), load),
        Kind::Tasks => tasks(&client(address, InFlight::Fixed(64)), load, TIME),
    };
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), processor_time() - cpu);
    times.sort_by(f64::total_cmp);
    let count = times.len() as f64;
    Row {
        calls_per_s: count / seconds,
        p50_us: times.get(times.len() / 2).copied().unwrap_or_default(),
        cpu_us: cpu.as_secs_f64() * 1e6 / count,
        switches_per_call: (waits() - before) as f64 / count,
    }
}

fn client(address: SocketAddr, in_flight: InFlight) -> RpcClient {
    let target = Target { address, transport: Transport::Tcp, program: 1, version: 1 };
    let options = Options { in_flight, reserved_port: Some(false), ..Options::default() };
    RpcClient::start(target, options).expect("start")
}

/// The least that a client can do.
fn bare(address: SocketAddr, load: Load) -> Vec<f64> {
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    let len = CALL_BYTES + load.data_out;
    let mut call = vec![0; len];
    call[..4].copy_from_slice(&(0x8000_0000 | (len as u32 - 4)).to_be_bytes());
    call[44..48].copy_from_slice(&(load.data_in as u32).to_be_bytes());
    let reply_bytes = REPLY_BYTES + load.data_in;
    let mut replies = vec![0; (reply_bytes * load.outstanding).clamp(4096, 4 << 20)];
    let (mut times, mut sent_at) = (Vec::new(), VecDeque::new());
    let send = |count: usize, sent_at: &mut VecDeque<Instant>| {
        for _ in 0..count {
            sent_at.push_back(Instant::now());
            (&stream).write_all(&call).expect("send");
        }
    };
    let begin = Instant::now();
    send(load.outstanding, &mut sent_at);
    let mut rest = 0;
    while begin.elapsed() < TIME {
        rest += (&stream).read(&mut replies).expect("receive");
        let done = rest / reply_bytes;
        rest %= reply_bytes;
        times.extend(sent_at.drain(..done).map(|then| then.elapsed().as_nanos() as f64 / 1000.0));
        send(done, &mut sent_at);
    }
    times
}

fn call(client: &RpcClient, load: Load, buffer: &Buffer, data: &Source) -> Pending {
    let landing = (load.data_in > 0).then(|| Landing { sink: buffer.sink(0..load.data_in), find });
    let data = (load.data_out > 0).then(|| data.clone());
    let bulk = landing.is_some() || data.is_some();
    client.call(Call { landing, data, bulk, ..Call::new(1, Credential::None) }, |xdr| {
        xdr.u32(load.data_in as u32).raw(&[0; ARGUMENT_BYTES - 4]);
    })
}

/// Where the data lie: behind the attributes.
fn find(_: &[u8], results_bytes: usize) -> Found {
    Found::Data(REPLY_BYTES - 28..results_bytes)
}

fn waiting(client: &RpcClient, load: Load) -> Vec<f64> {
    let buffers: Vec<_> = (0..load.outstanding).map(|_| Buffer::new(load.data_in)).collect();
    let data = Source::from(vec![7; load.data_out]);
    let (mut times, mut pending) = (Vec::new(), VecDeque::new());
    let begin = Instant::now();
    for buffer in &buffers {
        pending.push_back((Instant::now(), call(client, load, buffer, &data), buffer));
    }
    while let Some((sent_at, first, buffer)) = pending.pop_front() {
        let reply = first.wait().expect("a reply");
        times.push(sent_at.elapsed().as_nanos() as f64 / 1000.0);
        client.recycle(reply.results);
        if begin.elapsed() < TIME {
            pending.push_back((Instant::now(), call(client, load, buffer, &data), buffer));
        }
    }
    times
}

fn tasks(client: &RpcClient, load: Load, time: Duration) -> Vec<f64> {
    let (sender, receiver) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let left = Arc::new(AtomicUsize::new(load.outstanding));
    for _ in 0..load.outstanding {
        let (client, sender, stop, left) = (client.clone(), sender.clone(), stop.clone(), left.clone());
        task::spawn(async move {
            let buffer = Buffer::new(load.data_in);
            let data = Source::from(vec![7; load.data_out]);
            let mut times = Vec::with_capacity(16 << 10);
            while !stop.load(Ordering::Relaxed) {
                let sent_at = Instant::now();
                let reply = call(&client, load, &buffer, &data).await.expect("a reply");
                times.push(sent_at.elapsed().as_nanos() as f64 / 1000.0);
                client.recycle(reply.results);
            }
            left.fetch_sub(1, Ordering::Relaxed);
            sender.send(times).expect("send");
        });
    }
    std::thread::sleep(time);
    stop.store(true, Ordering::Relaxed);
    drop(sender);
    receiver.iter().flatten().collect()
}

/// Answers with as much data as it is asked for.
struct Null;

impl Service for Null {
    async fn serve(self: Arc<Self>, _: Arc<Peer>, mut exchange: Box<Exchange>) -> (Box<Exchange>, Outcome) {
        exchange.reply.extend_from_slice(&exchange.head[..4]);
        exchange.reply.extend_from_slice(&1_u32.to_be_bytes());
        exchange.reply.resize(REPLY_BYTES - 4, 0);
        let wanted = exchange.head[40..44].first_chunk().map_or(0, |len| u32::from_be_bytes(*len)) as usize;
        if wanted > 0 {
            exchange.data = exchange.buffers.take(wanted).map(|lease| ReplyData::new(lease, wanted));
        }
        (exchange, Outcome::Reply)
    }
}

fn processor_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
