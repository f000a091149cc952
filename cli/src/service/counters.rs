//! Counters as they travel over the control socket: the reply to `stats`, in `docs/protocols/control.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tombolo_host_rpc::client::Counts as ClientCounts;
use tombolo_host_rpc::server::Counts;
use tombolo_layer_basic::stats::Snapshot;
use tombolo_layer_cache::{Counts as CacheCounts, LeaseState};
use tombolo_layer_write_back::Status as WriteBackStatus;

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
    /// What the clients of other servers did, by the names of the exports that come from there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nfs_clients: BTreeMap<String, NfsClientCounters>,
    /// What the caches of exports have come to, by the names of those.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, CacheCounters>,
    /// What the origins of exports lack, by the names of those.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub write_backs: BTreeMap<String, WriteBackState>,
}

/// How far the changes of an export have come. Changes are numbered from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBackState {
    /// The latest change.
    pub change: u64,
    /// The local disk has everything up to this change, and the origin up to that.
    pub on_disk: u64,
    pub at_origin: u64,
    /// Data that the origin does not have, and files and names of which it lacks something.
    pub dirty_bytes: u64,
    pub dirty_nodes: u64,
    /// How old the oldest change is that it lacks, in nanoseconds; 0 if it lacks none.
    pub oldest_ns: u64,
    /// Versions of others at the origin that were kept beside ours.
    pub conflicts: u64,
    /// Blocks that were being written over when an earlier life ended suddenly.
    #[serde(default)]
    pub torn: u64,
    /// Why the last attempt to bring changes there failed, if it did.
    pub failure: Option<String>,
    /// Whether the origin lacks nothing.
    #[serde(default)]
    pub is_clean: bool,
    /// Files and directories with attributes that a program has set and the origin has refused.
    #[serde(default)]
    pub refused: u64,
    /// Whether the last attempt has met a refusal, and not only an origin that is away or full.
    #[serde(default)]
    pub is_refused: bool,
    /// Attempts to bring changes there that have begun, and ended.
    #[serde(default)]
    pub attempts_begun: u64,
    #[serde(default)]
    pub attempts_ended: u64,
}

impl WriteBackState {
    /// Whether a flush that was asked for at this state is over: by `now` the origin has everything up to it,
    /// or has refused some of it.
    pub fn is_settled(&self, now: &Self) -> bool {
        self.is_clean || self.has_come(now) || now.attempts_ended > self.attempts_begun
    }

    /// Why the origin does not have everything up to this state, of which a flush is over.
    pub fn refusal<'a>(&self, now: &'a Self) -> Option<&'a str> {
        let is_refused = now.refused > 0 || !self.has_come(now);
        now.failure.as_deref().filter(|_| !self.is_clean && is_refused)
    }

    /// Why it is of no use to wait until the origin has everything up to this state: it has refused some of
    /// it in an attempt since, or lacks nothing but what it has refused.
    pub fn lasting_refusal<'a>(&self, now: &'a Self) -> Option<&'a str> {
        let lasts = match now.at_origin >= self.change {
            true => now.refused > 0,
            false => now.is_refused && now.attempts_ended > self.attempts_begun,
        };
        now.failure.as_deref().filter(|_| lasts)
    }

    fn has_come(&self, now: &Self) -> bool {
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
            is_refused: status.is_refused,
            attempts_begun: status.attempts_begun,
            attempts_ended: status.attempts_ended,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounters {
    /// Operations that were answered without the origin, and those that waited for it.
    pub hits: u64,
    pub misses: u64,
    /// File data that readers got, and what of it was here when they asked.
    pub served_bytes: u64,
    pub hit_bytes: u64,
    /// File data that were read at the origin.
    pub fetched_bytes: u64,
    /// What of them did not cross the line, as it came compressed.
    #[serde(default)]
    pub saved_bytes: u64,
    /// File data that another cache has lent, and that were lent to others.
    #[serde(default)]
    pub borrowed_bytes: u64,
    #[serde(default)]
    pub lent_bytes: u64,
    /// File data that another cache has sent, or that were to be copied here, and that are not the file's.
    #[serde(default)]
    pub refused_bytes: u64,
    /// File data that were not read at the origin, as a sidecar says that they are zeroes.
    #[serde(default)]
    pub zero_bytes: u64,
    /// The same of what was here already under another name.
    #[serde(default)]
    pub equal_bytes: u64,
    /// What of the fetched ones was small files that were not asked for, and what of these was read since.
    pub guessed_bytes: u64,
    pub guess_used_bytes: u64,
    /// What of the fetched ones came as a trace said so, before it was asked for, and what of these was read
    /// since.
    #[serde(default)]
    pub traced_bytes: u64,
    #[serde(default)]
    pub trace_used_bytes: u64,
    /// Times that a kernel was given a file to read by itself; what it reads so is in no other number.
    #[serde(default)]
    pub backed: u64,
    /// The lease of the tree, where one was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

/// How a lease stands.
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
    /// Connections there have been.
    pub connections_total: u64,
    /// Callers that were turned away.
    pub refused: u64,
    /// Connections that were cut off: their peer took no replies, said nothing of use, sent what is too long,
    /// began no TLS where that must be, or was silent when others had no room.
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

/// What the client of one NFS server did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsClientCounters {
    pub calls: u64,
    /// Replies that answered one.
    pub replies: u64,
    /// Replies that answered none, or made no sense.
    pub odd_replies: u64,
    /// Calls that were sent again.
    pub retransmissions: u64,
    /// Connections that replaced one that was lost.
    pub reconnects: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// File data that were received where they belong.
    pub landed_bytes: u64,
    /// File data that were copied there.
    pub copied_bytes: u64,
    /// System calls that sent something.
    pub sends: u64,
    /// Times that the receiver woke up to replies.
    pub turns: u64,
    /// Calls whose answer is still to come.
    pub outstanding: u64,
    /// Reads and writes that wait for the in-flight limit.
    pub waiting: u64,
    pub in_flight: u64,
    /// The smoothed round trip, in nanoseconds; 0 before the first answer.
    pub round_trip_ns: u64,
    /// How long the server has not been responding, in nanoseconds; 0 while it responds.
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
    /// The gauges (outstanding, waiting, limit, round trip, silence) are those of now.
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

    /// Replies for each time that the receiver woke up to some.
    pub fn replies_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.replies as f64 / self.turns as f64 }
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

    /// The time that they cover, in seconds.
    pub fn seconds(&self) -> f64 {
        self.uptime_ns as f64 / 1e9
    }
}
