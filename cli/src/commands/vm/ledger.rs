//! What the start of a VM cost, by cause.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tombolo_host_service::control::Client;

use super::home::Run;
use crate::commands::files::shown::size;
use crate::service::counters::Counters;
use crate::service::status;
use crate::table::table;

pub const LEDGER: &str = "ledger.toml";

/// A row for each cause, in the order in which they happened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    rows: Vec<Row>,
    #[serde(skip)]
    clock: Option<Clock>,
    /// The control socket of what caches the image, and what that had counted before.
    #[serde(skip)]
    cache: Option<(PathBuf, Counters)>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    begun: Instant,
    last: Instant,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    cause: String,
    /// None of what goes on beside the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    milliseconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl Ledger {
    pub fn begin() -> Self {
        let now = Instant::now();
        Self { clock: Some(Clock { begun: now, last: now }), ..Self::default() }
    }

    /// The image is read through this cache, which was looked for until now. What others do with it meanwhile
    /// is counted with the rest.
    pub fn reads_through(&mut self, control: &Path) {
        if self.cache.is_some() {
            return;
        }
        self.enter("cache of the image", None);
        let Some(found) = counters(control) else { return };
        // Of one that was started for this VM all counts.
        let age = self.clock.map_or(Duration::ZERO, |clock| clock.begun.elapsed());
        let is_new = Duration::from_nanos(found.uptime_ns) < age;
        self.cache = Some((control.to_owned(), if is_new { Counters::default() } else { found }));
    }

    /// What has gone by since the last row had this cause.
    pub fn enter(&mut self, cause: &str, bytes: Option<u64>) {
        let Some(clock) = &mut self.clock else { return };
        let now = Instant::now();
        let milliseconds = Some(now.duration_since(clock.last).as_secs_f64() * 1e3);
        clock.last = now;
        self.rows.push(Row { cause: cause.into(), milliseconds, bytes });
    }

    /// Adds what the servers have done for it by now, and the sum.
    pub fn end(&mut self, run: &Run) {
        let total = self.clock.map(|clock| clock.begun.elapsed().as_secs_f64() * 1e3);
        for (what, socket) in [("memory", &run.memory_control), ("disk", &run.disk_control)] {
            let Some((read, written)) = moved(socket) else { continue };
            for (done, bytes) in [("read on demand", read), ("written", written)] {
                self.rows.push(Row {
                    cause: format!("{what} {done}"),
                    milliseconds: None,
                    bytes: Some(bytes),
                });
            }
        }
        if let Some((control, before)) = &self.cache
            && let Some(now) = counters(control)
        {
            let of_line = of_line(&now.since(before));
            let rows = of_line.into_iter().map(|(cause, bytes)| Row {
                cause,
                milliseconds: None,
                bytes: Some(bytes),
            });
            self.rows.extend(rows);
        }
        self.rows.push(Row { cause: "all".into(), milliseconds: total, bytes: None });
    }

    pub fn shown(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let milliseconds = row.milliseconds.map_or_else(|| "-".into(), |spent| format!("{spent:.1}"));
            vec![row.cause.clone(), milliseconds, row.bytes.map_or_else(|| "-".into(), size)]
        });
        table(&["cause", "ms", "bytes"], rows, 1)
    }
}

fn counters(control: &Path) -> Option<Counters> {
    let mut client = Client::connect(control).ok()?;
    status::ask(&mut client, control, "stats").ok()
}

/// What went over the line to an image, and what did not have to, by what a cache of it has counted.
pub fn of_line(counted: &Counters) -> Vec<(String, u64)> {
    let line = counted.nfs_clients.values().next();
    let calls = line.map(|line| {
        let round_trip = Duration::from_nanos(line.round_trip_ns).as_secs_f64() * 1e3;
        let cause = format!("line: {} calls, {round_trip:.1} ms there and back", line.calls);
        (cause, line.sent_bytes + line.received_bytes)
    });
    let cache = counted.caches.values().next();
    let of_cache = cache.into_iter().flat_map(|cache| {
        [
            ("line: data", cache.fetched_bytes),
            ("line: data, compressed away", cache.saved_bytes),
            ("line: brought ahead by the trace", cache.traced_bytes),
            ("line: of that, read by now", cache.trace_used_bytes),
            ("from another host's cache", cache.borrowed_bytes),
            ("read through the cache", cache.served_bytes),
            ("of that, here when it was asked for", cache.hit_bytes),
            ("not fetched: zeroes", cache.zero_bytes),
            ("not fetched: equal to what is here", cache.equal_bytes),
        ]
    });
    let of_cache = of_cache.filter(|(_, bytes)| *bytes > 0).map(|(cause, bytes)| (cause.into(), bytes));
    calls.into_iter().chain(of_cache).collect()
}

/// What a cache of an image has come to since it was started.
pub fn of_cache(control: &Path) -> Vec<(String, u64)> {
    counters(control).map_or_else(Vec::new, |counted| of_line(&counted))
}

/// How many requests a server of one disk has taken and not answered.
pub fn under_way(socket: &Path) -> Option<u64> {
    counters(socket)?.exports.into_values().next()?.under_way
}

/// The bytes that a server of one disk has read and written.
pub fn moved(socket: &Path) -> Option<(u64, u64)> {
    let counters = counters(socket)?;
    let disk = counters.exports.into_values().next()?;
    let bytes = |name| disk.operation(name).map_or(0, |operation| operation.bytes);
    Some((bytes("read"), bytes("write")))
}
