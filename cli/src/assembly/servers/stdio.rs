//! NFS over standard input and output, connected by ssh(1).
//!
//! A client has several connections, each of which starts a process on this host, and a request repeated over
//! another connection must be recognised. Therefore one process serves: the first to listen at a socket in
//! the state directory; the socket's name is a hash of all options. The server runs until the last
//! connection, of its own or another process, is closed. The other processes copy bytes between their streams
//! and that socket. A process with other options finds no such socket, and fails because the state directory
//! is in use.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IsTerminal, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tombolo_front_nfs_server::NfsServer;
use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_host_runtime::listener::{ListenError, Listener};
use tombolo_host_runtime::{lock, signals, time_slices};
use tombolo_host_service::state_dir::StateDir;
use tombolo_sys::{process, socket};

use super::state::state_path;
use super::{Prepared, Server};
use crate::assembly::plan::Plan;
use crate::failure::{Failure, OrCannot, Outcome};

const SERVING: &str = "serve NFS over standard input and output";

/// Interval between checks for connections.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Delay before a server that is ending is tried again, and after a failed accept.
const RETRY: Duration = Duration::from_millis(20);

/// Greeting of the server to a process that joins it.
const WELCOME: [u8; 1] = [b'+'];

const PIECE_BYTES: usize = 256 << 10;

const OWNER_ONLY: u32 = 0o600;

/// Address of all callers: they count as one client of this host.
const CALLER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Serves one connection, and those of other processes if no server existed.
pub fn serve(plan: &Plan) -> Outcome {
    if io::stdin().is_terminal() {
        let problem = format!("cannot {SERVING}: it is a terminal");
        return Err(Failure::usage(problem).remedy("let ssh start it: tombolo ls nfs+ssh://HOST/PATH"));
    }
    // This call raises the limit on open files, so it precedes them.
    DescriptorBudget::of_process();
    let null = File::options().read(true).write(true).open("/dev/null").or_cannot(SERVING)?;
    let (input, output) = process::take_standard_streams(null).map_err(io::Error::from).or_cannot(SERVING)?;
    let streams = Streams { input: input.into(), output: output.into() };
    let place = place(plan)?;
    loop {
        if let Some(joined) = joined(&place) {
            return streams.carry(&joined).or_cannot(SERVING);
        }
        match Listener::bind(&place, OWNER_ONLY) {
            Ok(listener) => return serve_all(plan, &listener, streams),
            Err(ListenError::Busy { .. }) => thread::sleep(RETRY),
            Err(error) => {
                return Err(
                    Failure::cannot(SERVING, &error).remedy("choose another directory with --state DIR")
                );
            }
        }
    }
}

/// Returns the socket path for these options. Other versions of the program may use another path.
fn place(plan: &Plan) -> Result<PathBuf, Failure> {
    let dir = state_path(plan.state.as_deref())?;
    StateDir::open(&dir).or_cannot(SERVING)?;
    let mut options = DefaultHasher::new();
    format!("{plan:?}").hash(&mut options);
    Ok(dir.join(format!("stdio-{:016x}", options.finish())))
}

/// Connects to the server at the socket. Returns `None` if there is none or it is ending.
fn joined(place: &Path) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(place).ok()?;
    stream.read_exact(&mut WELCOME.clone()).ok()?;
    Some(stream)
}

/// Serves all connections; `streams` are those of this process.
fn serve_all(plan: &Plan, listener: &Listener, streams: Streams) -> Outcome {
    time_slices::request_short_slices();
    let prepared = Prepared::open(plan)?;
    let (stop, stopped) = mpsc::channel();
    signals::on_stop(move |signal| {
        let _ = stop.send(signal);
    })
    .or_cannot(SERVING)?;
    let mut server = Server::start(prepared, plan)?;
    let door = Door(Mutex::new(server.serving.stdio()));
    let (ours, served) = UnixStream::pair().or_cannot(SERVING)?;
    door.admit(served);
    thread::Builder::new().name("stdio".into()).spawn(move || streams.carry(&ours)).or_cannot(SERVING)?;
    thread::scope(|scope| {
        scope.spawn(|| door.welcome_all(listener));
        while matches!(stopped.recv_timeout(LOOK_EVERY), Err(RecvTimeoutError::Timeout)) {
            if door.close_if_unused() {
                break;
            }
        }
        door.close();
        let ended = server.end();
        // The socket is shut down last, so that processes that connect meanwhile retry until the state is
        // free for the next server.
        drop(server);
        let _ = socket::shut_down(listener.socket());
        ended
    })
}

/// Entry of new connections; `None` once it is closed.
struct Door(Mutex<Option<Arc<NfsServer>>>);

impl Door {
    fn admit(&self, stream: UnixStream) {
        if let Some(server) = &*lock(&self.0) {
            server.adopt(stream.into(), CALLER);
        }
    }

    /// Accepts connections until the socket is shut down.
    fn welcome_all(&self, listener: &Listener) {
        loop {
            let caller = listener.socket().accept();
            let server = lock(&self.0);
            match (caller, &*server) {
                (Ok((mut stream, _)), Some(server)) => {
                    if stream.write_all(&WELCOME).is_ok() {
                        server.adopt(stream.into(), CALLER);
                    }
                }
                // Without a greeting, the caller retries with the next server.
                (Ok(_), None) => {}
                (Err(_), None) => return,
                (Err(error), Some(_)) => {
                    drop(server);
                    tracing::warn!(%error, "cannot accept connections");
                    thread::sleep(RETRY);
                }
            }
        }
    }

    /// Closes the entry if no connection is left; returns `true` if so.
    fn close_if_unused(&self) -> bool {
        let mut server = lock(&self.0);
        let is_unused = server.as_ref().is_none_or(|server| server.counts().connections == 0);
        if is_unused {
            *server = None;
        }
        is_unused
    }

    fn close(&self) {
        *lock(&self.0) = None;
    }
}

/// Standard input and output of the process.
struct Streams {
    input: File,
    output: File,
}

impl Streams {
    /// Copies bytes both ways until the server sends no more or the output is closed.
    fn carry(self, connection: &UnixStream) -> io::Result<()> {
        let Self { input, output } = self;
        let inwards = connection.try_clone()?;
        // The thread is not joined: the input may never end.
        thread::Builder::new().name("stdin".into()).spawn(move || {
            copy(&input, &inwards);
            let _ = inwards.shutdown(Shutdown::Write);
        })?;
        copy(connection, &output);
        connection.shutdown(Shutdown::Both)
    }
}

/// Copies until either side ends. Unlike `io::copy`, does not splice(2), which locks a pipe while it waits.
fn copy(mut from: impl Read, mut to: impl Write) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = match from.read(&mut piece) {
            Ok(count @ 1..) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            _ => return,
        };
        if piece.get(..count).is_none_or(|piece| to.write_all(piece).is_err()) {
            return;
        }
    }
}
