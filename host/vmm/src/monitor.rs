//! Client of the QEMU Machine Protocol: one line of JSON per message (docs/interop/qmp-spec of QEMU).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};
use thiserror::Error;
use tombolo_sys::{Errno, packet, socket};

/// Maximum length of a line in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of stored events; older ones are dropped.
const EVENTS_MAX: usize = 256;

/// Error of a monitor command.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// The connection failed, usually because the VMM has ended.
    #[error("lost the connection to the VMM's monitor")]
    Gone(#[source] io::Error),
    /// A connection, a reply or an event did not arrive in time.
    #[error("no {waited_for} from the VMM within {} s", within.as_secs())]
    Late {
        /// The awaited connection, reply or event.
        waited_for: String,
        /// Time limit.
        within: Duration,
    },
    /// The VMM refused a command.
    #[error("the VMM refused {command}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// The VMM's reason.
        reason: String,
    },
    /// The VMM violated the protocol.
    #[error("protocol violation of the VMM's monitor: {0}")]
    Protocol(&'static str),
}

/// A connection to a monitor. QEMU serves one at a time.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    received: Vec<u8>,
    /// Length of the prefix of `received` that was searched and has no newline.
    searched: usize,
    events: VecDeque<Value>,
    /// Number of the last command, by which its reply is distinguished from the late one of another command.
    last: u64,
    timeout: Duration,
}

/// Interval between attempts to connect, and to resume a guest.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

impl Monitor {
    /// Connects to the monitor at `path` and negotiates capabilities. Waits for the socket while
    /// `is_starting` holds, and up to `timeout` for the connection and for each reply.
    pub fn connect(
        path: &Path,
        is_starting: impl Fn() -> bool,
        timeout: Duration,
    ) -> Result<Self, MonitorError> {
        let end = Instant::now() + timeout;
        let stream = loop {
            match socket::connect_unix(path) {
                Ok(stream) => break UnixStream::from(stream),
                Err(Errno::NOENT | Errno::CONNREFUSED) if is_starting() => {}
                // The VMM accepts no client while it serves another one, or hangs.
                Err(Errno::AGAIN) if Instant::now() < end => {}
                Err(Errno::AGAIN) => {
                    return Err(MonitorError::Late { waited_for: "connection".into(), within: timeout });
                }
                Err(errno) => return Err(MonitorError::Gone(errno.into())),
            }
            std::thread::sleep(PAUSE);
        };
        stream.set_nonblocking(false).map_err(MonitorError::Gone)?;
        let mut monitor = Self::from_stream(stream, timeout);
        let greeting = monitor.message("greeting", Instant::now() + timeout)?;
        if greeting.get("QMP").is_none() {
            return Err(MonitorError::Protocol("no greeting"));
        }
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Creates a client before the greeting.
    pub(crate) fn from_stream(stream: UnixStream, timeout: Duration) -> Self {
        Self { stream, received: Vec::new(), searched: 0, events: VecDeque::new(), last: 0, timeout }
    }

    /// Returns the time limit of each reply.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets the time limit of each further reply.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Executes a command and returns its result. Waits for it at most for the time limit.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, MonitorError> {
        self.execute_with(command, arguments, &[])
    }

    /// Executes a command with attached descriptors.
    fn execute_with(
        &mut self,
        command: &str,
        arguments: &Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Value, MonitorError> {
        self.last += 1;
        let mut command_line = json!({ "execute": command, "id": self.last });
        if arguments.as_object().is_some_and(|arguments| !arguments.is_empty()) {
            command_line["arguments"] = arguments.clone();
        }
        let mut line = command_line.to_string().into_bytes();
        line.push(b'\n');
        if descriptors.is_empty() {
            self.stream.write_all(&line).map_err(MonitorError::Gone)?;
        } else {
            // The descriptors are attached to the first byte; such commands are short.
            packet::send(&self.stream, &line, descriptors)
                .map_err(|errno| MonitorError::Gone(errno.into()))?;
        }
        let end = Instant::now() + self.timeout;
        loop {
            let mut message = self.message(&format!("reply to {command}"), end)?;
            // The reply to a malformed command has no number.
            if message.get("id").is_some_and(|id| *id != self.last) {
                continue;
            }
            if let Some(error) = message.get("error") {
                let reason = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                return Err(MonitorError::Refused { command: command.into(), reason: reason.into() });
            }
            match message.get_mut("return") {
                Some(value) => return Ok(value.take()),
                None => self.store_event(message),
            }
        }
    }

    /// Passes a file, which commands then use by this name.
    pub fn pass_file(&mut self, name: &str, file: impl AsFd) -> Result<(), MonitorError> {
        self.execute_with("getfd", &json!({ "fdname": name }), &[file.as_fd()]).map(drop)
    }

    /// Returns the data of the oldest stored event with this name that satisfies `is_it`, and drops the event
    /// from the store. Waits for one if there is none.
    pub fn event(
        &mut self,
        name: &str,
        within: Duration,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value, MonitorError> {
        let end = Instant::now() + within;
        loop {
            let position =
                self.events.iter().position(|event| event["event"] == name && is_it(&event["data"]));
            if let Some(mut event) = position.and_then(|position| self.events.remove(position)) {
                return Ok(event["data"].take());
            }
            let message = self.message(name, end).map_err(|error| match error {
                MonitorError::Late { waited_for, .. } => MonitorError::Late { waited_for, within },
                error => error,
            })?;
            self.store_event(message);
        }
    }

    /// Returns the time of the last unconsumed event with this name that satisfies `is_it`.
    pub(crate) fn time_of(&self, name: &str, is_it: impl Fn(&Value) -> bool) -> Option<Instant> {
        let event = self.events.iter().rfind(|event| event["event"] == name && is_it(&event["data"]))?;
        let part = |name: &str| event["timestamp"][name].as_u64();
        let since_epoch = Duration::from_secs(part("seconds")?)
            .checked_add(Duration::from_micros(part("microseconds")?))?;
        let age = UNIX_EPOCH.checked_add(since_epoch)?.elapsed().ok()?;
        Instant::now().checked_sub(age)
    }

    fn store_event(&mut self, message: Value) {
        if message.get("event").is_some() {
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(message);
        }
    }

    /// Returns the next message of any kind. Waits for it until `end`; `waited_for` names it in the error.
    pub(crate) fn message(&mut self, waited_for: &str, end: Instant) -> Result<Value, MonitorError> {
        loop {
            let unsearched = self.received.get(self.searched..).unwrap_or_default();
            let found = unsearched.iter().position(|&byte| byte == b'\n');
            let line_end = found.map(|position| self.searched + position);
            self.searched = if found.is_some() { 0 } else { self.received.len() };
            if let Some(line_end) = line_end {
                let line: Vec<u8> = self.received.drain(..=line_end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return serde_json::from_slice(&line).map_err(|_| MonitorError::Protocol("malformed JSON"));
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(MonitorError::Protocol("a line is too long"));
            }
            let late = || MonitorError::Late { waited_for: waited_for.into(), within: self.timeout };
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(late());
            }
            self.stream.set_read_timeout(Some(remaining)).map_err(MonitorError::Gone)?;
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
