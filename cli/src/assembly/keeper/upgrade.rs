//! Replacement of a running server: the successor waits, the running one is killed, and the successor takes
//! over its requests in flight. Recovery is the same as after a crash, minus the time to start a program.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tombolo_core::lock;
use tombolo_host_service::control::{self, Answers, Server};
use tombolo_sys::process::kill_group;

use super::Keeping;
use super::turn::{Launched, Progress, await_progress};
use crate::failure::{Failure, OrCannot, Reason};

/// Time limit until a program waits for its turn, and then until it serves.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for the reply to an upgrade, which may take [`START_TIMEOUT`] twice.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the directory of the keepers' control sockets, which have their servers' names.
pub fn directory() -> PathBuf {
    control::default_directory().join("keepers")
}

/// Serves the control socket of the keeper, for `upgrade=PROGRAM`.
pub fn serve(keeping: &Arc<Keeping>, name: &str) -> Result<Server, Failure> {
    let listening = "listen for `tombolo upgrade`";
    // An unusable directory is detected when the socket is created.
    let _ = DirBuilder::new().mode(0o700).create(control::default_directory());
    let socket = control::free_socket(&directory(), name).or_cannot(listening)?;
    let answers = Arc::new(Upgrades(Arc::clone(keeping)));
    Server::start(socket, answers).or_cannot(listening)
}

struct Upgrades(Arc<Keeping>);

impl Answers for Upgrades {
    fn answer(&self, _request: &str) -> Option<Value> {
        None
    }

    fn set(&self, options: &str) -> Result<Value, String> {
        let program = options.strip_prefix("upgrade=").map(Path::new).filter(|path| path.is_absolute());
        let took = self.0.upgrade(program.ok_or("write upgrade=PROGRAM, with an absolute path")?)?;
        Ok(json!({ "took_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX) }))
    }
}

impl Keeping {
    /// Replaces the running server by one of `program`; if that one fails, the old server continues or the
    /// old program is started again. Returns the time without a server.
    fn upgrade(&self, program: &Path) -> Result<Duration, String> {
        let _only = lock(&self.upgrading);
        let shown = program.display();
        let launched = Launched::start(program, &self.words, false);
        let mut next = launched.map_err(|error| String::from(Reason::from(&error)))?;
        if await_progress(&next.progress, Progress::Waits, START_TIMEOUT).is_err() {
            end(&mut next.process);
            return Err(format!("{shown} cannot serve what this server does; the old server continues"));
        }
        let (_, nothing) = std::sync::mpsc::channel();
        let progress = std::mem::replace(&mut next.progress, nothing);
        let since = Instant::now();
        let running = lock(&self.running);
        let Some(process) = running.process else {
            end(&mut next.process);
            return Err("the server has just died; try again".into());
        };
        let successor = next.process.id();
        *lock(&self.next) = Some(next);
        // The server leads a process group of its own. A failure means that the server is dead already.
        let _ = kill_group(process);
        drop(running);
        if let Err(reason) = await_progress(&progress, Progress::Serves, START_TIMEOUT) {
            let failed = match reason {
                RecvTimeoutError::Disconnected => "has ended".into(),
                RecvTimeoutError::Timeout => {
                    self.kill(successor);
                    format!("did not serve within {} s and was killed", START_TIMEOUT.as_secs())
                }
            };
            return Err(format!(
                "the server of {shown} {failed} (see its log); the old program was started again"
            ));
        }
        let took = since.elapsed();
        *lock(&self.program) = program.to_owned();
        tracing::info!(program = %shown, took_ms = took.as_millis(), "upgraded");
        Ok(took)
    }

    /// Kills a successor that does not serve, unless it has ended by itself. The keeper then starts the old
    /// program again.
    fn kill(&self, server: u32) {
        let running = lock(&self.running);
        // The number of a server that has ended may be another process's by now.
        if running.process == Some(server) || lock(&self.next).is_some() {
            let _ = kill_group(server);
        }
    }
}

/// Kills a successor that is not needed, and reaps it.
fn end(successor: &mut Child) {
    let _ = successor.kill();
    let _ = successor.wait();
}
