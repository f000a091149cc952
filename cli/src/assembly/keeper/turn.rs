//! Start of a server by its keeper, from both sides. The keeper gives the server its turn by a line on
//! standard input, and stops it by end of file. A server opens nothing before its turn, so a successor can
//! wait while its predecessor runs.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_sys::process::{await_end, await_group, kill_group};

use crate::failure::Failure;

/// Line that a server prints while it waits for its turn. Not passed on by the keeper.
const WAITING: &str = "waiting";
/// Beginning of the line that a server prints once it serves.
const SERVING: &str = "ready control";

/// A server process that was started and opens nothing before its turn.
pub struct Launched {
    pub process: Child,
    pub input: Option<Input>,
    pub progress: Receiver<Progress>,
}

/// Standard input of a server, by which its keeper controls it: a line gives the server its turn, end of
/// file stops it.
pub struct Input(ChildStdin);

/// Steps of a server's start, as it prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Waits,
    Serves,
}

impl Launched {
    /// Starts the program with these arguments. The output of the first server is passed on to this
    /// process's standard output.
    pub fn start(program: &Path, words: &[OsString], is_first: bool) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg0("tombolo").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Signals of the terminal reach the keeper alone, which then stops the server by end of file.
        let mut process = command.process_group(0).spawn()?;
        let input = process.stdin.take().map(Input);
        let (sender, progress) = mpsc::channel();
        if let Some(output) = process.stdout.take() {
            let listen = move || listen(output, &sender, is_first);
            thread::Builder::new().name("progress".into()).spawn(listen)?;
        }
        Ok(Self { process, input, progress })
    }
}

/// Waits for a server to end and kills the processes that it started: the server's broker may be about to
/// open or truncate a file, which must not happen while the next server runs. This process must be the
/// subreaper of the orphans.
pub fn wait_for_all(process: &mut Child) -> io::Result<ExitStatus> {
    let group = process.id();
    await_end(group)?;
    // The process is not reaped yet, so its group id is not reused. The group may be empty.
    let _ = kill_group(group);
    let status = process.wait()?;
    await_group(group)?;
    Ok(status)
}

/// Waits until the server reports `what`.
///
/// # Errors
/// *Timeout*, or *Disconnected* if the server has closed its output, which it does when it ends.
pub fn await_progress(
    progress: &Receiver<Progress>,
    what: Progress,
    timeout: Duration,
) -> Result<(), RecvTimeoutError> {
    let end = Instant::now() + timeout;
    while progress.recv_timeout(end.saturating_duration_since(Instant::now()))? != what {}
    Ok(())
}

/// Processes the output of a server, and passes it on if it is the first. Failed writes are ignored: the
/// reader of our output may be gone.
fn listen(output: ChildStdout, sender: &Sender<Progress>, is_first: bool) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let progress = match line.as_str() {
            WAITING => Some(Progress::Waits),
            line if line.starts_with(SERVING) => Some(Progress::Serves),
            _ => None,
        };
        if is_first && progress != Some(Progress::Waits) {
            let mut out = io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
        // Sending fails if nothing waits for the progress, which is the usual case.
        progress.map(|progress| sender.send(progress));
    }
}

impl Input {
    /// Signals the server to begin. A dead server is detected when it is waited for.
    pub fn give_turn(&mut self) {
        let _ = self.0.write_all(b"\n");
    }
}

/// Relation of this server to its keeper, if it has one: the server ends when the keeper does.
pub struct Turn {
    is_kept: bool,
}

impl Turn {
    /// Waits until the keeper gives this server its turn. `descriptors` are the sockets of guests that a
    /// server inherits from its keeper: without any there is no keeper, and the function returns at once.
    pub fn wait(descriptors: &[i32]) -> Result<Self, Failure> {
        let is_kept = !descriptors.is_empty();
        if is_kept {
            let asked = writeln!(io::stdout(), "{WAITING}").and_then(|()| io::stdin().read_exact(&mut [0]));
            // The keeper has closed the pipe: this server is not needed.
            asked.map_err(|_| Failure::silent())?;
        }
        Ok(Self { is_kept })
    }

    /// Calls `end` from a separate thread when the keeper exits or stops the server; never without a keeper.
    pub fn on_end(&self, end: impl FnOnce() + Send + 'static) -> io::Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        let wait = move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            end();
        };
        thread::Builder::new().name("keeper".into()).spawn(wait).map(drop)
    }
}
