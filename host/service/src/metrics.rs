//! Metrics over HTTP for Prometheus: `GET /metrics` only.
//!
//! Non-goals: selection and format of the metrics; the caller provides the text.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tombolo_host_runtime::lock;
use tombolo_sys::socket;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum State {
    Idle,
    /// The server answers a request; this is a duplicate of the connection, for closing it.
    Serving(TcpStream),
    Stopping,
}

impl Server {
    /// Serves `text`, one request at a time, which suffices for scrapers; a slow client delays others for at
    /// most 2 seconds.
    pub fn start(listener: TcpListener, text: impl Fn() -> String + Send + 'static) -> io::Result<Self> {
        let listener = Arc::new(listener);
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::Idle));
        let thread = {
            let (listener, state) = (Arc::clone(&listener), Arc::clone(&state));
            let serve = move || {
                let is_stopping = || matches!(*lock(&state), State::Stopping);
                while !is_stopping() {
                    match listener.accept() {
                        Ok((stream, _)) => serve(&stream, &state, &text),
                        Err(_) if is_stopping() => break,
                        Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                    }
                }
            };
            std::thread::Builder::new().name("metrics".into()).spawn(serve)?
        };
        Ok(Self { listener, address, state, thread: Some(thread) })
    }

    /// Returns the address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let State::Serving(stream) = mem::replace(&mut *lock(&self.state), State::Stopping) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // A thread that could not be woken is not joined: it blocks in accept(2) until the next client.
        let woken = socket::shut_down(&*self.listener);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Pause after a failed accept(2), for instance for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum duration of a request; longer in tests, which assert that something takes a fraction of it.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 2 });
const HEAD_LIMIT_BYTES: u64 = 8192;
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

fn serve(stream: &TcpStream, state: &Mutex<State>, text: &impl Fn() -> String) {
    let answered = stream.try_clone().and_then(|second| {
        match &mut *lock(state) {
            State::Stopping => return Ok(()),
            idle => *idle = State::Serving(second),
        }
        answer(Timed { stream, end: Instant::now() + TIMEOUT }, text)
    });
    if let Err(error) = answered {
        tracing::debug!(%error, "metrics connection ended");
    }
    let mut state = lock(state);
    if let State::Serving(_) = *state {
        *state = State::Idle;
    }
}

/// A stream with a deadline for all operations together.
#[derive(Clone, Copy)]
struct Timed<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl Timed<'_> {
    fn remaining(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            remaining => Ok(Some(remaining)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.remaining()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.remaining()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Reads and answers one request. The whole head, up to 8 KiB, is read, because closing before would reset
/// the connection (RFC 9112 §9.6).
fn answer(mut stream: Timed<'_>, text: &impl Fn() -> String) -> io::Result<()> {
    let mut head = BufReader::new(stream).take(HEAD_LIMIT_BYTES);
    let mut request = String::new();
    head.read_line(&mut request)?;
    let mut line = String::new();
    while head.read_line(&mut line)? > 2 {
        line.clear();
    }
    let (status, body) = respond(&request, text);
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}");
    write!(stream, "{head}\r\nConnection: close\r\n\r\n{body}")
}

fn respond(request: &str, text: &impl Fn() -> String) -> (&'static str, String) {
    let mut words = request.split_ascii_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(target), Some(_)) if path_of(target) == "/metrics" => ("200 OK", text()),
        (Some("GET"), Some(_), Some(_)) => ("404 Not Found", String::new()),
        (Some(_), Some(_), Some(_)) => ("405 Method Not Allowed", String::new()),
        _ => ("400 Bad Request", String::new()),
    }
}

fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).expect("connect");
        stream.write_all(request.as_bytes()).expect("write");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("read");
        said
    }

    #[test]
    fn a_scraper_gets_the_text_and_others_a_status() {
        let server = started();
        let answer = ask(&server, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\ntombolo_up 1\n"), "{answer}");
        assert!(ask(&server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&server, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(&server, "hello\r\n\r\n").starts_with("HTTP/1.1 400"));
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn idle_server_stops_at_once() {
        let stop = || {
            let idle = started();
            // Until it waits for a client.
            std::thread::sleep(Duration::from_millis(20));
            let begun = Instant::now();
            drop(idle);
            begun.elapsed()
        };
        let fastest = (0..5).map(|_| stop()).min().expect("some");
        assert!(fastest < ACCEPT_PAUSE, "{fastest:?}");
    }

    fn started() -> Server {
        let any_port = TcpListener::bind("127.0.0.1:0").expect("a port");
        Server::start(any_port, || "tombolo_up 1\n".into()).expect("start")
    }

    #[test]
    fn slow_scrape_delays_the_next_boundedly() {
        let server = started();
        let mut slow = TcpStream::connect(server.address()).expect("connect");
        slow.write_all(b"G").expect("write");
        let begun = Instant::now();
        let drips = std::thread::spawn(move || {
            // Until it is disconnected.
            while slow.write_all(b"E").is_ok() && begun.elapsed() < 3 * TIMEOUT {
                std::thread::sleep(TIMEOUT / 10);
            }
        });
        let answer = ask(&server, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(begun.elapsed() < 2 * TIMEOUT, "{:?}", begun.elapsed());
        drips.join().expect("it was cut off");
    }

    #[test]
    fn the_end_waits_for_no_request() {
        let server = started();
        let mut slow = TcpStream::connect(server.address()).expect("connect");
        slow.write_all(b"GET /metrics").expect("write");
        while !matches!(*lock(&server.state), State::Serving(_)) {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        drop(server);
        assert!(begun.elapsed() < TIMEOUT / 2, "{:?}", begun.elapsed());
    }
}
