//! Metrics over HTTP, for Prometheus: `GET /metrics`, and nothing else.
//!
//! Not here: which metrics there are and how they are written; the caller hands in the text.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tombolo_sys::socket;

/// A running endpoint. Dropping it ends it.
#[derive(Debug)]
pub struct Endpoint {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Serves `text` at `address`, one request at a time: a scraper needs no more, and a slow one holds up only the next,
    /// for at most 2 seconds.
    pub fn start(address: SocketAddr, text: impl Fn() -> String + Send + 'static) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind(address)?);
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let server = {
            let (listener, ended) = (Arc::clone(&listener), Arc::clone(&ended));
            let serve = move || {
                while !ended.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => serve(&stream, &text),
                        Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                    }
                }
            };
            std::thread::Builder::new().name("metrics".into()).spawn(serve)?
        };
        Ok(Self { listener, address, ended, server: Some(server) })
    }

    /// Where it listens: the port is a real one even if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let woken = socket::shut_down(&*self.listener);
        if let (Ok(()), Some(server)) = (woken, self.server.take()) {
            let _ = server.join();
        }
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(2);
const HEAD_LIMIT_BYTES: u64 = 8192;

fn serve(stream: &TcpStream, text: &impl Fn() -> String) {
    if let Err(error) = answer(stream, text) {
        tracing::debug!(%error, "a metrics connection ended");
    }
}

/// Reads one request and answers it. The head is read to its end, or closing would reset what we sent (RFC 9112 §9.6).
fn answer(mut stream: &TcpStream, text: &impl Fn() -> String) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
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
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = Endpoint::start(any_port, || "tombolo_up 1\n# EOF\n".into()).expect("start");
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
}
