//! Costs of an operation other than time: processor time and context switches of the servers and of the
//! caller.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::ops::{AddAssign, Sub};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

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

    /// Leaves out the initial thread, which looks at the others.
    pub fn besides_initial_thread(mut self) -> Self {
        self.caller.left_out = Some(std::process::id().to_string().into());
        self
    }

    /// Returns the present counters. They never decrease: the last known counters of ended threads are
    /// included.
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

/// Processor time and context switches of all present and past threads of a process:
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
}
