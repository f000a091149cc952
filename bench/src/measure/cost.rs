//! What an operation costs beside time: processor time and context switches of the processes that serve it, and of the
//! one that asks.

use std::fs;
use std::ops::{AddAssign, Sub};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What some operations cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Processor time of the servers' threads, in nanoseconds.
    pub server_cpu_ns: f64,
    /// How often a thread of a server gave up the processor or lost it.
    pub server_switches: f64,
    /// Processor time of the caller, in nanoseconds.
    pub caller_cpu_ns: f64,
    /// How often a thread of the caller gave up the processor or lost it.
    pub caller_switches: f64,
}

impl Cost {
    /// The share of one in `count` operations.
    pub fn per(self, count: u64) -> Self {
        let count = count.max(1) as f64;
        Self {
            server_cpu_ns: self.server_cpu_ns / count,
            server_switches: self.server_switches / count,
            caller_cpu_ns: self.caller_cpu_ns / count,
            caller_switches: self.caller_switches / count,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.server_cpu_ns += other.server_cpu_ns;
        self.server_switches += other.server_switches;
        self.caller_cpu_ns += other.caller_cpu_ns;
        self.caller_switches += other.caller_switches;
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            server_cpu_ns: self.server_cpu_ns - earlier.server_cpu_ns,
            server_switches: self.server_switches - earlier.server_switches,
            caller_cpu_ns: self.caller_cpu_ns - earlier.caller_cpu_ns,
            caller_switches: self.caller_switches - earlier.caller_switches,
        }
    }
}

/// Reads the counters of the servers and of this process.
#[derive(Clone, Debug)]
pub struct CostMeter {
    servers: Vec<u32>,
}

impl CostMeter {
    /// For these server processes.
    pub fn new(servers: &[u32]) -> Self {
        Self { servers: servers.to_vec() }
    }

    /// The counters now. Threads that have ended are not in them.
    pub fn now(&self) -> Cost {
        let mut cost = Cost::default();
        for server in &self.servers {
            let (cpu_ns, switches) = process(&server.to_string());
            cost.server_cpu_ns += cpu_ns;
            cost.server_switches += switches;
        }
        (cost.caller_cpu_ns, cost.caller_switches) = process("self");
        cost
    }
}

/// Processor time and switches of all threads of a process: /proc/PID/task/TID/schedstat and status (proc(5)).
fn process(name: &str) -> (f64, f64) {
    let Ok(threads) = fs::read_dir(format!("/proc/{name}/task")) else { return (0.0, 0.0) };
    threads
        .flatten()
        .map(|thread| (cpu_ns(&thread.path()), switches(&thread.path())))
        .fold((0.0, 0.0), |(cpu_ns, switches), (more_cpu_ns, more_switches)| {
            (cpu_ns + more_cpu_ns, switches + more_switches)
        })
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
    fn work_and_sleep_are_seen() {
        let meter = CostMeter::new(&[std::process::id()]);
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
