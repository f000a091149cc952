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

/// A running endpoint. Dropping it stops it.
#[derive(Debug)]
pub struct Endpoint {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    connection: Arc<Mutex<Connection>>,
    server: Option<JoinHandle<()>>,
}

/// The connection being served.
#[derive(Debug)]
enum Connection {
    None,
    /// Duplicate of the connection, for closing it.
    Open(TcpStream),
    /// The endpoint is stopping.
    Ended,
}

impl Endpoint {
    /// Serves `text`, one request at a time, which suffices for scrapers; a slow client delays others for at
    /// most 2 seconds.
    pub fn start(listener: TcpListener, text: impl Fn() -> String + Send + 'static) -> io::Result<Self> {
        let listener = Arc::new(listener);
        let address = listener.local_addr()?;
        let connection = Arc::new(Mutex::new(Connection::None));
        let server = {
            let (listener, connection) = (Arc::clone(&listener), Arc::clone(&connection));
            let serve = move || {
                let is_stopping = || matches!(*lock(&connection), Connection::Ended);
                while !is_stopping() {
                    match listener.accept() {
                        Ok((stream, _)) => serve(&stream, &connection, &text),
                        Err(_) if is_stopping() => break,
                        Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                    }
                }
            };
            std::thread::Builder::new().name("metrics".into()).spawn(serve)?
        };
        Ok(Self { listener, address, connection, server: Some(server) })
    }

    /// Returns the address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Connection::Open(stream) = mem::replace(&mut *lock(&self.connection), Connection::Ended) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let woken = socket::shut_down(&*self.listener);
        if let (Ok(()), Some(server)) = (woken, self.server.take()) {
            let _ = server.join();
        }
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum duration of a request. Tests assert fractions of it, so theirs is longer.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 2 });
const HEAD_LIMIT_BYTES: u64 = 8192;

fn serve(stream: &TcpStream, connection: &Mutex<Connection>, text: &impl Fn() -> String) {
    let answered = stream.try_clone().and_then(|second| {
        match &mut *lock(connection) {
            Connection::Ended => return Ok(()),
            open => *open = Connection::Open(second),
        }
        answer(Timed { stream, end: Instant::now() + TIMEOUT }, text)
    });
    if let Err(error) = answered {
        tracing::debug!(%error, "metrics connection ended");
    }
    let mut connection = lock(connection);
    if let Connection::Open(_) = *connection {
        *connection = Connection::None;
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

/// Reads and answers one request. The whole head is read, because closing before would reset the connection
/// (RFC 9112 §9.6).
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
    let length_and_type = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length";
    write!(stream, "HTTP/1.1 {status}\r\n{length_and_type}: {length}\r\nConnection: close\r\n\r\n{body}")
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

    fn ask(endpoint: &Endpoint, request: &str) -> String {
        let mut stream = TcpStream::connect(endpoint.address()).expect("connect");
        stream.write_all(request.as_bytes()).expect("write");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("read");
        said
    }

    #[test]
    fn a_scraper_gets_the_text_and_others_a_status() {
        let endpoint = endpoint();
        let answer = ask(&endpoint, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\ntombolo_up 1\n# EOF\n"), "{answer}");
        assert!(ask(&endpoint, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&endpoint, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(&endpoint, "hello\r\n\r\n").starts_with("HTTP/1.1 400"));
        let address = endpoint.address();
        drop(endpoint);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn idle_server_stops_at_once() {
        let stop = || {
            let idle = endpoint();
            let begun = Instant::now();
            drop(idle);
            begun.elapsed()
        };
        let fastest = (0..20).map(|_| stop()).min().expect("some");
        assert!(fastest < ACCEPT_PAUSE, "{fastest:?}");
    }

    fn endpoint() -> Endpoint {
        let any_port = TcpListener::bind("127.0.0.1:0").expect("a port");
        Endpoint::start(any_port, || "tombolo_up 1\n# EOF\n".into()).expect("start")
    }

    #[test]
    fn slow_scrape_delays_the_next_boundedly() {
        let endpoint = endpoint();
        let mut slow = TcpStream::connect(endpoint.address()).expect("connect");
        slow.write_all(b"G").expect("write");
        let begun = Instant::now();
        let drips = std::thread::spawn(move || {
            // Until it is disconnected.
            while slow.write_all(b"E").is_ok() && begun.elapsed() < 3 * TIMEOUT {
                std::thread::sleep(TIMEOUT / 10);
            }
        });
        let answer = ask(&endpoint, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(begun.elapsed() < 2 * TIMEOUT, "{:?}", begun.elapsed());
        drips.join().expect("it was cut off");
    }

    #[test]
    fn the_end_waits_for_no_request() {
        let endpoint = endpoint();
        let mut slow = TcpStream::connect(endpoint.address()).expect("connect");
        slow.write_all(b"GET /metrics").expect("write");
        while !matches!(*lock(&endpoint.connection), Connection::Open(_)) {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        drop(endpoint);
        assert!(begun.elapsed() < TIMEOUT / 2, "{:?}", begun.elapsed());
    }
}
