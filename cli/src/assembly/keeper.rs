//! The process that the user has started with `--keep`: it holds the connections of guests, and starts the server, which is this program once
//! more, and the next when that one is killed.
//!
//! A server waits for its turn ([`Turn`]) before it opens anything, and ends when its keeper does.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_host_runtime::lock;
use tombolo_host_runtime::signals::{self, StopSignal};
use tombolo_host_vhost::keeper::{Keeper, Place, Servers};

use crate::assembly::servers::guest_socket::GuestSocket;
use crate::failure::{Code, Failure, Outcome};

/// Holds the guests of these sockets, so many of each at a time, until the server ends by itself or is asked to.
pub fn keep(sockets: &[GuestSocket], guests_max: usize) -> Outcome {
    if sockets.is_empty() {
        return Err(Failure::usage("--keep is for the guests of VMMs, and none is served"));
    }
    DescriptorBudget::of_process();
    let servers = Arc::new(Servers::default());
    let descriptors = sockets.iter().map(|socket| take_in(socket, guests_max, &servers));
    let descriptors = descriptors.collect::<Result<Vec<_>, _>>()?;
    let words = words_for_server(env::args_os().skip(1), &descriptors);
    let stop = Stop::on_signal(&servers).map_err(|error| Failure::cannot("wait for signals", &error))?;
    supervise(&words, &servers, &stop)
}

fn take_in(socket: &GuestSocket, guests_max: usize, servers: &Arc<Servers>) -> Result<i32, Failure> {
    let path = socket.path();
    let cannot = |error: &io::Error| Failure::cannot(format_args!("serve {}", path.display()), error);
    let place = Place::beside(&path).map_err(|error| Failure::cannot("keep guests", &error))?;
    let descriptor = place.descriptor();
    let listener = socket.socket().try_clone().map_err(|error| cannot(&error))?;
    Keeper::start(listener, place, Arc::clone(servers), guests_max).map_err(|error| cannot(&error))?;
    Ok(descriptor)
}

/// The words of this command, and behind its name the descriptors.
fn words_for_server(words: impl Iterator<Item = OsString>, descriptors: &[i32]) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let behind = words.iter().position(|word| !is_option(word)).map_or(0, |command| command + 1);
    words.splice(behind..behind, descriptors.iter().map(|descriptor| format!("--kept={descriptor}").into()));
    words
}

/// Starts one server after the other.
fn supervise(words: &[OsString], servers: &Servers, stop: &Stop) -> Outcome {
    let cannot = |error: &io::Error| Failure::cannot("start the server", error);
    let mut is_first = true;
    let mut haste = Haste::default();
    loop {
        let (mut server, input) = launch(words, is_first).map_err(|error| cannot(&error))?;
        stop.give_turn(input);
        servers.came();
        let began = Instant::now();
        let status = server.wait().map_err(|error| cannot(&error))?;
        servers.went();
        let is_stopped = stop.is_asked_for();
        if is_stopped || is_an_end(status, is_first) {
            servers.end();
            return outcome(status, is_stopped);
        }
        is_first = false;
        let pause = haste.pause(began.elapsed());
        tracing::error!(%status, pause_ms = pause.as_millis(), "the server died: starting another");
        if stop.comes_within(pause) {
            return Ok(());
        }
    }
}

/// Whether no other server is to be started: it was asked to end, or could not even begin, which is the command's failure.
fn is_an_end(status: ExitStatus, is_first: bool) -> bool {
    let ends = [0, Code::Interrupted as i32, Code::Terminated as i32];
    status.code().is_some_and(|code| is_first || ends.contains(&code))
}

fn outcome(status: ExitStatus, is_stopped: bool) -> Outcome {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::as_told(code)),
        None if is_stopped => Err(Failure::cannot("end the server well", format!("it died ({status})"))),
        None => Err(Failure::cannot("serve", format!("the server died ({status})"))),
    }
}

/// A server that dies as soon as it lives is started ever later, up to a second.
#[derive(Default)]
struct Haste {
    deaths: u32,
}

const LONG_LIFE: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Haste {
    fn pause(&mut self, life: Duration) -> Duration {
        if life >= LONG_LIFE {
            self.deaths = 0;
            return Duration::ZERO;
        }
        self.deaths = (self.deaths + 1).min(16);
        (PAUSE_MIN * (1 << self.deaths) / 2).min(PAUSE_MAX)
    }
}

/// Starts this program once more, also when its file was replaced meanwhile; and what it waits for. What the first server says is said here.
fn launch(words: &[OsString], is_first: bool) -> io::Result<(Child, Option<ChildStdin>)> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tombolo").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    // What the terminal sends comes to the keeper, which passes it on.
    let mut process = command.process_group(0).spawn()?;
    let input = process.stdin.take();
    if let Some(output) = process.stdout.take() {
        thread::Builder::new().name("said".into()).spawn(move || pass_on(output, is_first))?;
    }
    Ok((process, input))
}

/// Takes what a server says, and says it too, if it is the first. One that closes our output has no use for it.
fn pass_on(output: ChildStdout, is_first: bool) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if is_first {
            let mut out = io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }
}

/// Whether the end was asked for.
struct Stop {
    told: Arc<Mutex<Told>>,
    signal: Receiver<StopSignal>,
}

/// What the server is told by: a line when it is its turn, and the end when it is to end. Not by a signal: it may have got one from elsewhere,
/// and the second one kills.
#[derive(Default)]
struct Told {
    input: Option<ChildStdin>,
    is_stopped: bool,
}

impl Stop {
    fn on_signal(servers: &Arc<Servers>) -> io::Result<Self> {
        let (sender, signal) = mpsc::channel();
        let told = Arc::new(Mutex::new(Told::default()));
        let (servers, shared) = (Arc::clone(servers), Arc::clone(&told));
        signals::on_stop(move |signal| {
            servers.end();
            *lock(&shared) = Told { input: None, is_stopped: true };
            let _ = sender.send(signal);
        })?;
        Ok(Self { told, signal })
    }

    /// It is the turn of the server with that input.
    fn give_turn(&self, input: Option<ChildStdin>) {
        let mut told = lock(&self.told);
        if !told.is_stopped {
            told.input = input;
            // One that is dead already is found so when it is waited for.
            let _ = told.input.as_mut().map(|input| input.write_all(b"\n"));
        }
    }

    fn is_asked_for(&self) -> bool {
        lock(&self.told).is_stopped
    }

    fn comes_within(&self, time: Duration) -> bool {
        !matches!(self.signal.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }
}

/// Whether this is the server of a keeper, whose end is its own.
pub struct Turn {
    is_kept: bool,
}

impl Turn {
    /// In a server that is kept, and has these descriptors: waits until its keeper says that it is its turn. Returns at once in any other.
    pub fn wait(descriptors: &[i32]) -> Result<Self, Failure> {
        let is_kept = !descriptors.is_empty();
        if is_kept && io::stdin().read_exact(&mut [0]).is_err() {
            // It is not wanted any more.
            return Err(Failure::silent());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_come_behind_the_command_and_before_all_that_is_no_option() {
        let words = ["-v", "disk", "--keep", "--", "--odd.img"].map(OsString::from);
        let all = words_for_server(words.into_iter(), &[5, 7]);
        assert_eq!(all, ["-v", "disk", "--kept=5", "--kept=7", "--keep", "--", "--odd.img"]);
    }

    #[test]
    fn a_server_that_dies_at_once_is_started_ever_later_and_one_that_has_lived_at_once() {
        let mut haste = Haste::default();
        let pauses: Vec<u128> = (0..9).map(|_| haste.pause(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(haste.pause(LONG_LIFE), Duration::ZERO);
        assert_eq!(haste.pause(Duration::ZERO), PAUSE_MIN);
    }
}
