//! Counters sent over the control socket: the reply to `stats` in `docs/protocols/control.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tombolo_host_rpc::client::Counts as ClientCounts;
use tombolo_host_rpc::server::Counts;
use tombolo_layer_basic::stats::Snapshot;
use tombolo_layer_cache::{Counts as CacheCounts, LeaseState};
use tombolo_layer_write_back::Status as WriteBackStatus;

/// Copies fields of a layer's counters to the fields of the same names; others are given.
macro_rules! copied {
    ($from:ident: $($field:ident)+; $($other:ident: $value:expr),* $(,)?) => {
        Self { $($field: $from.$field,)+ $($other: $value,)* }
    };
}

/// Returns counters with the increase of these fields since `earlier`; others are current.
macro_rules! increase {
    ($now:ident, $earlier:ident: $($field:ident)+) => {
        Self { $($field: $now.$field.saturating_sub($earlier.$field),)+ ..*$now }
    };
}

/// Counters of one server since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Uptime of the server in nanoseconds.
    pub uptime_ns: u64,
    /// Operation counters by export.
    pub exports: BTreeMap<String, Snapshot>,
    /// NFS port counters by address.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nfs: BTreeMap<String, NfsCounters>,
    /// NFS client counters by export.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nfs_clients: BTreeMap<String, NfsClientCounters>,
    /// Cache counters by export.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, CacheCounters>,
    /// State of unsent changes by export.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub write_backs: BTreeMap<String, WriteBackState>,
}

/// Progress of an export's changes, which are numbered from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriteBackState {
    /// Number of the latest change.
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
    pub torn: u64,
    /// Reason for the failure of the last attempt to send changes, if it failed.
    pub failure: Option<String>,
    /// `true` if the origin has all changes.
    pub is_clean: bool,
    /// Files and directories with changes, such as of attributes, that the origin has refused.
    pub refused: u64,
    /// The origin has all changes up to this one, except what it has refused.
    pub settled: u64,
    /// `true` if the origin refused changes in the last attempt, rather than being unreachable or full.
    pub is_refused: bool,
    /// Numbers of begun and of ended attempts to send changes.
    pub attempts_begun: u64,
    pub attempts_ended: u64,
}

impl WriteBackState {
    /// Returns `true` if a flush requested at this state has completed by `now`: the origin has all changes
    /// up to this state, or an attempt to send changes that began after it has ended.
    pub fn is_settled(&self, now: &Self) -> bool {
        self.is_clean || self.is_reached(now) || now.attempts_ended > self.attempts_begun
    }

    /// Returns the reason that the origin lacks changes up to this state after a completed flush; `None` if
    /// it lacks none.
    pub fn refusal<'a>(&self, now: &'a Self) -> Option<&'a str> {
        let is_refused = now.refused > 0 || !self.is_reached(now);
        now.failure.as_deref().filter(|_| !self.is_clean && is_refused)
    }

    /// Returns the reason that waiting for the changes up to this state is useless: the origin has refused
    /// some of them since, or lacks only refused ones. Returns `None` if waiting may help.
    pub fn lasting_refusal<'a>(&self, now: &'a Self) -> Option<&'a str> {
        let lasts = match now.at_origin.max(now.settled) >= self.change {
            true => now.refused > 0,
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
        copied! {
            status: change on_disk at_origin dirty_bytes conflicts torn failure is_clean settled is_refused
                attempts_begun attempts_ended;
            dirty_nodes: status.dirty_nodes as u64,
            oldest_ns: nanoseconds(status.oldest.unwrap_or_default()),
            refused: status.refused as u64,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheCounters {
    /// Operations served without the origin, and those that waited for it.
    pub hits: u64,
    pub misses: u64,
    /// File data returned to readers, and the cached part of them.
    pub served_bytes: u64,
    pub hit_bytes: u64,
    /// File data read from the origin.
    pub fetched_bytes: u64,
    /// Bytes that compression of the fetched data saved in transit.
    pub saved_bytes: u64,
    /// File data borrowed from other caches, and lent to them.
    pub borrowed_bytes: u64,
    pub lent_bytes: u64,
    /// File data from another cache or a local copy that did not match the file's digest.
    pub refused_bytes: u64,
    /// File data known to be zeroes from a sidecar, and not read from the origin.
    pub zero_bytes: u64,
    /// File data copied from equal cached blocks, and not read from the origin.
    pub equal_bytes: u64,
    /// Small files and listings fetched ahead of a request, and the part of them used since.
    pub guessed_bytes: u64,
    pub guess_used_bytes: u64,
    /// Data fetched ahead according to a trace, and the part of them read since.
    pub traced_bytes: u64,
    pub trace_used_bytes: u64,
    /// Files passed to a kernel for passthrough reads, which no other counter includes.
    pub backed: u64,
    /// State of the tree's lease, if the cache uses one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

/// State of a cache's lease of its tree. In all states but `Held` the cache revalidates as under
/// close-to-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lease {
    Held,
    /// The lease file could not be renewed for too long.
    RunOut,
    /// Another proxy has taken the lease over.
    Lost,
    /// The origin grants no lease at present.
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
        copied! {
            counts: hits misses served_bytes hit_bytes fetched_bytes saved_bytes borrowed_bytes lent_bytes
                refused_bytes zero_bytes equal_bytes traced_bytes trace_used_bytes backed;
            guessed_bytes: counts.guessed_bytes + counts.listed_ahead_bytes,
            guess_used_bytes: counts.guess_used_bytes + counts.listing_used_bytes,
            lease: counts.lease.map(Lease::from),
        }
    }
}

impl CacheCounters {
    fn since(&self, earlier: &Self) -> Self {
        increase!(self, earlier: hits misses served_bytes hit_bytes fetched_bytes saved_bytes borrowed_bytes
            lent_bytes refused_bytes zero_bytes equal_bytes guessed_bytes guess_used_bytes traced_bytes
            trace_used_bytes backed)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsCounters {
    pub connections: u64,
    /// Connections accepted so far.
    pub connections_total: u64,
    /// Connections and datagrams refused: address not permitted, or too many connections.
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
        copied! {
            counts: connections connections_total refused calls received_bytes sent_bytes;
            cut_off: counts.closed_stuck
                + counts.closed_silent
                + counts.closed_for_others
                + counts.closed_too_long
                + counts.closed_insecure,
        }
    }
}

impl NfsCounters {
    fn since(&self, earlier: &Self) -> Self {
        increase!(self, earlier: connections_total refused cut_off calls received_bytes sent_bytes)
    }
}

/// Counters of the client of one NFS server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NfsClientCounters {
    pub calls: u64,
    /// Replies matched to a call.
    pub replies: u64,
    /// Replies that matched no call, or were malformed.
    pub odd_replies: u64,
    /// Calls sent again, because no reply arrived in time or the connection was lost.
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
    /// In-flight limit.
    pub in_flight: u64,
    /// Smoothed round-trip time in nanoseconds; 0 before the first reply.
    pub round_trip_ns: u64,
    /// Time since the server stopped responding, in nanoseconds, from five seconds on; 0 while it responds.
    pub unresponsive_ns: u64,
}

impl From<ClientCounts> for NfsClientCounters {
    fn from(counts: ClientCounts) -> Self {
        copied! {
            counts: calls replies retransmissions reconnects sent_bytes received_bytes landed_bytes
                copied_bytes sends turns outstanding waiting in_flight;
            odd_replies: counts.unknown_replies + counts.garbage,
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
        increase!(self, earlier: calls replies odd_replies retransmissions reconnects sent_bytes
            received_bytes landed_bytes copied_bytes sends turns)
    }

    /// Returns the mean number of replies per wake-up of the receiver.
    pub fn replies_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.replies as f64 / self.turns as f64 }
    }
}

impl Counters {
    /// Returns the increase since `earlier`, an older state of the same counters.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            uptime_ns: self.uptime_ns.saturating_sub(earlier.uptime_ns),
            exports: each(&self.exports, &earlier.exports, Snapshot::since),
            nfs: each(&self.nfs, &earlier.nfs, NfsCounters::since),
            nfs_clients: each(&self.nfs_clients, &earlier.nfs_clients, NfsClientCounters::since),
            caches: each(&self.caches, &earlier.caches, CacheCounters::since),
            write_backs: self.write_backs.clone(),
        }
    }

    /// Returns the period covered, in seconds.
    pub fn seconds(&self) -> f64 {
        self.uptime_ns as f64 / 1e9
    }
}

/// Applies `since` to all values, with the earlier value of the same name, or zeroes if there was none.
fn each<T: Default>(
    now: &BTreeMap<String, T>,
    earlier: &BTreeMap<String, T>,
    since: fn(&T, &T) -> T,
) -> BTreeMap<String, T> {
    let zeroes = T::default();
    let since = |(name, value)| (String::clone(name), since(value, earlier.get(name).unwrap_or(&zeroes)));
    now.iter().map(since).collect()
}
