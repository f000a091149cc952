//! Client of a control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use super::message::{CREATE, Reply, Request, SET, Start};

/// Error of a control request.
#[derive(Debug, Error)]
pub enum AskError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server closed the connection without a reply.
    #[error("the server closed the connection")]
    Closed,
    /// The reply is malformed.
    #[error("malformed reply: {0}")]
    NotReply(#[from] serde_json::Error),
    /// The server did not reply in time.
    #[error("the server does not reply")]
    TimedOut,
    /// The server refused the request.
    #[error("the server refused: {reason}")]
    Refused {
        /// The server's reason.
        reason: String,
    },
}

/// A connection to a server's control socket. One request at a time.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    last_id: u64,
    /// Beginning of a reply that was not received in time.
    partial: Vec<u8>,
}

impl Client {
    /// Connects to the server that listens at `path`. Replies are awaited for five seconds.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::connect_for(path, TIMEOUT)
    }

    /// Connects to the server that listens at `path`. Replies are awaited for `timeout`.
    pub fn connect_for(path: &Path, timeout: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream), last_id: 0, partial: Vec::new() })
    }

    /// Sends a request and waits for the reply.
    pub fn ask(&mut self, request: &str) -> Result<Value, AskError> {
        self.send(Request { request: request.into(), ..Request::default() })
    }

    /// Sends a request about a session and waits for the reply.
    pub fn ask_session(&mut self, request: &str, session: &str) -> Result<Value, AskError> {
        self.send(Request { request: request.into(), session: Some(session.into()), ..Request::default() })
    }

    /// Requests a new session, named `session`, and waits for the reply.
    pub fn start_session(&mut self, session: &str, start: Start) -> Result<Value, AskError> {
        let (request, session) = (CREATE.into(), Some(session.into()));
        self.send(Request { request, session, start: Some(start), ..Request::default() })
    }

    /// Requests a change of options, a list as after `-o`. Returns the options that the server has set.
    pub fn set(&mut self, options: &str) -> Result<Value, AskError> {
        self.send(Request { request: SET.into(), options: Some(options.into()), ..Request::default() })
    }

    fn send(&mut self, request: Request) -> Result<Value, AskError> {
        self.last_id += 1;
        let request = Request { id: self.last_id, ..request };
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        // A server that refuses a connection replies and closes it, perhaps before it has read the request.
        let sent = self.stream.get_mut().write_all(&line);
        loop {
            match self.stream.read_until(b'\n', &mut self.partial) {
                Ok(0) => return Err(sent.err().map_or(AskError::Closed, AskError::Io)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(AskError::TimedOut),
                Err(error) => return Err(error.into()),
            }
            match serde_json::from_slice(&std::mem::take(&mut self.partial))? {
                // The late reply to a request that timed out. A server that refuses a connection replies with
                // id 0, because it has read no request.
                Reply { id, .. } if (1..self.last_id).contains(&id) => {}
                Reply { ok: Some(answer), .. } => return Ok(answer),
                Reply { error, .. } => {
                    return Err(AskError::Refused { reason: error.unwrap_or_default() });
                }
            }
        }
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn late_reply_answers_no_later_request() {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("socket")).expect("bind");
        let mut client =
            Client::connect_for(&dir.path().join("socket"), Duration::from_millis(50)).expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        server.write_all(b"{\"id\":1,").expect("write");
        assert!(matches!(client.ask("first"), Err(AskError::TimedOut)));
        server.write_all(b"\"ok\":1}\n{\"id\":2,\"ok\":2}\n").expect("write");
        assert_eq!(client.ask("second").expect("its own reply"), 2);
    }
}
