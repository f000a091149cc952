//! Supervisor of a mount: restarts its server after a kill.
//!
//! A FUSE mount without a server fails every call with ENOTCONN. The supervisor notices at once and starts a
//! new server, which unmounts the dead mount and mounts again. Open files are lost; new opens work.

use std::collections::VecDeque;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tombolo_host_runtime::signals;
use tombolo_sys::process;

use crate::cli::LogArgs;
use crate::commands::ready::{is_ready, leave_terminal};
use crate::failure::{Failure, OrCannot, Outcome};

use super::Mount;
use super::background::{Role, spawn};
use super::log::Log;

/// Starts the server, reports readiness, and restarts the server whenever it is killed, until it ends by
/// itself or by request, or is killed too often.
pub fn supervise(mount: &Mount, options: &[String], verbosity: LogArgs) -> Outcome {
    let supervising = format!("mount {} at {}", mount.source, mount.point.path.display());
    let log = Log::open(mount).or_cannot(&supervising)?;
    let start = |again| spawn(mount, options, verbosity, Role::Server { log: log.path(), again });
    let mut server = start(false).or_cannot(&supervising)?;
    let current = Arc::new(AtomicU32::new(server.id()));
    let stopping = Arc::clone(&current);
    signals::on_stop(move |_| {
        // The signal cannot be sent if the server has already ended.
        let _ = process::terminate(stopping.swap(NONE, Ordering::SeqCst));
    })
    .or_cannot(&supervising)?;
    if !is_ready(&mut server).unwrap_or(false) {
        return ended(server.wait().or_cannot(&supervising)?, log, &supervising);
    }
    leave_terminal(log.file()).or_cannot(&supervising)?;
    let mut deaths = Deaths::default();
    loop {
        let status = server.wait().or_cannot(&supervising)?;
        let stopped = current.load(Ordering::SeqCst) == NONE;
        let was_killed = status.code().is_none() && !stopped;
        if !was_killed || !deaths.may_restart(Instant::now()) {
            return ended(status, log, &supervising);
        }
        tracing::error!(%status, mountpoint = %mount.point.path.display(), "server killed: restarting it");
        server = start(true).or_cannot(&supervising)?;
        if current.swap(server.id(), Ordering::SeqCst) == NONE {
            let _ = process::terminate(server.id());
        }
        let _ = is_ready(&mut server);
    }
}

/// Value in place of the server's process id once a stop was requested; no process has it.
const NONE: u32 = 0;

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

/// Maximum number of restarts within [`DEATHS_WITHIN`].
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
