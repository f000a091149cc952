//! Counters as they travel over the control socket: the reply to `stats`, in `docs/protocols/control.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tombolo_layer::stats::Snapshot;

/// The counters of one server since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// How long the server has run, in nanoseconds.
    pub uptime_ns: u64,
    /// The counters of each export, by its name.
    pub exports: BTreeMap<String, Snapshot>,
}

impl Counters {
    /// What was counted since `earlier`, an older state of the same counters.
    pub fn since(&self, earlier: &Self) -> Self {
        let nothing = Snapshot::default();
        let exports = self.exports.iter().map(|(name, now)| {
            let before = earlier.exports.get(name).unwrap_or(&nothing);
            (name.clone(), now.since(before))
        });
        Self { uptime_ns: self.uptime_ns.saturating_sub(earlier.uptime_ns), exports: exports.collect() }
    }

    /// The time that they cover, in seconds.
    pub fn seconds(&self) -> f64 {
        self.uptime_ns as f64 / 1e9
    }
}
