//! Counts a server's system calls, where `perf` may do so.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Counts the system calls of a process from its making to [`SyscallCounter::stop`]. Counting slows the
/// process down: never time and count in the same batch.
pub struct SyscallCounter {
    perf: Child,
}

impl SyscallCounter {
    /// Starts to count. `None` where there is no `perf`, or no permission.
    pub fn start(process: u32) -> Option<Self> {
        // perf counts as long as the command runs that it is given, and `cat` runs as long as we keep its
        // input open.
        let mut perf = Command::new("perf")
            .args([
                "stat",
                "-x",
                ",",
                "-e",
                "raw_syscalls:sys_enter",
                "-p",
                &process.to_string(),
                "--",
                "cat",
            ])
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let echoed = echo(&mut perf);
        let counter = Self { perf };
        // The echo tells that counting has begun.
        echoed.map(|()| counter)
    }

    /// The number of calls, where `perf` could tell it.
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
        // It may have ended already, which is what is wanted.
        let _ended = self.perf.wait();
    }
}

fn echo(perf: &mut Child) -> Option<()> {
    perf.stdin.as_mut()?.write_all(b"\n").ok()?;
    let mut byte = [0];
    perf.stdout.as_mut()?.read_exact(&mut byte).ok()
}
