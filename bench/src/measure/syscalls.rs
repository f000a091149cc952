//! Counter of a server's system calls, by `perf`.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Counter of a process's system calls until [`SyscallCounter::stop`]. Counting slows the process down: never
/// time and count in the same batch.
pub struct SyscallCounter {
    perf: Child,
}

impl SyscallCounter {
    /// Starts to count. Returns `None` without `perf` or permission.
    pub fn start(process: u32) -> Option<Self> {
        // perf counts while its command runs, and `cat` runs while its input is open.
        let mut perf = Command::new("perf")
            .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p"])
            .args([&process.to_string(), "--", "cat"])
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let echoed = echo(&mut perf);
        let counter = Self { perf };
        // The echo shows that counting has begun.
        echoed.map(|()| counter)
    }

    /// Stops; returns the number of calls, if `perf` reports it.
    pub fn stop(mut self) -> Option<u64> {
        drop(self.perf.stdin.take());
        let mut text = String::new();
        self.perf.stderr.as_mut()?.read_to_string(&mut text).ok()?;
        text.lines().find(|line| line.contains("sys_enter"))?.split(',').next()?.parse().ok()
    }
}

impl Drop for SyscallCounter {
    fn drop(&mut self) {
        drop(self.perf.stdin.take());
        // It may have ended already.
        let _ended = self.perf.wait();
    }
}

fn echo(perf: &mut Child) -> Option<()> {
    perf.stdin.as_mut()?.write_all(b"\n").ok()?;
    let mut byte = [0];
    perf.stdout.as_mut()?.read_exact(&mut byte).ok()
}
