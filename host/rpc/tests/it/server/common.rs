//! A service controlled by the content of its calls, and a client that exchanges records.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_rpc::server::{
    Counts, Exchange, Listeners, Options, Outcome, Peer, ReplyData, Server, Service,
};

/// A service that does as a call's first byte requests.
#[derive(Default)]
pub struct Player {
    /// Calls that wait for [`release`](Self::release).
    held: Mutex<VecDeque<(Arc<AtomicBool>, Option<Waker>)>>,
    pub begun: AtomicUsize,
}

/// Returns the call itself at once.
pub const ECHO: u8 = b'e';
/// The same from another thread, after the number of milliseconds in the second byte.
pub const LATER: u8 = b'l';
/// The same, once released.
pub const HOLD: u8 = b'h';
/// Returns as much file data as bytes 4..8 request.
pub const DATA: u8 = b'd';
pub const SILENT: u8 = b's';
pub const CLOSE: u8 = b'c';
pub const CLOSE_LATER: u8 = b'C';
pub const PANIC: u8 = b'p';
pub const PANIC_LATER: u8 = b'P';

impl Player {
    /// Releases the oldest or newest held call. Returns `false` if there is none.
    pub fn release(&self, newest: bool) -> bool {
        let mut held = self.held.lock().unwrap();
        let entry = if newest { held.pop_back() } else { held.pop_front() };
        let Some((released, waker)) = entry else { return false };
        // Before unlocking: a call polled in between would find itself neither released nor listed, and would
        // never be woken.
        released.store(true, Ordering::SeqCst);
        drop(held);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    pub fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Waits until the call is released.
    pub async fn hold(&self) {
        let released = Arc::new(AtomicBool::new(false));
        self.held.lock().unwrap().push_back((released.clone(), None));
        poll_fn(|context| {
            let mut held = self.held.lock().unwrap();
            if released.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            if let Some(entry) = held.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &released)) {
                entry.1 = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// Waits for `time`, woken by a thread of its own.
async fn sleep(time: Duration) {
    let due = Instant::now() + time;
    poll_fn(|context| {
        if Instant::now() >= due {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        thread::spawn(move || {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            waker.wake();
        });
        Poll::Pending
    })
    .await;
}

/// Returns the whole call: copied if it fits in the head, otherwise by reference.
fn echo(exchange: &mut Exchange) {
    if exchange.head.len() == exchange.record.len() {
        exchange.reply.extend_from_slice(&exchange.head);
    } else {
        let mut source = exchange.record.clone();
        source.advance(exchange.head.len());
        exchange.reply.extend_from_slice(&exchange.head);
        exchange.data = Some(ReplyData { source, lease: None });
    }
}

fn data(exchange: &mut Exchange) {
    let len = u32::from_be_bytes(exchange.head[4..8].try_into().unwrap()) as usize;
    exchange.reply.extend_from_slice(&exchange.head[..8]);
    match exchange.buffers.take(len) {
        Some(lease) => {
            lease.sink(0..len).write_at(0, &vec![exchange.head[1]; len]);
            exchange.data = Some(ReplyData::new(lease, len));
        }
        None => exchange.reply.extend_from_slice(b"none"),
    }
}

impl Service for Player {
    fn needs_buffer(&self, head: &[u8]) -> bool {
        head.first() == Some(&DATA)
    }

    async fn serve(
        self: Arc<Self>,
        _peer: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> (Box<Exchange>, Outcome) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        assert!(exchange.reply.is_empty() && exchange.data.is_none());
        let outcome = match exchange.head.first() {
            Some(&SILENT) => Outcome::Silent,
            Some(&CLOSE) => Outcome::Close,
            Some(&CLOSE_LATER) => {
                sleep(Duration::from_millis(20)).await;
                Outcome::Close
            }
            Some(&PANIC) => panic!("planned"),
            Some(&PANIC_LATER) => {
                sleep(Duration::from_millis(20)).await;
                panic!("planned");
            }
            Some(&LATER) => {
                sleep(Duration::from_millis(exchange.head.get(1).copied().unwrap_or(1).into())).await;
                echo(&mut exchange);
                Outcome::Reply
            }
            Some(&HOLD) => {
                self.hold().await;
                echo(&mut exchange);
                Outcome::Reply
            }
            Some(&DATA) => {
                data(&mut exchange);
                Outcome::Reply
            }
            _ => {
                echo(&mut exchange);
                Outcome::Reply
            }
        };
        (exchange, outcome)
    }
}

/// A server on loopback and its service.
pub struct Host<P> {
    pub server: Server,
    pub player: Arc<P>,
}

impl<P: Service + Default> Host<P> {
    pub fn at(address: SocketAddr, options: Options) -> Self {
        let bound = Listeners { tcp: vec![address], udp: vec![address] }.bind().expect("bind");
        let player = Arc::new(P::default());
        let server = Server::start(bound, options, &player).expect("the server starts");
        Self { server, player }
    }
}

pub type TestHost = Host<Player>;

impl TestHost {
    pub fn new(options: Options) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), options)
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.server.tcp_addresses()[0])
    }

    pub fn counts(&self) -> Counts {
        self.server.counts()
    }

    /// Connects from another address.
    pub fn connect_from(&self, address: Ipv4Addr) -> Client {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&stream, &SocketAddr::from((address, 0))).expect("bind");
        connect(&stream, &self.server.tcp_addresses()[0]).expect("connect");
        Client::tuned(stream.into())
    }

    /// Waits until the counters satisfy a condition.
    pub fn until(&self, what: &str, is_so: impl Fn(&Counts) -> bool) {
        eventually(what, || is_so(&self.counts()));
    }
}

impl Default for TestHost {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

/// Waits until a condition holds.
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A client that exchanges records.
pub struct Client(pub TcpStream);

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self::tuned(TcpStream::connect(address).expect("connect"))
    }

    pub fn tuned(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        stream.set_write_timeout(Some(Duration::from_secs(20))).expect("timeout");
        Self(stream)
    }

    pub fn send(&mut self, record: &[u8]) {
        self.0.write_all(&framed(record, record.len())).expect("send");
    }

    pub fn receive(&mut self) -> Vec<u8> {
        self.try_receive().expect("a reply")
    }

    pub fn try_receive(&mut self) -> io::Result<Vec<u8>> {
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        assert!(mark & 1 << 31 != 0, "a reply is one fragment");
        let mut record = vec![0; (mark & !(1 << 31)) as usize];
        self.0.read_exact(&mut record)?;
        Ok(record)
    }

    pub fn ask(&mut self, record: &[u8]) -> Vec<u8> {
        self.send(record);
        self.receive()
    }

    /// Waits until the server closes this connection. Returns `true` if it does.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.0.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Returns a record as a stream, in fragments of at most `fragment_bytes`.
pub fn framed(record: &[u8], fragment_bytes: usize) -> Vec<u8> {
    let mut stream = Vec::new();
    let count = record.len().div_ceil(fragment_bytes.max(1)).max(1);
    for index in 0..count {
        let start = index * fragment_bytes;
        let fragment = &record[start..record.len().min(start + fragment_bytes)];
        let last = if index + 1 == count { 1 << 31 } else { 0 };
        stream.extend((fragment.len() as u32 | last).to_be_bytes());
        stream.extend(fragment);
    }
    stream
}

/// Returns a call that requests file data, all of it `fill`.
pub fn data_call(fill: u8, len_bytes: usize) -> Vec<u8> {
    [&[DATA, fill, 0, 0][..], &(len_bytes as u32).to_be_bytes()].concat()
}

/// Returns a call of `len` bytes derived from its number.
pub fn numbered(kind: u8, number: usize, len: usize) -> Vec<u8> {
    let mut call = vec![kind];
    call.extend((1..len.max(1)).map(|at| (at * 31 + number * 17 + at / 251) as u8));
    call
}

/// Returns the reply that echoes a call: file data are padded.
pub fn echoed(call: &[u8]) -> Vec<u8> {
    let head = tombolo_host_rpc::server::HEAD_BYTES;
    let mut reply = call.to_vec();
    if call.len() > head {
        let data = call.len() - tombolo_host_rpc::server::LONG_HEAD_BYTES;
        reply.resize(call.len() + data.next_multiple_of(4) - data, 0);
    }
    reply
}
