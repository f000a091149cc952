//! Process started by `--keep`: it holds the connections of guests, starts the server (this program again),
//! and starts the next server when the present one dies or is replaced.
//!
//! Reading order: `turn`, the start and end of a server; this module; `upgrade`, its replacement.

mod turn;
mod upgrade;

pub use turn::Turn;
pub use upgrade::{REPLY_TIMEOUT, directory};

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_core::lock;
use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_host_runtime::signals::{self, StopSignal};
use tombolo_host_vhost::keeper::{Keeper, ServerSocket, Servers, Settings};
use tombolo_sys::process::adopt_orphans;

use crate::assembly::servers::guest_socket::GuestSocket;
use crate::failure::{Code, Failure, OrCannot, Outcome};
use turn::{Input, Launched};

/// Keeps the guests of these sockets connected until a server's exit is final (`is_an_end`) or a stop is
/// requested. `name` is that of the keeper for `tombolo upgrade`. Each server is started with `options` in
/// addition to the command line.
pub fn keep(sockets: &[GuestSocket], settings: Settings, name: &str, mut options: Vec<String>) -> Outcome {
    if sockets.is_empty() {
        return Err(Failure::usage("--keep requires sockets for VMMs"));
    }
    DescriptorBudget::of_process();
    let servers = Arc::new(Servers::default());
    for socket in sockets {
        options.push(format!("--kept={}", take_in(socket, settings, &servers)?));
    }
    let keeping = Arc::new(Keeping {
        words: words_for_server(env::args_os().skip(1), options),
        // This link stays valid after the program's file was replaced.
        program: Mutex::new("/proc/self/exe".into()),
        servers,
        running: Mutex::default(),
        next: Mutex::default(),
        upgrading: Mutex::default(),
    });
    adopt_orphans().map_err(|errno| Failure::cannot("supervise servers", &io::Error::from(errno)))?;
    let stop = keeping.stop_on_signal().or_cannot("wait for signals")?;
    let _control = upgrade::serve(&keeping, name)?;
    keeping.supervise(&stop)
}

fn take_in(socket: &GuestSocket, settings: Settings, servers: &Arc<Servers>) -> Result<i32, Failure> {
    let path = socket.path();
    let cannot = |error: &io::Error| Failure::cannot(format_args!("serve {}", path.display()), error);
    let server_socket = ServerSocket::beside(&path).or_cannot("keep guests")?;
    let descriptor = server_socket.descriptor();
    let listener = socket.socket().try_clone().map_err(|error| cannot(&error))?;
    Keeper::start(listener, server_socket, Arc::clone(servers), settings).map_err(|error| cannot(&error))?;
    Ok(descriptor)
}

/// Inserts the options into the command line, after the command's name.
fn words_for_server(words: impl Iterator<Item = OsString>, options: Vec<String>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let behind = words.iter().position(|word| !is_option(word)).map_or(0, |command| command + 1);
    words.splice(behind..behind, options.into_iter().map(OsString::from));
    words
}

struct Keeping {
    words: Vec<OsString>,
    /// Program of the next server, unless `next` is set.
    program: Mutex<PathBuf>,
    servers: Arc<Servers>,
    running: Mutex<RunningServer>,
    /// Successor that waits for the end of the running server.
    next: Mutex<Option<Launched>>,
    /// Serialises upgrades.
    upgrading: Mutex<()>,
}

/// Control of the running server, through its standard input: a line permits the server to open its files and
/// to serve, end of file stops it. Signals are not used for that: the user may have sent one already, and a
/// second one would kill the server.
#[derive(Default)]
struct RunningServer {
    input: Option<Input>,
    /// Process of the server, while it runs.
    process: Option<u32>,
    is_stopped: bool,
}

impl Keeping {
    fn stop_on_signal(self: &Arc<Self>) -> io::Result<Receiver<StopSignal>> {
        let (sender, stop) = mpsc::channel();
        let keeping = Arc::clone(self);
        signals::on_stop(move |signal| {
            keeping.servers.end();
            let mut running = lock(&keeping.running);
            (running.input, running.is_stopped) = (None, true);
            let _ = sender.send(signal);
        })?;
        Ok(stop)
    }

    /// Starts one server after another, until the exit of one is final (`is_an_end`) or a stop is
    /// requested.
    fn supervise(&self, stop: &Receiver<StopSignal>) -> Outcome {
        let mut is_first = true;
        let mut backoff = RestartBackoff::default();
        loop {
            let next = lock(&self.next).take();
            let next = next.map_or_else(|| self.launch(is_first), Ok);
            let Launched { mut process, input, .. } = next.or_cannot("start the server")?;
            // Counted first: the server may answer a guest as soon as it has its turn.
            self.servers.started();
            self.give_turn(input, process.id());
            let began = Instant::now();
            let status = turn::wait_for_all(&mut process).or_cannot("start the server")?;
            self.servers.died();
            let is_stopped = self.turn_is_over();
            if is_stopped || is_an_end(status, is_first) {
                self.servers.end();
                return outcome(status, is_stopped);
            }
            is_first = false;
            if lock(&self.next).is_some() {
                tracing::info!("the new server takes over");
                continue;
            }
            let pause = backoff.pause(began.elapsed());
            tracing::error!(%status, pause_ms = pause.as_millis(), "server died: restarting it");
            if !matches!(stop.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
                return Ok(());
            }
        }
    }

    fn launch(&self, is_first: bool) -> io::Result<Launched> {
        let program = lock(&self.program).clone();
        Launched::start(&program, &self.words, is_first)
    }

    fn give_turn(&self, input: Option<Input>, process: u32) {
        let mut running = lock(&self.running);
        running.process = Some(process);
        if !running.is_stopped {
            running.input = input;
            running.input.iter_mut().for_each(Input::give_turn);
        }
    }

    /// Clears the state of the ended server; returns `true` if a stop was requested.
    fn turn_is_over(&self) -> bool {
        let mut running = lock(&self.running);
        (running.input, running.process) = (None, None);
        running.is_stopped
    }
}

/// Returns `true` if no further server is to be started: the server has exited with success or after a signal
/// to stop, or the first one has exited with a failure, which is then the command's.
fn is_an_end(status: ExitStatus, is_first: bool) -> bool {
    let ends = [0, Code::Interrupted as i32, Code::Terminated as i32];
    status.code().is_some_and(|code| is_first || ends.contains(&code))
}

fn outcome(status: ExitStatus, is_stopped: bool) -> Outcome {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::with_exit_code(code)),
        None if is_stopped => {
            Err(Failure::cannot("shut the server down", format!("the process died ({status})")))
        }
        None => Err(Failure::cannot("serve", format!("the server died ({status})"))),
    }
}

/// Back-off for servers that die soon after their start, up to a second.
#[derive(Default)]
struct RestartBackoff {
    /// Number of successive servers that lived shorter than [`LONG_LIFE`].
    deaths: u32,
}

const LONG_LIFE: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl RestartBackoff {
    fn pause(&mut self, life: Duration) -> Duration {
        if life >= LONG_LIFE {
            self.deaths = 0;
            return Duration::ZERO;
        }
        self.deaths = (self.deaths + 1).min(16);
        (PAUSE_MIN * (1 << self.deaths) / 2).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeper_puts_options_before_positionals() {
        let words = ["-v", "disk", "--keep", "--", "--odd.img"].map(OsString::from);
        let all = words_for_server(words.into_iter(), [5, 7].map(|fd| format!("--kept={fd}")).into());
        assert_eq!(all, ["-v", "disk", "--kept=5", "--kept=7", "--keep", "--", "--odd.img"]);
    }

    #[test]
    fn restart_backs_off_only_after_early_death() {
        let mut backoff = RestartBackoff::default();
        let pauses: Vec<u128> = (0..9).map(|_| backoff.pause(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(backoff.pause(LONG_LIFE), Duration::ZERO);
        assert_eq!(backoff.pause(Duration::ZERO), PAUSE_MIN);
    }
}
