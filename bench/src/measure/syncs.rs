//! Counter of a server's syncs, by tracing its system calls.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::threads;
use crate::error::{Doing, Result};
use crate::peer::Server;

/// System calls that wait for stable storage. Writes with RWF_SYNC or RWF_DSYNC count; writes to files opened
/// with O_SYNC would be missed.
const CALLS: &str = "trace=fsync,fdatasync,syncfs,sync,sync_file_range,msync,pwritev2";

/// Tracer of a process until [`SyncCounter::stop`], with strace. Tracing slows it down by an order of
/// magnitude: never time and trace in the same batch.
pub struct SyncCounter {
    strace: Server,
    folder: TempDir,
}

impl SyncCounter {
    pub fn start(process: u32) -> Result<Self> {
        let folder = tempfile::tempdir().doing(|| "make a directory for the trace".to_owned())?;
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &process.to_string(), "-e", CALLS, "-e", "signal=none", "-o"]);
        let mut strace = Server::start("strace", command.arg(folder.path().join("trace")))?;
        strace
            .wait_until("trace", || threads(process).into_iter().all(|thread| is_traced(process, thread)))?;
        Ok(Self { strace, folder })
    }

    pub fn stop(mut self) -> Result<u64> {
        self.strace.stop();
        let log = self.folder.path().join("trace");
        let text = fs::read_to_string(&log).doing_to("read", &log)?;
        Ok(text.lines().filter(|line| is_sync(line)).count() as u64)
    }
}

/// Returns `true` if a thread has a tracer (proc_pid_status(5)).
fn is_traced(process: u32, thread: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

/// Returns `true` if a line of the trace, `PID name(arguments…`, begins such a call.
fn is_sync(line: &str) -> bool {
    let call = line.split_whitespace().nth(1).unwrap_or_default();
    match call.split_once('(') {
        Some(("pwritev2", _)) => line.contains("RWF_SYNC") || line.contains("RWF_DSYNC"),
        Some((_, _)) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_durable_calls_count_and_only_once() {
        for (line, counts) in [
            ("17    fsync(8)                        = 0", true),
            ("17    fdatasync(8 <unfinished ...>", true),
            ("17    <... fdatasync resumed>)          = 0", false),
            ("17    pwritev2(8, [{iov_base=\"z\", iov_len=1}], 1, 0, RWF_DSYNC) = 1", true),
            ("17    pwritev2(8, [{iov_base=\"z\", iov_len=1}], 1, 0, 0) = 1", false),
            ("17    +++ exited with 0 +++", false),
        ] {
            assert_eq!(is_sync(line), counts, "{line}");
        }
    }
}
