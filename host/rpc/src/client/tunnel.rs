//! A connection over the standard input and output of a command, such as `ssh HOST tombolo serve --stdio …`.
//!
//! Each connection is a process. A thread reads its standard error, and reaps it when it ends. Closing the
//! connection kills the process and everything that it started in its process group.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak, mpsc};
use std::thread;
use std::time::Duration;

use tombolo_core::lock;

use super::error::Fault;
use super::wire::Socket;
use thiserror::Error as ThisError;
use tombolo_mem::Sink;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result, process, socket, tcp};

/// Time for a command that has closed its output to report the reason and to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum length of a retained line of output.
const LINE_BYTES_MAX: usize = 400;

/// A command that connects to a server.
#[derive(Debug)]
pub struct Tunnel {
    /// Name of the server, for errors and the log.
    label: String,
    program: OsString,
    arguments: Vec<OsString>,
    running: Mutex<Running>,
}

/// Processes of a tunnel that may still run.
#[derive(Debug, Default)]
struct Running {
    all: Vec<Weak<Process>>,
    /// `true` once no process may be started.
    closed: bool,
}

/// Reason why a command ended its connection, or made none.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub struct TunnelFault {
    /// Name of the command.
    pub program: Arc<str>,
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Last line of the command's standard error.
    pub last_line: Arc<str>,
}

impl fmt::Display for TunnelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.last_line, self.code) {
            (_, None) => write!(f, "{} was killed", self.program),
            ("", Some(code)) => write!(f, "{} ended with code {code}", self.program),
            (last_line, Some(_)) => f.write_str(last_line),
        }
    }
}

impl Tunnel {
    /// Returns a tunnel without starting the command. `label` is the server's name for users.
    #[must_use]
    pub fn new(label: String, program: OsString, arguments: Vec<OsString>) -> Arc<Self> {
        Arc::new(Self { label, program, arguments, running: Mutex::default() })
    }

    /// Returns the server's name for users.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the command's name.
    #[must_use]
    pub fn program(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Kills all processes, and waits until they are reaped, at most `EXIT_TIMEOUT` for each. No other can
    /// be started afterwards.
    pub fn close(&self) {
        let mut running = lock(&self.running);
        running.closed = true;
        let all = std::mem::take(&mut running.all);
        drop(running);
        for process in all.iter().filter_map(Weak::upgrade) {
            process.kill();
            process.wait(EXIT_TIMEOUT);
        }
    }

    pub(super) fn start(&self) -> Result<TunnelSocket> {
        let mut running = lock(&self.running);
        if running.closed {
            return Err(Errno::SHUTDOWN);
        }
        let process = self.spawned().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        running.all.retain(|process| process.strong_count() > 0);
        running.all.push(Arc::downgrade(&process.process));
        Ok(process)
    }

    fn spawned(&self) -> io::Result<TunnelSocket> {
        // The thread must exist first: without the thread the process would never be reaped.
        let (hand_over, taken) = mpsc::channel::<(Child, Arc<Process>)>();
        let label = self.label.clone();
        thread::Builder::new().name("tunnel".into()).spawn(move || {
            if let Ok((child, process)) = taken.recv() {
                supervise(child, &process, &label);
            }
        })?;
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(OwnedFd::from(theirs.try_clone()?))
            .stdout(OwnedFd::from(theirs))
            .stderr(Stdio::piped())
            // A group of its own does not receive the signals of this process's terminal.
            .process_group(0)
            .spawn()?;
        let process = Arc::new(Process {
            id: child.id(),
            end: Mutex::default(),
            exited: Condvar::new(),
            killed: AtomicBool::new(false),
        });
        // The thread waits for this message only, so its receiver exists.
        let _ = hand_over.send((child, process.clone()));
        Ok(TunnelSocket { stream: ours.into(), process, program: self.program().into() })
    }
}

/// One process of a tunnel, the leader of its own group.
#[derive(Debug)]
struct Process {
    id: u32,
    /// Exit status, once the process is reaped. The process id may be reused from then on.
    end: Mutex<Option<ExitStatus>>,
    exited: Condvar,
    /// `true` if this client killed the process, which is no fault.
    killed: AtomicBool,
}

#[derive(Clone, Debug)]
struct ExitStatus {
    code: Option<i32>,
    last_line: Arc<str>,
}

impl Process {
    /// Kills the process and its group, unless it is already reaped.
    fn kill(&self) {
        let end = lock(&self.end);
        if end.is_none() {
            self.killed.store(true, Ordering::SeqCst);
            let _ = process::kill_group(self.id);
        }
    }

    /// Blocks until the process is reaped, at most for `at_most`.
    fn wait(&self, at_most: Duration) {
        let end = lock(&self.end);
        let waited = self.exited.wait_timeout_while(end, at_most, |end| end.is_none());
        drop(waited);
    }
}

/// Reads a command's standard error until the command ends, and reaps it.
fn supervise(mut child: Child, process: &Process, label: &str) {
    let mut output = OutputLines { label, line: Vec::new(), last: String::new() };
    if let Err(errno) = read_stderr(&mut child, &mut output) {
        tracing::warn!(%errno, "tunnel: cannot watch the program: killing it");
        let _ = child.kill();
    }
    output.end_line();
    let mut end = lock(&process.end);
    // Processes left in its group end with it.
    let _ = process::kill_group(process.id);
    let code = child.wait().ok().and_then(|status| status.code());
    *end = Some(ExitStatus { code, last_line: output.last.into() });
    drop(end);
    process.exited.notify_all();
}

const STDERR: u64 = 0;
const PROCESS: u64 = 1;

/// Reads standard error until the process ends, not until end of file: other processes may hold the pipe open
/// for longer.
fn read_stderr(child: &mut Child, output: &mut OutputLines<'_>) -> Result<()> {
    let (epoll, watched) = (Epoll::new()?, process::watched(child.id())?);
    epoll.add(&watched, PROCESS, Interest::Readable)?;
    let mut stderr = child.stderr.take();
    if let Some(stderr) = &stderr {
        epoll.add(stderr, STDERR, Interest::Readable)?;
    }
    let (mut events, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        epoll.wait(&mut events, None)?;
        let is_readable = events.iter().any(|event| event.token == STDERR);
        match stderr.as_mut().filter(|_| is_readable).map(|stderr| stderr.read(&mut piece)) {
            Some(Ok(count @ 1..)) => output.take(piece.get(..count).unwrap_or_default()),
            // Dropping the pipe removes it from the epoll set.
            Some(_) => stderr = None,
            None if !events.is_empty() => return Ok(()),
            None => {}
        }
    }
}

/// Lines of output of a command. They are not trusted: bounded, and stripped of control characters.
struct OutputLines<'a> {
    label: &'a str,
    line: Vec<u8>,
    last: String,
}

impl OutputLines<'_> {
    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' | b'\r' => self.end_line(),
                _ if self.line.len() < LINE_BYTES_MAX => self.line.push(byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).replace(char::is_control, " ");
        self.line.clear();
        if !line.trim().is_empty() {
            tracing::info!(server = self.label, "{}", line.trim());
            self.last = line.trim().to_owned();
        }
    }
}

/// One connection: a socket pair, whose other end is the command's standard input and output.
pub(super) struct TunnelSocket {
    stream: OwnedFd,
    process: Arc<Process>,
    program: Arc<str>,
}

impl AsFd for TunnelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Socket for TunnelSocket {
    /// Succeeds at once, because only the first reply proves that the server was reached.
    fn finish_connecting(&self) -> Result<()> {
        Ok(())
    }

    fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        match tcp::send(self.stream.as_fd(), gather) {
            // The next receive reports the end, once the reason is known.
            Err(Errno::PIPE | Errno::CONNRESET) => Err(Errno::AGAIN),
            outcome => outcome,
        }
    }

    fn receive(&self, into: &[&Sink]) -> Result<usize> {
        let received = tcp::receive(self.stream.as_fd(), into);
        if !matches!(received, Ok(1..) | Err(Errno::AGAIN)) {
            self.process.wait(EXIT_TIMEOUT);
        }
        received
    }

    fn fault(&self) -> Option<Fault> {
        if self.process.killed.load(Ordering::SeqCst) {
            return None;
        }
        let ExitStatus { code, last_line } = lock(&self.process.end).clone()?;
        Some(Fault::Tunnel(TunnelFault { program: self.program.clone(), code, last_line }))
    }

    fn shut_down(&self) {
        let _ = socket::shut_down(&self.stream);
        self.process.kill();
    }

    fn is_emptied_by_less(&self) -> bool {
        true
    }
}

impl Drop for TunnelSocket {
    fn drop(&mut self) {
        self.process.kill();
    }
}
