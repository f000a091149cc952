//! Counters of processes: processor time and context switches of servers and caller; memory and descriptors,
//! from /proc (proc(5)); a server's syncs, by tracing its system calls, and its system calls, by `perf`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::ops::{AddAssign, Range, Sub};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tempfile::TempDir;

use crate::error::{Doing, Result};
use crate::measure::threads;
use crate::peer::Server;

/// Costs of some operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Processor time of the servers' threads, in nanoseconds.
    pub server_cpu_ns: f64,
    /// Context switches of the servers' threads, voluntary or not.
    pub server_switches: f64,
    /// Processor time of the caller, in nanoseconds.
    pub caller_cpu_ns: f64,
    /// Context switches of the caller's threads, voluntary or not.
    pub caller_switches: f64,
}

impl Cost {
    /// Returns the cost per operation.
    pub fn per(self, count: u64) -> Self {
        let count = count.max(1) as f64;
        self.with(Self::default(), |cost, _| cost / count)
    }

    /// Combines each cost with the other's.
    fn with(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            server_cpu_ns: combine(self.server_cpu_ns, other.server_cpu_ns),
            server_switches: combine(self.server_switches, other.server_switches),
            caller_cpu_ns: combine(self.caller_cpu_ns, other.caller_cpu_ns),
            caller_switches: combine(self.caller_switches, other.caller_switches),
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = self.with(other, |one, other| one + other);
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.with(earlier, |now, earlier| now - earlier)
    }
}

/// Reader of the counters of servers and caller.
#[derive(Debug)]
pub struct CostMeter {
    servers: Vec<Process>,
    caller: Process,
}

impl CostMeter {
    /// Creates a meter for these servers and a caller; `None` is this process.
    pub fn new(servers: &[u32], caller: Option<u32>) -> Self {
        let servers = servers.iter().map(|server| Process::new(&server.to_string())).collect();
        let caller = caller.map_or_else(|| "self".to_owned(), |caller| caller.to_string());
        Self { servers, caller: Process::new(&caller) }
    }

    /// Excludes this process's initial thread, which measures, from the caller's costs.
    pub fn besides_initial_thread(mut self) -> Self {
        self.caller.left_out = Some(std::process::id().to_string().into());
        self
    }

    /// Returns the present counters. They never decrease: ended threads are included as last known.
    pub fn now(&self) -> Cost {
        let mut cost = Cost::default();
        for server in &self.servers {
            let (cpu_ns, switches) = server.look();
            cost.server_cpu_ns += cpu_ns;
            cost.server_switches += switches;
        }
        (cost.caller_cpu_ns, cost.caller_switches) = self.caller.look();
        cost
    }
}

/// Processor time and context switches of all threads of a process that were seen in a reading, from
/// /proc/PID/task/TID/schedstat and status (proc(5)), which disappear with the thread.
#[derive(Debug)]
struct Process {
    tasks: PathBuf,
    threads: Mutex<HashMap<OsString, (f64, f64)>>,
    /// Thread that does not count.
    left_out: Option<OsString>,
}

impl Process {
    fn new(name: &str) -> Self {
        Self { tasks: PathBuf::from(format!("/proc/{name}/task")), threads: Mutex::default(), left_out: None }
    }

    fn look(&self) -> (f64, f64) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let present = fs::read_dir(&self.tasks).into_iter().flatten().flatten();
        for thread in present.filter(|thread| self.left_out != Some(thread.file_name())) {
            let (cpu_ns, switches) = (cpu_ns(&thread.path()), switches(&thread.path()));
            let known = threads.entry(thread.file_name()).or_default();
            // A thread may end between listing and reading; its files are then empty.
            *known = (known.0.max(cpu_ns), known.1.max(switches));
        }
        threads.values().fold((0.0, 0.0), |sum, thread| (sum.0 + thread.0, sum.1 + thread.1))
    }
}

fn cpu_ns(thread: &Path) -> f64 {
    let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn switches(thread: &Path) -> f64 {
    let text = fs::read_to_string(thread.join("status")).unwrap_or_default();
    text.lines()
        .filter(|line| line.contains("ctxt_switches"))
        .filter_map(|line| line.split_whitespace().next_back()?.parse::<f64>().ok())
        .sum()
}

/// Resident memory and open descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub memory_bytes: f64,
    /// Part of `memory_bytes` that is shared memory (RssShmem).
    pub shared_bytes: f64,
    pub descriptors: f64,
}

impl Held {
    /// Reads the state of a process, by its number or as `self`.
    pub fn by(process: &str) -> Result<Self> {
        let status = read_of(process, "status")?;
        let path = format!("/proc/{process}/fd");
        let descriptors = fs::read_dir(&path).doing_to("list", Path::new(&path))?.count() as f64;
        let field =
            |name| status.lines().find_map(|line| bytes(line.strip_prefix(name)?)).unwrap_or_default();
        let (memory_bytes, shared_bytes) = (field("VmRSS:") as f64, field("RssShmem:") as f64);
        Ok(Self { memory_bytes, shared_bytes, descriptors })
    }
}

/// A mapping of a process, and how much of it is resident: pages that it has accessed, and neighbours that
/// the kernel mapped with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    pub resident_bytes: u64,
}

/// Returns the mappings of files whose names contain one of these.
pub fn mappings(process: &str, files: &[&str]) -> Result<Vec<Mapping>> {
    Ok(mapped(&read_of(process, "smaps")?, files))
}

fn mapped(smaps: &str, files: &[&str]) -> Vec<Mapping> {
    let (mut found, mut inside): (Vec<Mapping>, _) = (Vec::new(), false);
    for line in smaps.lines() {
        if let Some(range) = range(line) {
            inside = files.iter().any(|file| line.contains(file));
            found.extend(inside.then_some(Mapping { range, resident_bytes: 0 }));
        } else if let (true, Some(rest), Some(last)) = (inside, line.strip_prefix("Rss:"), found.last_mut()) {
            last.resident_bytes = bytes(rest).unwrap_or_default();
        }
    }
    found
}

/// Returns the range of the first line of a mapping.
fn range(line: &str) -> Option<Range<u64>> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

/// Parses a number of KiB.
fn bytes(text: &str) -> Option<u64> {
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn read_of(process: &str, name: &str) -> Result<String> {
    let path = format!("/proc/{process}/{name}");
    fs::read_to_string(&path).doing_to("read", Path::new(&path))
}

/// System calls that may wait for stable storage. Of pwritev2, only calls with RWF_SYNC or RWF_DSYNC count;
/// writes to files opened with O_SYNC would be missed.
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

/// Returns `true` if a line of the trace, `PID name(arguments…`, begins a call that counts as a sync.
fn is_sync(line: &str) -> bool {
    let call = line.split_whitespace().nth(1).unwrap_or_default();
    match call.split_once('(') {
        Some(("pwritev2", _)) => line.contains("RWF_SYNC") || line.contains("RWF_DSYNC"),
        Some((_, _)) => true,
        None => false,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ended_still_counts() {
        let meter = CostMeter::new(&[], None);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            (0..50).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
            wait.recv().ok();
        });
        std::thread::sleep(std::time::Duration::from_millis(200));
        let before = meter.now();
        go.send(()).expect("the thread waits");
        thread.join().expect("the thread ends");
        let cost = meter.now() - before;
        assert!(cost.caller_switches >= 0.0 && cost.caller_cpu_ns >= 0.0, "{cost:?}");
    }

    #[test]
    fn cost_meter_counts_work_and_sleep() {
        let meter = CostMeter::new(&[std::process::id()], None);
        let before = meter.now();
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut sum = 0_u64;
        for number in 0..2_000_000_u64 {
            sum = std::hint::black_box(sum ^ number.rotate_left(7));
        }
        let cost = meter.now() - before;
        assert!(cost.caller_cpu_ns > 100_000.0, "{cost:?}");
        assert!(cost.server_switches >= 20.0, "{cost:?}");
    }

    #[test]
    fn only_the_mappings_of_the_files_count() {
        let smaps = "7f00-7f10 rw-s 00000000 00:01 5 /memfd:tombolo-client (deleted)\nSize: 64 kB\nRss: 12 kB\n\
                     7f10-7f20 r--s 00000000 00:01 6 /memfd:tombolo-server (deleted)\nRss: 4 kB\nShared_Clean: 4 kB\n\
                     7f20-7f30 rw-p 00000000 00:00 0 [heap]\nRss: 64 kB\n";
        let found = mapped(smaps, &["/memfd:tombolo-client", "/memfd:tombolo-server"]);
        let found: Vec<_> = found.into_iter().map(|part| (part.range, part.resident_bytes)).collect();
        assert_eq!(found, [(0x7f00..0x7f10, 12 << 10), (0x7f10..0x7f20, 4 << 10)]);
        assert!(Held::by("self").unwrap().memory_bytes > 0.0);
    }

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
