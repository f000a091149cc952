//! What the start of a VM cost, by cause.

use std::path::Path;
use std::time::Instant;

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
        Self { rows: Vec::new(), clock: Some(Clock { begun: now, last: now }) }
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

/// The bytes that a server of one disk has read and written.
pub fn moved(socket: &Path) -> Option<(u64, u64)> {
    let mut client = Client::connect(socket).ok()?;
    let counters: Counters = status::ask(&mut client, socket, "stats").ok()?;
    let disk = counters.exports.into_values().next()?;
    let bytes = |name| disk.operation(name).map_or(0, |operation| operation.bytes);
    Some((bytes("read"), bytes("write")))
}
