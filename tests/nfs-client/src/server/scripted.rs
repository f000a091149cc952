//! The server: its threads and its record of calls.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tombolo_wire_nfs3::{self as nfs3, Procedure, side};
use tombolo_wire_rpc::Xid;

use super::speaker::{Datagrams, carry_out, record};
use super::upstream::Upstream;
use super::{ReceivedCall, ScriptedReply};

/// Larger than any datagram.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;
/// Interval at which a thread that waits for datagrams checks for shutdown.
const LOOK: Duration = Duration::from_millis(50);

/// A server that answers as its script says. Dropping it closes its connections.
pub struct Scripted {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A call received by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Transaction id.
    pub xid: Xid,
    /// Program number.
    pub program: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Index of the connection.
    pub connection: usize,
}

/// A script and its counts of calls.
struct Script {
    says: Box<dyn FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send>,
    /// Calls so far, by program and procedure.
    calls: HashMap<(u32, u32), usize>,
}

impl Script {
    fn new(says: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) -> Self {
        Self { says: Box::new(says), calls: HashMap::new() }
    }
}

struct Shared {
    address: SocketAddr,
    behind: Mutex<SocketAddr>,
    script: Mutex<Script>,
    seen: Mutex<Vec<Seen>>,
    open: Mutex<Vec<(usize, TcpStream)>>,
    connections: AtomicUsize,
    ended: AtomicBool,
}

impl Scripted {
    /// Starts in front of the correct server at `behind`, on a free port, for TCP and UDP.
    pub fn start(
        behind: SocketAddr,
        script: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static,
    ) -> Self {
        Self::over(sockets(), behind, script)
    }

    /// Starts at this port, in front of the server at `behind`.
    ///
    /// # Panics
    /// If the port is in use.
    pub fn start_at(
        port: u16,
        behind: SocketAddr,
        script: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static,
    ) -> Self {
        let address = (Ipv4Addr::LOCALHOST, port);
        let listener = TcpListener::bind(address).expect("a free port");
        let datagrams = UdpSocket::bind(address).expect("a free port");
        Self::over((listener, datagrams), behind, script)
    }

    fn over(
        (listener, datagrams): (TcpListener, UdpSocket),
        behind: SocketAddr,
        script: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            address: listener.local_addr().expect("the server's address"),
            behind: Mutex::new(behind),
            script: Mutex::new(Script::new(script)),
            seen: Mutex::default(),
            open: Mutex::default(),
            connections: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let threads = vec![
            std::thread::spawn({
                let shared = shared.clone();
                move || accept(&shared, &listener)
            }),
            std::thread::spawn({
                let shared = shared.clone();
                move || serve_datagrams(&shared, &datagrams)
            }),
        ];
        Self { shared, threads }
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Replaces the script from the next call on and restarts the count of calls.
    pub fn now(&self, script: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) {
        *lock(&self.shared.script) = Script::new(script);
    }

    /// Replaces the script for one NFS procedure. Other calls are forwarded, except those of the side
    /// program, by which a client of a slow server writes, too: the server turns out not to have it.
    pub fn on(
        &self,
        procedure: Procedure,
        mut script: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static,
    ) {
        self.now(move |asked| if asked.is(procedure) { script(asked) } else { asked.without_side_program() });
    }

    /// Relays all calls from the next one on.
    pub fn be_honest(&self) {
        self.now(|_| ScriptedReply::Forward);
    }

    /// Replaces the correct server and resets all connections, as a restart would.
    pub fn replace(&self, behind: SocketAddr) {
        *lock(&self.shared.behind) = behind;
        self.reset_all();
    }

    /// Resets all connections.
    pub fn reset_all(&self) {
        for (_, stream) in lock(&self.shared.open).drain(..) {
            let _ = set_socket_linger(&stream, Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Returns all calls received so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// Returns the calls of an NFS procedure received so far.
    pub fn seen_of(&self, procedure: Procedure) -> Vec<Seen> {
        let mut seen = self.seen();
        seen.retain(|seen| seen.program == nfs3::PROGRAM && seen.procedure == procedure.number());
        seen
    }

    /// Returns the number of calls of an NFS procedure received so far.
    pub fn count_of(&self, procedure: Procedure) -> usize {
        self.seen_of(procedure).len()
    }

    /// Returns the number of calls of a procedure of the side program received so far.
    pub fn count_of_side(&self, procedure: side::Procedure) -> usize {
        let wanted = (side::PROGRAM, procedure.number());
        self.seen().iter().filter(|seen| (seen.program, seen.procedure) == wanted).count()
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.reset_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.shared.address);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.reset_all();
    }
}

impl Shared {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Records the call and runs the script.
    fn decide(&self, asked: &mut ReceivedCall<'_>) -> ScriptedReply {
        let ReceivedCall { xid, program, procedure, connection, .. } = *asked;
        lock(&self.seen).push(Seen { xid, program, procedure, connection });
        let script = &mut *lock(&self.script);
        let count = script.calls.entry((program, procedure)).or_default();
        *count += 1;
        asked.nth = *count;
        (script.says)(asked)
    }
}

/// Binds TCP and UDP sockets to one free port.
fn sockets() -> (TcpListener, UdpSocket) {
    for _ in 0..50 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("the port");
        if let Ok(datagrams) = UdpSocket::bind(address) {
            return (listener, datagrams);
        }
    }
    panic!("no port is free for both TCP and UDP");
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.has_ended() {
            return;
        }
        let index = shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = shared.clone();
        std::thread::spawn(move || serve(&shared, &stream, index));
    }
}

/// Serves a connection until either side ends it.
fn serve(shared: &Shared, stream: &TcpStream, index: usize) {
    let _ = stream.set_nodelay(true);
    let Ok(copy) = stream.try_clone() else { return };
    lock(&shared.open).push((index, copy));
    let mut behind = Upstream::new(*lock(&shared.behind));
    while let Ok(message) = record(stream) {
        let Some(mut asked) = ReceivedCall::read(&message, index) else { break };
        let say = shared.decide(&mut asked);
        if shared.has_ended() || carry_out(say, &asked, &mut behind, &mut &*stream).is_err() {
            break;
        }
    }
    // The copy for `reset_all` must not keep the connection open.
    lock(&shared.open).retain(|open| open.0 != index);
}

fn serve_datagrams(shared: &Shared, socket: &UdpSocket) {
    socket.set_read_timeout(Some(LOOK)).expect("a time-out");
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    while !shared.has_ended() {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        let message = buffer.get(..len).unwrap_or_default();
        let Some(mut asked) = ReceivedCall::read(message, 0) else { continue };
        let say = shared.decide(&mut asked);
        let mut behind = Upstream::new(*lock(&shared.behind));
        let _: io::Result<()> = carry_out(say, &asked, &mut behind, &mut Datagrams(socket, from));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
