//! Server of a control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tombolo_host_runtime::lock;
use tombolo_sys::{creds, socket};

use super::message::{CREATE, LINE_LIMIT_BYTES, Reply, Request, SET, Start};
use tombolo_host_runtime::listener::Listener;

/// Handler of requests. It must not block for long, because it occupies one of few connections.
pub trait Answers: Send + Sync {
    /// Returns the reply to a request; `None` for an unknown one. Called concurrently.
    fn answer(&self, request: &str) -> Option<Value>;

    /// Returns the reply to a request about a session; `None` for an unknown request.
    ///
    /// # Errors
    /// A message for users.
    fn answer_of_session(&self, _request: &str, session: &str) -> Option<Result<Value, String>> {
        Some(Err(format!("this server has no sessions, hence no session {session:?}")))
    }

    /// Creates a session.
    ///
    /// # Errors
    /// A message for users.
    fn create_session(&self, session: &str, _start: Start) -> Result<Value, String> {
        Err(format!("this server cannot create session {session:?}"))
    }

    /// Changes options, all or none of them, and returns their new values.
    ///
    /// # Errors
    /// A message for users.
    fn set(&self, options: &str) -> Result<Value, String> {
        Err(format!("this server cannot change options: {options:?}"))
    }
}

/// A running control server. Dropping it removes the socket, then closes the connections: a tool whose
/// connection has ended finds no socket, unless it connected while the server was being dropped.
pub struct Server {
    /// Listening socket, whose file is removed when the last reference is dropped; `None` once the server
    /// stops.
    listener: Option<Arc<Listener>>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `listener`, with one thread for accepting and one per connection, at most 16.
    pub fn start(listener: Listener, answers: Arc<dyn Answers>) -> io::Result<Self> {
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared {
            answers,
            connections: AtomicUsize::new(0),
            streams: Mutex::new(Some(Vec::new())),
        });
        let acceptor = {
            let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
            std::thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &shared))?
        };
        Ok(Self { listener: Some(listener), shared, acceptor: Some(acceptor) })
    }

    fn stop_listening(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        let woken = socket::shut_down(listener.socket());
        if let (Ok(()), Some(acceptor)) = (woken, self.acceptor.take()) {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let streams = lock(&self.shared.streams).take();
        self.stop_listening();
        for stream in streams.into_iter().flatten() {
            let _ = socket::shut_down(&*stream);
        }
    }
}

const CONNECTION_LIMIT: usize = 16;
const SEND_LIMIT: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Shared {
    answers: Arc<dyn Answers>,
    connections: AtomicUsize,
    /// Open connections; `None` once the server is stopping.
    streams: Mutex<Option<Vec<Arc<UnixStream>>>>,
}

impl Shared {
    /// Registers a connection; `None` if the server is stopping.
    fn add(&self, stream: UnixStream) -> Option<Arc<UnixStream>> {
        let stream = Arc::new(stream);
        let mut streams = lock(&self.streams);
        streams.as_mut()?.push(Arc::clone(&stream));
        self.connections.fetch_add(1, Ordering::Relaxed);
        Some(stream)
    }

    fn remove(&self, stream: &Arc<UnixStream>) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        let mut streams = lock(&self.streams);
        if let Some(streams) = streams.as_mut() {
            streams.retain(|other| !Arc::ptr_eq(other, stream));
        }
    }

    fn ended(&self) -> bool {
        lock(&self.streams).is_none()
    }
}

fn accept(listener: &Listener, shared: &Arc<Shared>) {
    loop {
        match listener.socket().accept() {
            Ok((stream, _)) => admit(stream, shared),
            Err(_) if shared.ended() => return,
            Err(error) => {
                // The cause may be a temporary lack of descriptors.
                tracing::warn!(%error, "cannot accept on the control socket");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn admit(mut stream: UnixStream, shared: &Arc<Shared>) {
    let refusal = match refusal(&stream, shared) {
        None => {
            let Some(stream) = shared.add(stream) else { return };
            let (running, handed) = (Arc::clone(shared), Arc::clone(&stream));
            let started = std::thread::Builder::new().name("control-peer".into()).spawn(move || {
                if let Err(error) = converse(&handed, &*running.answers) {
                    tracing::debug!(%error, "control connection ended");
                }
                running.remove(&handed);
            });
            if started.is_err() {
                shared.remove(&stream);
            }
            return;
        }
        Some(refusal) => refusal,
    };
    tracing::warn!(refusal, "control connection refused");
    let reply = Reply { error: Some(refusal.into()), ..Reply::default() };
    // This does not block: a new connection's buffer has space for the reply.
    let _ = send(&mut stream, &reply);
}

/// Returns the reason for refusing a peer, or `None` if it may connect.
fn refusal(stream: &UnixStream, shared: &Shared) -> Option<&'static str> {
    let Ok(peer) = socket::peer(stream.as_fd()) else {
        return Some("cannot read the credentials of the peer");
    };
    let (own_uid, _) = creds::own_ids();
    if peer.uid != own_uid && peer.uid != 0 {
        return Some("only the server's user and root may connect");
    }
    if shared.connections.load(Ordering::Relaxed) >= CONNECTION_LIMIT {
        return Some("too many connections");
    }
    None
}

fn converse(mut stream: &UnixStream, answers: &dyn Answers) -> io::Result<()> {
    stream.set_write_timeout(Some(SEND_LIMIT))?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.by_ref().take(LINE_LIMIT_BYTES as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            let error = Some(format!("a request is a line of at most {LINE_LIMIT_BYTES} bytes"));
            return send(&mut stream, &Reply { error, ..Reply::default() });
        }
        send(&mut stream, &reply_to(&line, answers))?;
    }
}

fn reply_to(line: &[u8], answers: &dyn Answers) -> Reply {
    match serde_json::from_slice::<Request>(line) {
        Err(error) => Reply { error: Some(format!("not a request: {error}")), ..Reply::default() },
        Ok(request) => {
            let id = request.id;
            let answer = answer_to(request, answers);
            Reply { id, error: answer.as_ref().err().cloned(), ok: answer.ok() }
        }
    }
}

fn answer_to(request: Request, answers: &dyn Answers) -> Result<Value, String> {
    let Request { request, options, session, start, .. } = request;
    let unknown = || format!("unknown request {request:?}");
    match (request.as_str(), options, session, start) {
        (SET, Some(options), None, None) => answers.set(&options),
        (SET, ..) => Err("no options given".into()),
        (CREATE, None, Some(session), Some(start)) => answers.create_session(&session, start),
        (CREATE, ..) => Err("the session or its parameters are missing".into()),
        (_, Some(_), ..) => Err(format!("{request:?} takes no options")),
        (.., Some(_)) => Err(format!("{request:?} takes no session parameters")),
        (_, None, Some(session), None) => {
            answers.answer_of_session(&request, &session).unwrap_or_else(|| Err(unknown()))
        }
        (_, None, None, None) => answers.answer(&request).ok_or_else(unknown),
    }
}

fn send(stream: &mut impl Write, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{AskError, Client};
    use super::*;

    struct Parrot;

    impl Answers for Parrot {
        fn answer(&self, request: &str) -> Option<Value> {
            (request != "nothing").then(|| json!({ "said": request }))
        }

        fn set(&self, options: &str) -> Result<Value, String> {
            if options == "too=much" { Err("that is too much".into()) } else { Ok(json!({ "set": options })) }
        }
    }

    fn serve(dir: &tempfile::TempDir) -> (Server, std::path::PathBuf) {
        let path = dir.path().join("control.sock");
        let listener = Listener::bind(&path, 0o600).expect("bind");
        (Server::start(listener, Arc::new(Parrot)).expect("start"), path)
    }

    #[test]
    fn a_tool_asks_and_is_answered() {
        let dir = tempfile::tempdir().expect("a directory");
        let (server, path) = serve(&dir);
        let mut client = Client::connect(&path).expect("connect");
        for word in ["one", "two"] {
            assert_eq!(client.ask(word).expect("an answer"), json!({ "said": word }));
        }
        assert!(matches!(client.ask("nothing"), Err(AskError::Refused { .. })));
        assert_eq!(client.set("a=b").expect("an answer"), json!({ "set": "a=b" }));
        let refused = client.set("too=much").expect_err("refused");
        assert_eq!(refused.to_string(), "the server refused: that is too much");
        assert!(matches!(client.ask("set"), Err(AskError::Refused { .. })));
        drop(server);
        assert!(client.ask("three").is_err());
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_is_gone_when_a_connection_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        for _ in 0..50 {
            let (server, path) = serve(&dir);
            let mut stream = UnixStream::connect(&path).expect("connect");
            stream.write_all(b"{\"request\":\"x\"}\n").expect("ask");
            let mut reply = BufReader::new(&stream);
            reply.read_line(&mut String::new()).expect("an answer");
            let dropping = std::thread::spawn(move || drop(server));
            reply.read_to_end(&mut Vec::new()).expect("the end");
            assert!(!path.exists());
            dropping.join().expect("dropped");
        }
    }

    #[test]
    fn malformed_control_request_gets_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_server, path) = serve(&dir);
        let mut endless = UnixStream::connect(&path).expect("connect");
        endless.write_all(&[b'{'; 2 * LINE_LIMIT_BYTES]).expect("write");
        let mut said = String::new();
        let _ = endless.read_to_string(&mut said);
        assert!(said.contains("at most 65536 bytes"), "{said}");

        let mut odd = UnixStream::connect(&path).expect("connect");
        odd.write_all(b"\xff\n[]\n{\"request\":7}\n{\"id\":9,\"request\":\"x\"}\n").expect("write");
        let replies: Vec<String> =
            BufReader::new(&odd).lines().take(4).map(|line| line.expect("a line")).collect();
        assert!(replies[..3].iter().all(|reply| reply.contains("not a request")), "{replies:?}");
        assert_eq!(replies[3], r#"{"id":9,"ok":{"said":"x"}}"#);
    }

    #[test]
    fn the_seventeenth_connection_is_refused_until_one_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_server, path) = serve(&dir);
        let mut clients: Vec<_> = (0..CONNECTION_LIMIT)
            .map(|_| {
                let mut client = Client::connect(&path).expect("connect");
                client.ask("here?").expect("an answer");
                client
            })
            .collect();
        let turned_away = |mut client: Client| client.ask("here?").is_err();
        assert!(turned_away(Client::connect(&path).expect("connect")));
        clients.pop();
        for _ in 0..200 {
            if !turned_away(Client::connect(&path).expect("connect")) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("a place that was given up stays taken");
    }
}
