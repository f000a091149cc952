//! The monitor: the QEMU Machine Protocol, a line of JSON for each message (docs/interop/qmp-spec of QEMU).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;
use tombolo_sys::packet;

/// The longest line that is taken, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Events that are kept until they are asked for. Older ones are forgotten.
const EVENTS_MAX: usize = 256;

/// Why something was not done, or is not known to be.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// The monitor cannot be reached, or has gone: as a rule the VMM has ended.
    #[error("the VMM's monitor is gone")]
    Gone(#[source] io::Error),
    /// It did not answer, or what was waited for did not happen, in the time for it.
    #[error("the VMM did not say {waited_for} within {} s", within.as_secs())]
    Late {
        /// What was waited for.
        waited_for: String,
        /// For so long.
        within: Duration,
    },
    /// It refused a command.
    #[error("the VMM refuses {command}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// Its own words.
        reason: String,
    },
    /// What it said is not the protocol.
    #[error("the VMM's monitor says what makes no sense: {0}")]
    Protocol(&'static str),
}

/// A connection to a monitor. QEMU serves one at a time.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    received: Vec<u8>,
    /// So much of it has no end of a line.
    searched: usize,
    events: VecDeque<Value>,
    patience: Duration,
}

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(2);

impl Monitor {
    /// Connects to the monitor at `path` and agrees on capabilities. A VMM that starts has yet to make the
    /// socket: that is waited for as long as `is_starting` holds, and each answer as long as `patience`.
    pub fn connect(
        path: &Path,
        is_starting: impl Fn() -> bool,
        patience: Duration,
    ) -> Result<Self, MonitorError> {
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                        && is_starting() =>
                {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(MonitorError::Gone(error)),
            }
        };
        let mut monitor = Self::over(stream, patience);
        let greeting = monitor.message("its greeting", Instant::now() + patience)?;
        if greeting.get("QMP").is_none() {
            return Err(MonitorError::Protocol("no greeting"));
        }
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// One that was not greeted yet.
    pub(crate) fn over(stream: UnixStream, patience: Duration) -> Self {
        Self { stream, received: Vec::new(), searched: 0, events: VecDeque::new(), patience }
    }

    /// Has a command executed, and waits for what it returns.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, MonitorError> {
        self.execute_with(command, arguments, &[])
    }

    /// The same with descriptors beside it.
    fn execute_with(
        &mut self,
        command: &str,
        arguments: &Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Value, MonitorError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string().into_bytes();
        line.push(b'\n');
        if descriptors.is_empty() {
            self.stream.write_all(&line).map_err(MonitorError::Gone)?;
        } else {
            // The first byte that arrives brings them; such commands are short.
            packet::send(&self.stream, &line, descriptors)
                .map_err(|errno| MonitorError::Gone(errno.into()))?;
        }
        let end = Instant::now() + self.patience;
        loop {
            let mut message = self.message(&format!("whether it has done {command}"), end)?;
            if let Some(error) = message.get("error") {
                let reason = error.get("desc").and_then(Value::as_str).unwrap_or("it does not say why");
                return Err(MonitorError::Refused { command: command.into(), reason: reason.into() });
            }
            match message.get_mut("return") {
                Some(value) => return Ok(value.take()),
                None => self.keep(message),
            }
        }
    }

    /// Hands a file over, which commands then know by that name.
    pub fn pass(&mut self, name: &str, file: impl AsFd) -> Result<(), MonitorError> {
        self.execute_with("getfd", &json!({ "fdname": name }), &[file.as_fd()]).map(drop)
    }

    /// The data of the next event of this name of which `is_it` holds, among those that came since the
    /// connection was made and were not asked for.
    pub fn event(
        &mut self,
        name: &str,
        within: Duration,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value, MonitorError> {
        let end = Instant::now() + within;
        loop {
            let place = self.events.iter().position(|event| event["event"] == name && is_it(&event["data"]));
            if let Some(mut event) = place.and_then(|place| self.events.remove(place)) {
                return Ok(event["data"].take());
            }
            let message = self.message(name, end).map_err(|error| match error {
                MonitorError::Late { waited_for, .. } => MonitorError::Late { waited_for, within },
                error => error,
            })?;
            self.keep(message);
        }
    }

    fn keep(&mut self, message: Value) {
        if message.get("event").is_some() {
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(message);
        }
    }

    /// The next message of any kind.
    pub(crate) fn message(&mut self, waited_for: &str, end: Instant) -> Result<Value, MonitorError> {
        loop {
            let unsearched = self.received.get(self.searched..).unwrap_or_default();
            let found = unsearched.iter().position(|&byte| byte == b'\n');
            let line_end = found.map(|place| self.searched + place);
            self.searched = if found.is_some() { 0 } else { self.received.len() };
            if let Some(line_end) = line_end {
                let line: Vec<u8> = self.received.drain(..=line_end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return serde_json::from_slice(&line).map_err(|_| MonitorError::Protocol("no JSON"));
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(MonitorError::Protocol("a line without end"));
            }
            let late = || MonitorError::Late { waited_for: waited_for.into(), within: self.patience };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late());
            }
            self.stream.set_read_timeout(Some(left)).map_err(MonitorError::Gone)?;
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(MonitorError::Gone(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.received.extend_from_slice(piece.get(..count).unwrap_or_default()),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(MonitorError::Gone(error)),
            }
        }
    }
}
