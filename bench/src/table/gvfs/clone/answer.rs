//! Polling for the first answer of a guest's service.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Interval between attempts. A request to a guest without a network card is lost, and its VMM retries much
/// later.
const EVERY: Duration = Duration::from_millis(50);
/// Time limit of one answer: the guest may fetch data over a slow link for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the service answers with `name`; `-` accepts any name.
pub fn answered(address: SocketAddr, name: &str, within: Duration) -> Result<()> {
    let (answer, answers) = channel();
    let end = Instant::now() + within;
    while Instant::now() < end {
        let answer = answer.clone();
        thread::spawn(move || ask(address, &answer));
        match answers.recv_timeout(EVERY) {
            Ok(found) if name == "-" || found == name => return Ok(()),
            Ok(found) => {
                return Err(Error::Wrong { what: format!("ask {name} for its name"), answer: found });
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
    Err(Error::Server { program: name.to_owned(), what: "its service does not answer".to_owned() })
}

fn ask(address: SocketAddr, answer: &Sender<String>) {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(b"GET /cgi-bin/ask?name HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.take(4096).read_to_string(&mut text).ok()?;
        let body = text.rsplit("\r\n\r\n").next().filter(|_| text.starts_with("HTTP/1."))?;
        Some(body.trim().to_owned()).filter(|name| !name.is_empty())
    };
    if let Some(name) = asked() {
        // Another attempt may have been answered before.
        let _ = answer.send(name);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn other_service_is_rejected_and_silent_one_retried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let _asked = stream.read(&mut [0; 100]);
                if number > 0 {
                    let _gone = stream.write_all(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\none\n");
                }
            }
        });
        answered(address, "one", PATIENCE).unwrap();
        answered(address, "-", PATIENCE).unwrap();
        assert!(matches!(answered(address, "two", PATIENCE), Err(Error::Wrong { .. })));
    }
}
