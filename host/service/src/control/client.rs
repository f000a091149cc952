//! The tool's side.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use super::message::{CREATE, Reply, Request, SET, Start};

/// Why a server gave no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// The connection failed, or nothing came for 5 seconds.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// What came is not a reply.
    #[error("what came is not a reply: {0}")]
    NotReply(#[from] serde_json::Error),
    /// The server refused.
    #[error("the server says: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
}

/// A connection to a server's control socket. One request at a time.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    last_id: u64,
}

impl Client {
    /// Connects to the server that listens at `path`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), last_id: 0 })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &str) -> Result<Value, AskError> {
        self.send(Request { request: request.into(), ..Request::default() })
    }

    /// Asks about one of the server's sessions, and waits for the answer.
    pub fn ask_session(&mut self, request: &str, session: &str) -> Result<Value, AskError> {
        self.send(Request { request: request.into(), session: Some(session.into()), ..Request::default() })
    }

    /// Asks the server to make a session.
    pub fn start_session(&mut self, session: &str, start: Start) -> Result<Value, AskError> {
        let (request, session) = (CREATE.into(), Some(session.into()));
        self.send(Request { request, session, start: Some(start), ..Request::default() })
    }

    /// Asks the server to change options while it runs: a list as after `-o`. The answer is what it set.
    pub fn set(&mut self, options: &str) -> Result<Value, AskError> {
        self.send(Request { request: SET.into(), options: Some(options.into()), ..Request::default() })
    }

    fn send(&mut self, request: Request) -> Result<Value, AskError> {
        self.last_id += 1;
        let request = Request { id: self.last_id, ..request };
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        // A server that refuses a connection says why and closes it, perhaps before it has heard us.
        let sent = self.stream.get_mut().write_all(&line);
        let mut line = Vec::new();
        match self.stream.read_until(b'\n', &mut line) {
            Ok(0) => return Err(sent.err().map_or(AskError::Closed, AskError::Io)),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match serde_json::from_slice(&line)? {
            Reply { ok: Some(answer), .. } => Ok(answer),
            Reply { error, .. } => Err(AskError::Refused { reason: error.unwrap_or_default() }),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
