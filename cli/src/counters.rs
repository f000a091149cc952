//! Counters as they travel over the control socket: the reply to `stats`, in `docs/protocols/control.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tombolo_host::rpc_server::Counts;
use tombolo_layer::stats::Snapshot;

/// The counters of one server since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// How long the server has run, in nanoseconds.
    pub uptime_ns: u64,
    /// The counters of each export, by its name.
    pub exports: BTreeMap<String, Snapshot>,
    /// What happened at each NFS port, by its address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nfs: BTreeMap<String, NfsCounters>,
}

/// The counters of one NFS port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsCounters {
    /// Connections there are.
    pub connections: u64,
    /// Connections there have been.
    pub connections_total: u64,
    /// Callers that were turned away.
    pub refused: u64,
    /// Connections that were cut off: their peer took no replies, said nothing of use, or sent what is too long.
    pub cut_off: u64,
    /// Calls received.
    pub calls: u64,
    /// Bytes of calls.
    pub received_bytes: u64,
    /// Bytes of replies.
    pub sent_bytes: u64,
}

impl From<Counts> for NfsCounters {
    fn from(counts: Counts) -> Self {
        Self {
            connections: counts.connections,
            connections_total: counts.connections_total,
            refused: counts.refused,
            cut_off: counts.closed_stuck + counts.closed_silent + counts.closed_too_long,
            calls: counts.calls,
            received_bytes: counts.received_bytes,
            sent_bytes: counts.sent_bytes,
        }
    }
}

impl NfsCounters {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            connections: self.connections,
            connections_total: self.connections_total.saturating_sub(earlier.connections_total),
            refused: self.refused.saturating_sub(earlier.refused),
            cut_off: self.cut_off.saturating_sub(earlier.cut_off),
            calls: self.calls.saturating_sub(earlier.calls),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
        }
    }
}

impl Counters {
    /// What was counted since `earlier`, an older state of the same counters.
    pub fn since(&self, earlier: &Self) -> Self {
        let nothing = Snapshot::default();
        let exports = self.exports.iter().map(|(name, now)| {
            let before = earlier.exports.get(name).unwrap_or(&nothing);
            (name.clone(), now.since(before))
        });
        let idle = NfsCounters::default();
        let nfs = self
            .nfs
            .iter()
            .map(|(address, now)| (address.clone(), now.since(earlier.nfs.get(address).unwrap_or(&idle))));
        Self {
            uptime_ns: self.uptime_ns.saturating_sub(earlier.uptime_ns),
            exports: exports.collect(),
            nfs: nfs.collect(),
        }
    }

    /// The time that they cover, in seconds.
    pub fn seconds(&self) -> f64 {
        self.uptime_ns as f64 / 1e9
    }
}
