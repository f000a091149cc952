//! Machine and time of a measurement.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use time::UtcDateTime;

use crate::measure::spare_cores;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    /// Number of cores that the run was allowed.
    pub cores: usize,
    pub kernel: String,
    pub time_secs: u64,
    /// Load average of the minute before the run, including other work.
    pub load: f64,
    /// Time for which an idle core polls before it halts, if this machine is a guest whose kernel does so
    /// (haltpoll): wake-ups during it are cheap.
    pub halt_poll_us: Option<u64>,
    /// Priority of the run over other work (nice(2)): −20 is the highest.
    pub niceness: i32,
    pub version: String,
}

impl Machine {
    pub fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map(|(_, name)| name.trim().to_owned())
            .unwrap_or_default();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            processor,
            cores: spare_cores().len(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            time_secs: since_1970.as_secs(),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or_default(),
            halt_poll_us: halt_poll_us(&read("/sys/module/haltpoll/parameters/guest_halt_poll_ns")),
            niceness: niceness(&read("/proc/self/stat")),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    pub fn line(&self) -> String {
        let idle = self.halt_poll_us.map_or_else(String::new, |us| format!("idle cores poll for {us} µs, "));
        format!(
            "{}, {} cores, Linux {}, {}; {idle}load before the run {:.1}, niceness {}; Tombolo {}",
            self.processor,
            self.cores,
            self.kernel,
            UtcDateTime::from(UNIX_EPOCH + Duration::from_secs(self.time_secs)).date(),
            self.load,
            self.niceness,
            self.version
        )
    }
}

fn halt_poll_us(parameter: &str) -> Option<u64> {
    parameter.trim().parse::<u64>().ok().map(|ns| ns / 1000)
}

/// Returns field 19 of /proc/PID/stat; the second, the program's name in brackets, may contain anything.
fn niceness(stat: &str) -> i32 {
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().nth(16).and_then(|field| field.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn niceness_is_parsed_after_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 108 0 0 0 0 0 0 0 0 -20 1 0 7";
        assert_eq!(niceness(stat), -20);
    }

    #[test]
    fn a_kernel_without_haltpoll_says_nothing_about_idle_cores() {
        assert_eq!(
            (halt_poll_us(""), halt_poll_us("0\n"), halt_poll_us("200000\n")),
            (None, Some(0), Some(200))
        );
    }
}
