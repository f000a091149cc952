//! Counters sent over the control socket: the reply to `stats` in `docs/protocols/control.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tombolo_host_rpc::client::Counts as ClientCounts;
use tombolo_host_rpc::server::Counts;
use tombolo_layer_basic::stats::Snapshot;
use tombolo_layer_cache::{Counts as CacheCounts, LeaseState};
use tombolo_layer_write_back::Status as WriteBackStatus;

/// Counters of one server since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Uptime of the server in nanoseconds.
    pub uptime_ns: u64,
    /// Operation counters by export.
    pub exports: BTreeMap<String, Snapshot>,
    /// NFS port counters by address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nfs: BTreeMap<String, NfsCounters>,
    /// NFS client counters by export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nfs_clients: BTreeMap<String, NfsClientCounters>,
    /// Cache counters by export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, CacheCounters>,
    /// State of unsent changes by export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub write_backs: BTreeMap<String, WriteBackState>,
}

/// Progress of an export's changes, which are numbered from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBackState {
    /// Latest change.
    pub change: u64,
    /// Last change up to which the local disk, and the origin, have everything.
    pub on_disk: u64,
    pub at_origin: u64,
    /// Unsent data, and files and names with unsent changes.
    pub dirty_bytes: u64,
    pub dirty_nodes: u64,
    /// Age of the oldest unsent change in nanoseconds; 0 if there is none.
    pub oldest_ns: u64,
    /// Conflicting versions at the origin that were retained next to ours.
    pub conflicts: u64,
    /// Blocks that were being overwritten at an unclean end.
    #[serde(default)]
    pub torn: u64,
    /// Reason for the failure of the last attempt to send changes, if it failed.
    pub failure: Option<String>,
    /// `true` if the origin has all changes.
    #[serde(default)]
    pub is_clean: bool,
    /// Files and directories with attributes that a program has set, or other changes, that the origin has
    /// refused.
    #[serde(default)]
    pub refused: u64,
    /// The origin has all changes up to this one, except what it has refused.
    #[serde(default)]
    pub settled: u64,
    /// `true` if the origin refused changes in the last attempt, rather than being unreachable or full.
    #[serde(default)]
    pub is_refused: bool,
    /// Begun and ended attempts to send changes.
    #[serde(default)]
    pub attempts_begun: u64,
    #[serde(default)]
    pub attempts_ended: u64,
}

impl WriteBackState {
    /// Returns `true` if a flush requested at this state has completed by `now`: the origin has everything up
    /// to it, or has refused part of it.
    pub fn is_settled(&self, now: &Self) -> bool {
        self.is_clean || self.is_reached(now) || now.attempts_ended > self.attempts_begun
    }

    /// Returns the reason that the origin lacks changes up to this state after a completed flush.
    pub fn refusal<'a>(&self, now: &'a Self) -> Option<&'a str> {
        let is_refused = now.refused > 0 || !self.is_reached(now);
        now.failure.as_deref().filter(|_| !self.is_clean && is_refused)
    }

    /// Returns the reason that waiting for the changes up to this state is useless: the origin has refused
    /// some of them since, or lacks only refused ones.
    pub fn lasting_refusal<'a>(&self, now: &'a Self) -> Option<&'a str> {
        let lasts = match now.at_origin >= self.change {
            true => now.refused > 0,
            false if now.settled >= self.change => now.refused > 0,
            false => now.is_refused && now.attempts_ended > self.attempts_begun,
        };
        now.failure.as_deref().filter(|_| lasts)
    }

    fn is_reached(&self, now: &Self) -> bool {
        self.at_origin < self.change && now.at_origin >= self.change
    }
}

impl From<WriteBackStatus> for WriteBackState {
    fn from(status: WriteBackStatus) -> Self {
        Self {
            change: status.change,
            on_disk: status.on_disk,
            at_origin: status.at_origin,
            dirty_bytes: status.dirty_bytes,
            dirty_nodes: status.dirty_nodes as u64,
            oldest_ns: nanoseconds(status.oldest.unwrap_or_default()),
            conflicts: status.conflicts,
            torn: status.torn,
            failure: status.failure,
            is_clean: status.is_clean,
            refused: status.refused as u64,
            settled: status.settled,
            is_refused: status.is_refused,
            attempts_begun: status.attempts_begun,
            attempts_ended: status.attempts_ended,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounters {
    /// Operations served without the origin, and those that waited for it.
    pub hits: u64,
    pub misses: u64,
    /// File data returned to readers, and the cached part of them.
    pub served_bytes: u64,
    pub hit_bytes: u64,
    /// File data read from the origin.
    pub fetched_bytes: u64,
    /// Bytes of these saved by compression in transit.
    #[serde(default)]
    pub saved_bytes: u64,
    /// File data borrowed from other caches, and lent to them.
    #[serde(default)]
    pub borrowed_bytes: u64,
    #[serde(default)]
    pub lent_bytes: u64,
    /// File data from another cache or a local copy that did not match the file's digest.
    #[serde(default)]
    pub refused_bytes: u64,
    /// File data known to be zeroes from a sidecar, and not read from the origin.
    #[serde(default)]
    pub zero_bytes: u64,
    /// File data copied from equal cached blocks, and not read from the origin.
    #[serde(default)]
    pub equal_bytes: u64,
    /// Fetched small files that were not requested, and those of them read since.
    pub guessed_bytes: u64,
    pub guess_used_bytes: u64,
    /// Data fetched ahead according to a trace, and those of them read since.
    #[serde(default)]
    pub traced_bytes: u64,
    #[serde(default)]
    pub trace_used_bytes: u64,
    /// Files passed to a kernel for passthrough reads, which no other counter includes.
    #[serde(default)]
    pub backed: u64,
    /// Lease of the tree, if one was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lease {
    Held,
    RunOut,
    Lost,
    NotGranted,
}

impl From<LeaseState> for Lease {
    fn from(state: LeaseState) -> Self {
        match state {
            LeaseState::Held => Self::Held,
            LeaseState::RunOut => Self::RunOut,
            LeaseState::Lost => Self::Lost,
            LeaseState::NotGranted => Self::NotGranted,
        }
    }
}

impl From<CacheCounts> for CacheCounters {
    fn from(counts: CacheCounts) -> Self {
        Self {
            hits: counts.hits,
            misses: counts.misses,
            served_bytes: counts.served_bytes,
            hit_bytes: counts.hit_bytes,
            fetched_bytes: counts.fetched_bytes,
            saved_bytes: counts.saved_bytes,
            borrowed_bytes: counts.borrowed_bytes,
            lent_bytes: counts.lent_bytes,
            refused_bytes: counts.refused_bytes,
            zero_bytes: counts.zero_bytes,
            equal_bytes: counts.equal_bytes,
            guessed_bytes: counts.guessed_bytes + counts.listed_ahead_bytes,
            guess_used_bytes: counts.guess_used_bytes + counts.listing_used_bytes,
            traced_bytes: counts.traced_bytes,
            trace_used_bytes: counts.trace_used_bytes,
            backed: counts.backed,
            lease: counts.lease.map(Lease::from),
        }
    }
}

impl CacheCounters {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            served_bytes: self.served_bytes.saturating_sub(earlier.served_bytes),
            hit_bytes: self.hit_bytes.saturating_sub(earlier.hit_bytes),
            fetched_bytes: self.fetched_bytes.saturating_sub(earlier.fetched_bytes),
            saved_bytes: self.saved_bytes.saturating_sub(earlier.saved_bytes),
            borrowed_bytes: self.borrowed_bytes.saturating_sub(earlier.borrowed_bytes),
            lent_bytes: self.lent_bytes.saturating_sub(earlier.lent_bytes),
            refused_bytes: self.refused_bytes.saturating_sub(earlier.refused_bytes),
            zero_bytes: self.zero_bytes.saturating_sub(earlier.zero_bytes),
            equal_bytes: self.equal_bytes.saturating_sub(earlier.equal_bytes),
            guessed_bytes: self.guessed_bytes.saturating_sub(earlier.guessed_bytes),
            guess_used_bytes: self.guess_used_bytes.saturating_sub(earlier.guess_used_bytes),
            traced_bytes: self.traced_bytes.saturating_sub(earlier.traced_bytes),
            trace_used_bytes: self.trace_used_bytes.saturating_sub(earlier.trace_used_bytes),
            backed: self.backed.saturating_sub(earlier.backed),
            lease: self.lease,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsCounters {
    pub connections: u64,
    /// Connections accepted so far.
    pub connections_total: u64,
    /// Refused callers.
    pub refused: u64,
    /// Connections closed because the peer did not read replies, sent nothing useful, sent too much, omitted
    /// required TLS, or was idle when others needed the slot.
    pub cut_off: u64,
    pub calls: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

impl From<Counts> for NfsCounters {
    fn from(counts: Counts) -> Self {
        Self {
            connections: counts.connections,
            connections_total: counts.connections_total,
            refused: counts.refused,
            cut_off: counts.closed_stuck
                + counts.closed_silent
                + counts.closed_for_others
                + counts.closed_too_long
                + counts.closed_insecure,
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

/// Counters of the client of one NFS server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsClientCounters {
    pub calls: u64,
    /// Replies matched to a call.
    pub replies: u64,
    /// Replies that matched no call, or were malformed.
    pub odd_replies: u64,
    /// Retransmitted calls.
    pub retransmissions: u64,
    /// Connections that replaced a lost one.
    pub reconnects: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// File data received directly into place.
    pub landed_bytes: u64,
    /// File data copied into place.
    pub copied_bytes: u64,
    /// System calls that sent data.
    pub sends: u64,
    /// Wake-ups of the receiver with replies.
    pub turns: u64,
    /// Unanswered calls.
    pub outstanding: u64,
    /// Reads and writes that wait for the in-flight limit.
    pub waiting: u64,
    pub in_flight: u64,
    /// Smoothed round-trip time in nanoseconds; 0 before the first reply.
    pub round_trip_ns: u64,
    /// Time since the server stopped responding, in nanoseconds; 0 while it responds.
    #[serde(default)]
    pub unresponsive_ns: u64,
}

impl From<ClientCounts> for NfsClientCounters {
    fn from(counts: ClientCounts) -> Self {
        Self {
            calls: counts.calls,
            replies: counts.replies,
            odd_replies: counts.unknown_replies + counts.garbage,
            retransmissions: counts.retransmissions,
            reconnects: counts.reconnects,
            sent_bytes: counts.sent_bytes,
            received_bytes: counts.received_bytes,
            landed_bytes: counts.landed_bytes,
            copied_bytes: counts.copied_bytes,
            sends: counts.sends,
            turns: counts.turns,
            outstanding: counts.outstanding,
            waiting: counts.waiting,
            in_flight: counts.in_flight,
            round_trip_ns: nanoseconds(counts.round_trip),
            unresponsive_ns: nanoseconds(counts.unresponsive),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl NfsClientCounters {
    /// Returns the increase since `earlier`; gauges (outstanding, waiting, limit, round trip, silence) are
    /// current.
    fn since(&self, earlier: &Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            replies: self.replies.saturating_sub(earlier.replies),
            odd_replies: self.odd_replies.saturating_sub(earlier.odd_replies),
            retransmissions: self.retransmissions.saturating_sub(earlier.retransmissions),
            reconnects: self.reconnects.saturating_sub(earlier.reconnects),
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            landed_bytes: self.landed_bytes.saturating_sub(earlier.landed_bytes),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            sends: self.sends.saturating_sub(earlier.sends),
            turns: self.turns.saturating_sub(earlier.turns),
            ..*self
        }
    }

    /// Returns the mean number of replies per wake-up of the receiver.
    pub fn replies_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.replies as f64 / self.turns as f64 }
    }
}

impl Counters {
    /// Returns the increase since `earlier`, an older state of the same counters.
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
        let idle = NfsClientCounters::default();
        let clients = self
            .nfs_clients
            .iter()
            .map(|(name, now)| (name.clone(), now.since(earlier.nfs_clients.get(name).unwrap_or(&idle))));
        let idle = CacheCounters::default();
        let caches = self
            .caches
            .iter()
            .map(|(name, now)| (name.clone(), now.since(earlier.caches.get(name).unwrap_or(&idle))));
        Self {
            uptime_ns: self.uptime_ns.saturating_sub(earlier.uptime_ns),
            exports: exports.collect(),
            nfs: nfs.collect(),
            nfs_clients: clients.collect(),
            caches: caches.collect(),
            write_backs: self.write_backs.clone(),
        }
    }

    /// Returns the period covered, in seconds.
    pub fn seconds(&self) -> f64 {
        self.uptime_ns as f64 / 1e9
    }
}
