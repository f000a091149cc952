//! Supervisor of a mount: restarts its server after a kill.
//!
//! A FUSE mount without a server fails every call with ENOTCONN. The supervisor notices at once and starts a
//! new server, which unmounts the dead mount and mounts again. Open files are lost; new opens work.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tombolo_host_runtime::signals;
use tombolo_host_service::daemon;
use tombolo_sys::process;

use crate::cli::LogArgs;
use crate::failure::{Failure, Outcome};

use super::Mount;
use super::background::{READY, Role, spawn};
use super::log::Log;

/// Starts the server, reports readiness, and restarts the server whenever it is killed, until it ends by
/// itself or by request, or is killed too often.
pub fn supervise(mount: &Mount, options: &[String], verbosity: LogArgs) -> Outcome {
    let supervising = format!("mount {} at {}", mount.source, mount.point.path.display());
    let cannot = |error: &io::Error| Failure::cannot(&supervising, error);
    let log = Log::open(mount).map_err(|error| cannot(&error))?;
    let start = |again| spawn(mount, options, verbosity, Role::Server { log: log.path(), again });
    let mut server = start(false).map_err(|error| cannot(&error))?;
    let current = Arc::new(AtomicU32::new(server.id()));
    let stopping = Arc::clone(&current);
    signals::on_stop(move |_| {
        // The signal cannot be sent if the server has already ended.
        let _ = process::terminate(stopping.swap(NONE, Ordering::SeqCst));
    })
    .map_err(|error| cannot(&error))?;
    if !is_ready(&mut server) {
        return ended(server.wait().map_err(|error| cannot(&error))?, log, &supervising);
    }
    leave(&log).map_err(|error| cannot(&error))?;
    let mut deaths = Deaths::default();
    loop {
        let status = server.wait().map_err(|error| cannot(&error))?;
        let stopped = current.load(Ordering::SeqCst) == NONE;
        let was_killed = status.code().is_none() && !stopped;
        if !was_killed || !deaths.may_restart(Instant::now()) {
            return ended(status, log, &supervising);
        }
        tracing::error!(%status, mountpoint = %mount.point.path.display(), "server killed: restarting it");
        server = start(true).map_err(|error| cannot(&error))?;
        if current.swap(server.id(), Ordering::SeqCst) == NONE {
            let _ = process::terminate(server.id());
        }
        is_ready(&mut server);
    }
}

/// Value in place of the server's process id once a stop was requested; no process has it.
const NONE: u32 = 0;

/// Waits until a server reports readiness or has ended; returns `true` if it is ready.
fn is_ready(server: &mut Child) -> bool {
    let mut said = String::new();
    let read = server.stdout.take().map(|mut output| output.read_to_string(&mut said));
    matches!(read, Some(Ok(_))) && said == READY
}

fn leave(log: &Log) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(READY.as_bytes())?;
    out.flush()?;
    daemon::leave_terminal(log.file())
}

fn ended(status: ExitStatus, log: Log, supervising: &str) -> Outcome {
    log.end();
    match status.code() {
        Some(0) => Ok(()),
        // The server has printed the reason.
        Some(_) => Err(Failure::silent()),
        None => Err(Failure::cannot(supervising, format!("the server died ({status})"))),
    }
}

/// Times of recent deaths of the server, which limit its restarts.
#[derive(Default)]
struct Deaths(VecDeque<Instant>);

const DEATHS_MAX: usize = 5;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

impl Deaths {
    fn may_restart(&mut self, now: Instant) -> bool {
        self.0.retain(|death| now.duration_since(*death) < DEATHS_WITHIN);
        self.0.push_back(now);
        self.0.len() <= DEATHS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_deaths_a_minute_are_borne() {
        let mut deaths = Deaths::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!((0..5).all(|second| deaths.may_restart(after(second))));
        assert!(!deaths.may_restart(after(5)));
        assert!(deaths.may_restart(after(65)));
    }
}
