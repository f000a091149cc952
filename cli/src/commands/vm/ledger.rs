//! Cost of a VM's start, in time and bytes, by cause; printed by `tombolo clone`, `vm resume` and `vm show`.

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

/// Rows by cause, in chronological order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    rows: Vec<Row>,
    #[serde(skip)]
    clock: Option<Clock>,
    /// Control socket of the image's cache, and the cache's counters at the start of the VM.
    #[serde(skip)]
    cache: Option<(PathBuf, Counters)>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    begun: Instant,
    /// Time of the last row.
    last: Instant,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    cause: String,
    /// Duration; `None` for work concurrent with other rows.
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

    /// Charges the time since the last row to finding the image's cache, and counts the cache's work from now
    /// on, including its work for other VMs. Does nothing if a cache is counted already.
    pub fn reads_through(&mut self, control: &Path) {
        if self.cache.is_some() {
            return;
        }
        self.enter("cache of the image", None);
        let Some(found) = counters(control) else { return };
        // Work of a cache started for this VM is counted from the cache's start.
        let age = self.clock.map_or(Duration::ZERO, |clock| clock.begun.elapsed());
        let is_new = Duration::from_nanos(found.uptime_ns) < age;
        self.cache = Some((control.to_owned(), if is_new { Counters::default() } else { found }));
    }

    /// Charges the time since the last row to this cause.
    pub fn enter(&mut self, cause: &str, bytes: Option<u64>) {
        let Some(clock) = &mut self.clock else { return };
        let now = Instant::now();
        let milliseconds = Some(now.duration_since(clock.last).as_secs_f64() * 1e3);
        clock.last = now;
        self.rows.push(Row { cause: cause.into(), milliseconds, bytes });
    }

    /// Adds rows for the work of the servers and of the image's cache so far, and for the total.
    pub fn end(&mut self, run: &Run) {
        let total = self.clock.map(|clock| clock.begun.elapsed().as_secs_f64() * 1e3);
        let concurrent = |(cause, bytes)| Row { cause, milliseconds: None, bytes: Some(bytes) };
        for (what, socket) in [("memory", &run.memory_control), ("disk", &run.disk_control)] {
            let Some((read, written)) = moved(socket) else { continue };
            let done = [("read on demand", read), ("written", written)];
            self.rows.extend(done.map(|(done, bytes)| concurrent((format!("{what} {done}"), bytes))));
        }
        if let Some((control, before)) = &self.cache
            && let Some(now) = counters(control)
        {
            self.rows.extend(of_line(&now.since(before)).into_iter().map(concurrent));
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
    Meter::of(control).counters()
}

/// Returns rows of cause and bytes: the network traffic of an image's cache, and the traffic that it saved.
pub fn of_line(counted: &Counters) -> Vec<(String, u64)> {
    let line = counted.nfs_clients.values().next();
    let calls = line.map(|line| {
        let round_trip = Duration::from_nanos(line.round_trip_ns).as_secs_f64() * 1e3;
        let cause = format!("network: {} calls, {round_trip:.1} ms round trip", line.calls);
        (cause, line.sent_bytes + line.received_bytes)
    });
    let cache = counted.caches.values().next();
    let of_cache = cache.into_iter().flat_map(|cache| {
        [
            ("network: data", cache.fetched_bytes),
            ("network: saved by compression", cache.saved_bytes),
            ("network: prefetched by the trace", cache.traced_bytes),
            ("network: of that, read so far", cache.trace_used_bytes),
            ("from another host's cache", cache.borrowed_bytes),
            ("read through the cache", cache.served_bytes),
            ("of that, from the cache", cache.hit_bytes),
            ("not fetched: zeroes", cache.zero_bytes),
            ("not fetched: duplicates", cache.equal_bytes),
        ]
    });
    let of_cache = of_cache.filter(|(_, bytes)| *bytes > 0).map(|(cause, bytes)| (cause.into(), bytes));
    calls.into_iter().chain(of_cache).collect()
}

/// Returns the rows of [`of_line`] since the start of an image's cache; none if it does not respond.
pub fn of_cache(control: &Path) -> Vec<(String, u64)> {
    counters(control).map_or_else(Vec::new, |counted| of_line(&counted))
}

/// Returns the bytes read from and written to a disk since the start of its server; `None` if the server
/// does not respond.
pub fn moved(socket: &Path) -> Option<(u64, u64)> {
    Meter::of(socket).moved()
}

/// A connection to a disk server, made in advance because its counters are read while the guest is paused.
pub struct Meter {
    socket: PathBuf,
    client: Option<Client>,
}

impl Meter {
    pub fn of(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), client: Client::connect(socket).ok() }
    }

    fn counters(&mut self) -> Option<Counters> {
        status::ask(self.client.as_mut()?, &self.socket, "stats").ok()
    }

    /// Returns the number of outstanding requests; `None` if the server does not respond.
    pub fn under_way(&mut self) -> Option<u64> {
        self.counters()?.exports.into_values().next()?.under_way
    }

    /// Returns the bytes read and written, as [`moved`] does.
    pub fn moved(&mut self) -> Option<(u64, u64)> {
        let disk = self.counters()?.exports.into_values().next()?;
        let bytes = |name| disk.operation(name).map_or(0, |operation| operation.bytes);
        Some((bytes("read"), bytes("write")))
    }
}
