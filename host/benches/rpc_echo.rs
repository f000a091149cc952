//! What the RPC server costs over a bare socket: `cargo bench -p tombolo-host --bench rpc_echo`.
//!
//! Three servers answer the same calls of the same client in turn: a thread that blocks in `recv`, a thread that looks
//! before it blocks (the same window as ours), and ours with a service that does nothing. The bare ones know the sizes. An
//! argument chooses loads by a part of their name.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tombolo_host::rpc_server::{Exchange, Listeners, Options, Outcome, Peer, ReplyData, Server, Service};
use tombolo_host::spin::Window;
use tombolo_sys::affinity;

const ROUNDS: usize = 9;
const TIME: Duration = Duration::from_millis(150);

/// Sizes with the record mark, and how many calls are outstanding.
struct Load {
    name: &'static str,
    call: usize,
    reply: usize,
    outstanding: usize,
}

const fn load(name: &'static str, call: usize, reply: usize, outstanding: usize) -> Load {
    Load { name, call, reply, outstanding }
}

const LOADS: [Load; 7] = [
    load("GETATTR", 124, 120, 1),
    load("GETATTR", 124, 120, 32),
    load("WRITE 32 KiB", 4 + 140 + (32 << 10), 140, 4),
    load("WRITE 1 MiB", 4 + 140 + (1 << 20), 140, 4),
    load("READ 32 KiB", 124, 132 + (32 << 10), 4),
    load("READ 1 MiB", 124, 132 + (1 << 20), 4),
    load("READ 1 MiB", 124, 132 + (1 << 20), 1),
];

const KINDS: [Kind; 3] = [Kind::Blocking, Kind::Looking, Kind::Ours];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Blocking,
    Looking,
    Ours,
}

fn main() {
    let cores = affinity::cores(None).expect("cores");
    let (client, server) = (cores[0], cores[cores.len() - 1]);
    println!("client on core {client}, server on core {server}; medians of {ROUNDS} rounds in turn");
    println!(
        "{:>14} {:>4} {:>9} {:>9} {:>9} {:>11} {:>10}",
        "", "out", "server", "p50 us", "p99 us", "calls/s", "cpu us"
    );
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    for load in LOADS.iter().filter(|load| load.name.contains(&wanted)) {
        let mut rounds = KINDS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (kind, round) in KINDS.iter().zip(&mut rounds) {
                affinity::pin(None, &[server]).expect("pin");
                let bed = Bed::start(*kind, load);
                affinity::pin(None, &[client]).expect("pin");
                round.push(measure(&bed, load));
                bed.stop();
            }
        }
        for (kind, round) in KINDS.iter().zip(&rounds) {
            let column = |at: usize| median(round.iter().map(|row| row[at]).collect());
            print!("{:>14} {:>4} {:>9} ", load.name, load.outstanding, format!("{kind:?}"));
            println!("{:>9.2} {:>9.2} {:>11.0} {:>10.2}", column(0), column(1), column(2), column(3));
        }
    }
}

/// Median and 99th percentile of a round trip, calls per second, and the server's processor time for each call.
fn measure(bed: &Bed, load: &Load) -> [f64; 4] {
    let stream = TcpStream::connect(bed.address).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    let mut call = vec![7u8; load.call];
    call[..4].copy_from_slice(&(0x8000_0000 | (load.call as u32 - 4)).to_be_bytes());
    let mut replies = vec![0; (load.reply * load.outstanding).min(4 << 20)];
    let (mut times, mut sent_at) = (Vec::new(), std::collections::VecDeque::new());
    let small = load.call < 1000;
    let send = |count: usize| {
        // Small calls go in one write, as a client that has many at hand sends them.
        match small {
            true => (&stream).write_all(&call.repeat(count)).expect("send"),
            false => (0..count).for_each(|_| (&stream).write_all(&call).expect("send")),
        }
    };
    let (begin, cpu) = (Instant::now(), server_time());
    send(load.outstanding);
    sent_at.extend((0..load.outstanding).map(|_| begin));
    let (mut rest, mut count) = (0, 0);
    while begin.elapsed() < TIME {
        rest += (&stream).read(&mut replies).expect("receive");
        let done = rest / load.reply;
        rest %= load.reply;
        if done == 0 {
            continue;
        }
        let now = Instant::now();
        times.extend(sent_at.drain(..done).map(|then| (now - then).as_nanos() as f64 / 1000.0));
        count += done;
        send(done);
        sent_at.extend((0..done).map(|_| now));
    }
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), (server_time() - cpu).as_secs_f64());
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[times.len() * 99 / 100], count as f64 / seconds, cpu * 1e6 / count as f64]
}

/// A server of one kind.
struct Bed {
    address: SocketAddr,
    ours: Option<Server>,
    bare: Option<JoinHandle<()>>,
}

impl Bed {
    fn start(kind: Kind, load: &Load) -> Self {
        if kind == Kind::Ours {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let service = Arc::new(Null { reply: load.reply });
            let options = Options { threads: 1, ..Options::default() };
            let bound = Listeners { tcp: vec![any], udp: vec![] }.bind().expect("bind");
            let server = Server::start(bound, options, &service).expect("start");
            return Self { address: server.tcp_addresses()[0], ours: Some(server), bare: None };
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let address = listener.local_addr().expect("address");
        let (call, reply) = (load.call, load.reply);
        let bare = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("accept");
            stream.set_nodelay(true).expect("nodelay");
            echo(&stream, kind == Kind::Looking, call, reply);
        });
        Self { address, ours: None, bare: Some(bare) }
    }

    fn stop(self) {
        self.ours.into_iter().for_each(Server::stop);
        self.bare.into_iter().for_each(|thread| thread.join().expect("join"));
    }
}

/// The least that a server can do.
fn echo(mut stream: &TcpStream, looks: bool, call: usize, reply: usize) {
    stream.set_nonblocking(looks).expect("set");
    let mut received = vec![0; call.max(16 << 10)];
    let replies = vec![0; reply.max(reply * 32).min(2 << 20)];
    let (mut window, mut rest) = (Window::default(), 0);
    loop {
        let bytes = match looks {
            true => look(stream, &mut window, &mut received),
            false => stream.read(&mut received).unwrap_or(0),
        };
        if bytes == 0 {
            return;
        }
        rest += bytes;
        let mut left = rest / call * reply;
        rest %= call;
        while left > 0 {
            match stream.write(&replies[..left.min(replies.len())]) {
                Ok(sent) => left -= sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(_) => return,
            }
        }
    }
}

fn look(mut stream: &TcpStream, window: &mut Window, into: &mut [u8]) -> usize {
    let since = Instant::now();
    loop {
        match stream.read(into) {
            Ok(bytes) => return bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return 0,
        }
        if !window.is_open() || !window.pause(since) {
            break;
        }
    }
    stream.set_nonblocking(false).expect("set");
    let since = Instant::now();
    let bytes = stream.read(into).unwrap_or(0);
    window.slept(since.elapsed());
    stream.set_nonblocking(true).expect("set");
    bytes
}

/// Answers with as many bytes as it is asked for.
struct Null {
    reply: usize,
}

impl Service for Null {
    async fn serve(
        self: Arc<Self>,
        _peer: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> (Box<Exchange>, Outcome) {
        let small = if self.reply < 1000 { self.reply - 4 } else { 128 };
        exchange.reply.resize(small, 0);
        let data = self.reply - 4 - small;
        if data > 0 {
            exchange.data = exchange.buffers.take(data).map(|lease| ReplyData::new(lease, data));
        }
        (exchange, Outcome::Reply)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of this process, less that of this thread, the client.
fn server_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    read(ClockId::ProcessCPUTime) - read(ClockId::ThreadCPUTime)
}
