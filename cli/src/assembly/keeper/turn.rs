//! A server that is kept, from both sides: its keeper starts it and says when it is its turn, through its
//! standard input, whose end is also the server's. It waits for that before it opens anything, so it can
//! stand ready beside the one before.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_sys::process::{await_end, await_group, kill_group};

use crate::failure::Failure;

/// What a server says when it waits for its turn. It goes no further.
const WAITING: &str = "waiting";
/// How the line begins that comes when it serves.
const SERVING: &str = "ready control";

/// A server that was started.
pub struct Launched {
    pub process: Child,
    pub input: Option<Input>,
    pub said: Receiver<Said>,
}

/// What its keeper tells it by.
pub struct Input(ChildStdin);

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Waits,
    Serves,
}

impl Launched {
    /// Starts that program with these words. What the first server says is said here.
    pub fn start(program: &Path, words: &[OsString], is_first: bool) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg0("tombolo").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        // What the terminal sends comes to the keeper, which passes it on.
        let mut process = command.process_group(0).spawn()?;
        let input = process.stdin.take().map(Input);
        let (sender, said) = mpsc::channel();
        if let Some(output) = process.stdout.take() {
            let listen = move || listen(output, &sender, is_first);
            thread::Builder::new().name("said".into()).spawn(listen)?;
        }
        Ok(Self { process, input, said })
    }
}

/// Waits for the end of a server, and ends what it has started: its broker may be about to open a file, or to
/// empty one, and must not do that beside the next server. This process has to have adopted their orphans.
pub fn wait_for_all(process: &mut Child) -> io::Result<ExitStatus> {
    let group = process.id();
    await_end(group)?;
    // It is not waited for yet, so the number is not another group's. There may be nothing left.
    let _ = kill_group(group);
    let status = process.wait()?;
    await_group(group)?;
    Ok(status)
}

/// Whether that is said in time.
pub fn is_said(said: &Receiver<Said>, what: Said, timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    loop {
        match said.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(said) if said == what => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Takes what a server says, and says it too, if it is the first. What is at the other end of ours may be
/// gone.
fn listen(output: ChildStdout, sender: &Sender<Said>, is_first: bool) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let said = match line.as_str() {
            WAITING => Some(Said::Waits),
            line if line.starts_with(SERVING) => Some(Said::Serves),
            _ => None,
        };
        if is_first && said != Some(Said::Waits) {
            let mut out = io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
        // Mostly it is not waited for.
        said.map(|said| sender.send(said));
    }
}

impl Input {
    /// One that is dead already is found so when it is waited for.
    pub fn give_turn(&mut self) {
        let _ = self.0.write_all(b"\n");
    }
}

/// Whether this is the server of a keeper, whose end is its own.
pub struct Turn {
    is_kept: bool,
}

impl Turn {
    /// In a server that is kept, and has these descriptors: waits until its keeper says that it is its turn.
    /// Returns at once in any other.
    pub fn wait(descriptors: &[i32]) -> Result<Self, Failure> {
        let is_kept = !descriptors.is_empty();
        if is_kept {
            let asked = writeln!(io::stdout(), "{WAITING}").and_then(|()| io::stdin().read_exact(&mut [0]));
            // It is not wanted any more.
            asked.map_err(|_| Failure::silent())?;
        }
        Ok(Self { is_kept })
    }

    /// Calls `end`, from a thread of its own, when the keeper ends or wants the server to.
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
