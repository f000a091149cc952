//! Counter of a server's syncs, by tracing its system calls.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::error::{Doing, Error, Result};

/// System calls that wait for stable storage. Writes with RWF_SYNC or RWF_DSYNC count; writes to files opened
/// with O_SYNC would be missed.
const CALLS: &str = "trace=fsync,fdatasync,syncfs,sync,sync_file_range,msync,pwritev2";

/// Tracer of a process until [`SyncCounter::stop`], with strace. Tracing slows it down by an order of
/// magnitude: never time and trace in the same batch.
pub struct SyncCounter {
    strace: Child,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl SyncCounter {
    pub fn start(process: u32) -> Result<Self> {
        let folder = tempfile::tempdir().doing(|| "make a directory for the trace".to_owned())?;
        let log = folder.path().join("trace");
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &process.to_string(), "-e", CALLS, "-e", "signal=none", "-o"]).arg(&log);
        let strace = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let strace = strace.map_err(|error| Error::Absent(format!("strace cannot be started: {error}")))?;
        let mut counter = Self { strace, log, _folder: folder };
        counter.wait_until_attached()?;
        Ok(counter)
    }

    /// Waits for strace's message on standard error, one line per thread or one for all.
    fn wait_until_attached(&mut self) -> Result<()> {
        let mut said = String::new();
        if let Some(errors) = self.strace.stderr.take() {
            let mut lines = BufReader::new(errors);
            while lines.read_line(&mut said).is_ok_and(|count| count > 0) {
                if said.contains("attached") {
                    // Further output is discarded, so that strace does not block.
                    std::thread::spawn(move || lines.lines().for_each(drop));
                    return Ok(());
                }
            }
        }
        Err(Error::Absent(format!("strace cannot trace the server: {}", said.trim())))
    }

    pub fn stop(mut self) -> Result<u64> {
        let _gone = tombolo_sys::process::terminate(self.strace.id());
        let _ended = self.strace.wait();
        let text = fs::read_to_string(&self.log).doing_to("read", &self.log)?;
        Ok(text.lines().filter(|line| is_sync(line)).count() as u64)
    }
}

impl Drop for SyncCounter {
    fn drop(&mut self) {
        let _gone = tombolo_sys::process::terminate(self.strace.id());
        let _ended = self.strace.wait();
    }
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
