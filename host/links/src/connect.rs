//! Connecting to a link server over its socket: [`connect`] exchanges hello and welcome with the memory of
//! both sides, [`Connection::start`] makes the [`Line`] and has the socket watched.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{
    Agreement, Ends, Extent, Features, Goodbye, Hello, Incarnation, Layout, LayoutError, MESSAGE_BYTES_MAX,
    Message, MessageError, Protocol, Refused, Role, Welcome, WelcomeError,
};
use tombolo_shm::region::RegionError;
use tombolo_shm::region::sealed::{self, Sealed};
use tombolo_shm::window::WindowReader;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_sys::{Errno, packet, socket};

use super::client::{Line, StartError};
use super::control_socket::{ControlSocket, Descriptors, Handler, Watcher};
use super::end::{EndReason, ProtocolError};
use super::forwarding::RegionForwarder;
use super::heartbeat::Heartbeat;
use super::welcome::goodbye;

/// Parameters of a connection.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Export name; empty for the only one.
    pub export: String,
    /// Name of this client in the server's log.
    pub label: String,
    /// Incarnation of this client, the same for all links of a process.
    pub client: Incarnation,
    /// Protocol spoken over the link.
    pub protocol: Protocol,
    /// Extensions that this client supports; the link gets those that the server supports too.
    pub offered: Features,
    /// Extensions without which this client makes no link: a server that lacks one refuses it.
    pub required: Features,
    /// Maximum layout; the server may grant less.
    pub layout: Layout,
    /// Time-out for the server's answer.
    pub timeout: Duration,
    /// Longest silence of the server's heartbeat before the link ends; `None`: the client waits forever,
    /// because a stopped server may continue.
    pub silence_max: Option<Duration>,
}

impl ConnectOptions {
    /// Returns the defaults: 64 slots, 8 MiB per side, vrpc, ten seconds, all extensions, none of them
    /// required.
    pub fn new(export: &str, label: &str, client: Incarnation) -> Result<ConnectOptions, LayoutError> {
        Ok(ConnectOptions {
            export: export.into(),
            label: label.into(),
            client,
            protocol: Protocol::Vrpc,
            offered: Features::SUPPORTED,
            required: Features::empty(),
            layout: Layout::new(64, 8, 8 << 20)?,
            timeout: Duration::from_secs(10),
            silence_max: None,
        })
    }
}

/// Reason why a connection failed.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No server is listening; one may start later.
    #[error("{}: no server is listening", path.display())]
    Away {
        /// Socket path.
        path: PathBuf,
    },
    /// The path names a socket of another type, or a file that is no socket.
    #[error("{}: not a link socket", path.display())]
    NotALinkSocket {
        /// Socket path.
        path: PathBuf,
    },
    /// The server refused the link.
    #[error("{}: {refused}", path.display())]
    Refused {
        /// Socket path.
        path: PathBuf,
        /// The server's reason.
        #[source]
        refused: Refused,
    },
    /// The server did not answer in time.
    #[error("{}: the server does not answer", path.display())]
    Silent {
        /// Socket path.
        path: PathBuf,
    },
    /// The server closed the socket without an answer: it has ended, or has too many links.
    #[error("{}: the server closed the connection", path.display())]
    Closed {
        /// Socket path.
        path: PathBuf,
    },
    /// The answer is invalid.
    #[error("{}: {fault}", path.display())]
    Answer {
        /// Socket path.
        path: PathBuf,
        /// Fault of the answer.
        #[source]
        fault: AnswerFault,
    },
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Socket path.
        path: PathBuf,
        /// System error.
        #[source]
        source: io::Error,
    },
    /// Local memory could not be allocated.
    #[error("cannot allocate shared memory")]
    Memory(#[source] RegionError),
}

/// Fault of an answer to a hello.
#[derive(Debug, Error)]
pub enum AnswerFault {
    /// The answer is malformed.
    #[error("malformed server reply")]
    Message(#[from] MessageError),
    /// The message is no answer to a hello.
    #[error("unexpected server reply")]
    Other,
    /// The answer does not match the hello.
    #[error("invalid server reply")]
    Welcome(#[from] WelcomeError),
    /// The number of descriptors is wrong: one is required, and one more with a window.
    #[error("server reply with {count} descriptors, not the number that it announces")]
    Descriptors {
        /// Number of descriptors received.
        count: usize,
    },
    /// The server's memory does not meet the requirements.
    #[error("invalid server memory")]
    Memory(#[from] RegionError),
}

/// A new link, not in use yet.
#[derive(Debug)]
pub struct Connection {
    /// Parameters that result from the hello and the server's limits.
    pub agreement: Agreement,
    /// Memory of both sides, as seen by the client.
    pub ends: Ends,
    /// The server's window, if the server sent one.
    pub window: Option<WindowReader>,
    socket: OwnedFd,
    silence_max: Option<Duration>,
    /// User of the server's process.
    user: u32,
}

/// Requests a link from the server listening at `path`. Blocks until the server answers, at most for
/// `options.timeout`.
pub fn connect(path: &Path, options: &ConnectOptions) -> Result<Connection, ConnectError> {
    let io = |source: io::Error| ConnectError::Io { path: path.to_owned(), source };
    let answer = |fault| ConnectError::Answer { path: path.to_owned(), fault };
    let own = Sealed::create("tombolo-client", options.layout.bytes()).map_err(ConnectError::Memory)?;
    let hello = hello(options, Features::IN_FILES);
    let until = Instant::now() + options.timeout;
    let socket = dial(path, until)?;
    // Ignored: a server that refuses at once may have closed the socket; its answer can still be received.
    let _ = packet::send(&socket, &Message::Hello(hello.clone()).encode(), &[own.as_fd()]);
    let (welcome, memory, window) = receive(path, &socket, until)?;
    let agreement = hello.check(&welcome).map_err(|error| answer(error.into()))?;
    let window = window.map(WindowReader::map).transpose().map_err(|error| answer(error.into()))?;
    let theirs = sealed::map_peer(memory, agreement.layout.bytes()).map_err(|error| answer(error.into()))?;
    let ends = agreement.ends(Role::Client, Extent::whole(own.region().clone()), Extent::whole(theirs));
    // Local memory is at least as large as the layout granted.
    agreement
        .header(Role::Client, options.client)
        .format(&ends.own)
        .map_err(|error| io(io::Error::other(error)))?;
    let peer = socket::peer(socket.as_fd()).map_err(|error| io(error.into()))?;
    let silence_max = options.silence_max;
    Ok(Connection { agreement, ends, window, socket, silence_max, user: peer.uid })
}

impl Connection {
    /// Starts to use the link. `mode` selects how callers wait for answers, `label` names the link in
    /// messages. The [`Line`] ends with the socket; if the line ends first, the server is sent a goodbye.
    /// Dropping the [`ControlSocket`] ends the link in order.
    pub fn start(
        self,
        watcher: &Watcher,
        label: impl Into<Arc<str>>,
        mode: Mode,
    ) -> Result<(Line, ControlSocket), StartError> {
        let line = Line::start(&self.ends, label, mode)?;
        if let Some(window) = self.window {
            line.set_window(window);
        }
        let heartbeat = Heartbeat::new(&self.ends, Instant::now());
        let silence_max = self.silence_max.map(|silence| silence.max(SILENCE_MIN));
        let handler = ClientHandler { line: line.clone(), heartbeat, silence_max, end: EndReason::Stopped };
        let handler = Box::new(handler);
        let control_socket = watcher.watch(self.socket, handler).map_err(StartError::Thread)?;
        line.on_end(watcher.tick_fn());
        if self.agreement.features.contains(Features::FORWARDED_REGIONS) {
            line.set_forwarder(RegionForwarder::new(control_socket.sender(), self.user));
        }
        Ok((line, control_socket))
    }
}

/// Lower bound of [`ConnectOptions::silence_max`]: a heartbeat may be a second late.
const SILENCE_MIN: Duration = Duration::from_secs(3);

/// The client's handler of a link control socket. Dropping it cuts the line, whichever side ended the link.
struct ClientHandler {
    line: Line,
    heartbeat: Heartbeat,
    silence_max: Option<Duration>,
    /// Reason with which the line is cut when this is dropped.
    end: EndReason,
}

impl Handler for ClientHandler {
    fn tick(&mut self, now: Instant) -> Option<Goodbye> {
        // A slow server answers late, and the socket of a dead one is closed, so the heartbeat matters only
        // if `silence_max` is set.
        let _ = self.heartbeat.tick(now);
        let is_silent = self.silence_max.is_some_and(|max| self.heartbeat.silence() >= max);
        // The line is cut when this handler is dropped, because cutting runs tasks, which must not happen
        // while the watcher is locked.
        let fault = || self.heartbeat.fault().or(is_silent.then_some(EndReason::Silent));
        self.end = self.line.end().or_else(fault)?;
        Some(goodbye(&self.end))
    }

    fn received(&mut self, message: &Message, _: Descriptors) -> Result<Option<Message>, ProtocolError> {
        match (message, self.line.forwarder()) {
            (Message::RegionForwarded(answer), Some(forwarder)) => forwarder.answered(*answer).map(|()| None),
            _ => Err(ProtocolError::Malformed("unexpected message on the link control socket".into())),
        }
    }

    fn ended(mut self: Box<Self>, end: EndReason) {
        self.end = end;
    }
}

impl Drop for ClientHandler {
    fn drop(&mut self) {
        self.line.cut(std::mem::replace(&mut self.end, EndReason::Stopped));
    }
}

/// Delay before connecting again to a listener whose backlog is full.
const CROWD_PAUSE: Duration = Duration::from_millis(5);

fn dial(path: &Path, until: Instant) -> Result<OwnedFd, ConnectError> {
    loop {
        match packet::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(CROWD_PAUSE),
            Err(Errno::AGAIN) => return Err(ConnectError::Silent { path: path.to_owned() }),
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                return Err(ConnectError::Away { path: path.to_owned() });
            }
            Err(Errno::PROTOTYPE | Errno::NOTSOCK) => {
                return Err(ConnectError::NotALinkSocket { path: path.to_owned() });
            }
            Err(error) => return Err(ConnectError::Io { path: path.to_owned(), source: error.into() }),
        }
    }
}

/// Returns the hello for those options, without the extensions in `unusable`.
pub(super) fn hello(options: &ConnectOptions, unusable: Features) -> Hello {
    let layout = options.layout;
    Hello {
        offered: (options.offered | options.required).difference(unusable),
        required: options.required,
        protocol: Some(options.protocol),
        export: options.export.clone(),
        label: options.label.clone(),
        ..Hello::new(options.client, layout.slots(), layout.back_slots(), layout.bytes())
    }
}

fn receive(
    path: &Path,
    socket: &OwnedFd,
    until: Instant,
) -> Result<(Welcome, OwnedFd, Option<OwnedFd>), ConnectError> {
    let io = |error: Errno| ConnectError::Io { path: path.to_owned(), source: error.into() };
    let answer = |fault| ConnectError::Answer { path: path.to_owned(), fault };
    let epoll = Epoll::new().map_err(io)?;
    epoll.add(socket, 0, Interest::Readable).map_err(io)?;
    let mut events = Vec::new();
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let packet = loop {
        match packet::receive(socket.as_fd(), &mut buffer) {
            Ok(packet) => break packet,
            // The server closed without reading the hello; messages that it sent before can still be
            // received.
            Err(Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ConnectError::Silent { path: path.to_owned() });
                }
                epoll.wait(&mut events, Some(left)).map_err(io)?;
            }
            Err(error) => return Err(io(error)),
        }
    };
    let bytes = buffer.get(..packet.len).unwrap_or_default();
    if bytes.is_empty() {
        return Err(ConnectError::Closed { path: path.to_owned() });
    }
    let count = packet.descriptors.len();
    let mut descriptors = packet.descriptors.into_iter();
    match Message::decode(bytes).map_err(|error| answer(error.into()))? {
        Message::Refused(refused) => Err(ConnectError::Refused { path: path.to_owned(), refused }),
        Message::Welcome(welcome) => {
            let is_with_window = welcome.features.contains(Features::WINDOW);
            match (descriptors.next(), descriptors.next()) {
                (Some(memory), window) if count == 1 + usize::from(is_with_window) => {
                    Ok((welcome, memory, window))
                }
                _ => Err(answer(AnswerFault::Descriptors { count })),
            }
        }
        _ => Err(answer(AnswerFault::Other)),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Sender};
    use std::task::{Context, Wake, Waker};

    use tombolo_mem::Region;

    use super::*;
    use tombolo_host_runtime::lock;

    /// A task that owns the last handle of a link, drops it when it is woken, and reports that.
    struct Last(Mutex<Option<ControlSocket>>, Sender<()>);

    impl Wake for Last {
        fn wake(self: Arc<Self>) {
            drop(lock(&self.0).take());
            let _ = self.1.send(());
        }
    }

    #[test]
    fn task_woken_by_cut_may_drop_link() {
        let layout = Layout::with_bulk(8, 8, 0).expect("a layout");
        let file = tempfile::tempfile().expect("a file");
        file.set_len(layout.bytes()).expect("its size");
        let (mut ends, _) = Ends::in_memory(layout);
        let len = usize::try_from(layout.bytes()).expect("small");
        ends.own = Extent::whole(Region::map(&file, 0, len).expect("mapped"));
        let line = Line::start(&ends, "test", Mode::Event).expect("a line");
        let (socket, _server) = packet::pair().expect("a pair");
        let watcher = Watcher::start().expect("a watcher");
        let heartbeat = Heartbeat::new(&ends, Instant::now());
        let handler =
            ClientHandler { line: line.clone(), heartbeat, silence_max: None, end: EndReason::Stopped };
        let control_socket = watcher.watch(socket, Box::new(handler)).expect("watched");
        let (sender, woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(Last(Mutex::new(Some(control_socket)), sender)));
        let mut call = line.call(1, [0; 48], |_| {});
        assert!(std::pin::Pin::new(&mut call).poll(&mut Context::from_waker(&waker)).is_pending());
        // The next tick detects the loss, on the watcher's thread.
        file.set_len(0).expect("truncated");
        assert_eq!(woken.recv_timeout(Duration::from_secs(20)), Ok(()));
        assert!(matches!(line.end(), Some(EndReason::Failed(_))), "{:?}", line.end());
    }
}
