//! How many connections an address may have.
//!
//! An address has as many as it leaves free at most: one alone gets half of all, the next half of what is left, and there is always something
//! left for others. Where a new connection exceeds the limit, idle ones are closed: first those that never asked
//! anything, then those that have been silent longest, of the address that has the most, or of the caller's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::clients::Client;
use super::common::Common;
use super::shared_connection::SharedConnection;

/// A connection that never had a call answered may be closed for another after this.
const UNUSED_AFTER: Duration = Duration::from_secs(1);

/// One that had may be after this.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// So many are closed at a time: looking for them takes a while.
const BATCH: usize = 64;

/// Leave to have one connection.
pub(super) struct Admitted {
    common: Arc<Common>,
    client: Arc<Client>,
}

impl Admitted {
    /// None at the limit.
    pub(super) fn new(common: &Arc<Common>, client: &Arc<Client>) -> Option<Self> {
        let (all, own) = (&common.counters.connections, &client.connections);
        let free = (common.options.connections_max as u64).saturating_sub(all.get());
        // Only the thread that listens adds any.
        if own.count() >= free {
            return None;
        }
        all.add(1);
        own.add();
        Some(Self { common: common.clone(), client: client.clone() })
    }

    /// Whose it is.
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.client.connections.subtract();
        self.common.counters.connections.subtract(1);
    }
}

/// When a connection did something last, as far as sweeps have seen it.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Since the server's start; the lowest bit says whether a call was answered.
    last_ms: AtomicU64,
}

impl Activity {
    pub(super) fn note(&self, common: &Common, now: Instant, answered: bool) {
        let ms = now.saturating_duration_since(common.started).as_millis() as u64;
        self.last_ms.store(ms << 1 | u64::from(answered), Ordering::Relaxed);
    }

    /// Those that never had a call answered come first, then those that did something longest ago. None if it may not be closed.
    fn rank(&self, now_ms: u64) -> Option<(bool, u64)> {
        let noted = self.last_ms.load(Ordering::Relaxed);
        let (last_ms, answered) = (noted >> 1, noted & 1 == 1);
        let after = if answered { IDLE_AFTER } else { UNUSED_AFTER };
        let silent = Duration::from_millis(now_ms.saturating_sub(last_ms));
        (silent >= after).then_some((answered, last_ms))
    }
}

/// Has connections closed that do nothing, so that this client may have another soon. Whether there were any.
pub(super) fn make_room(common: &Common, client: &Arc<Client>) -> bool {
    let largest = common.clients.with_most_connections();
    largest.is_some_and(|largest| close_idle(common, &largest)) || close_idle(common, client)
}

fn close_idle(common: &Common, client: &Client) -> bool {
    let now_ms = common.started.elapsed().as_millis() as u64;
    let mut idle: Vec<((bool, u64), Arc<SharedConnection>)> = client.connections.list(|shared| {
        let rank = shared.activity.rank(now_ms).filter(|_| !shared.has_calls() && !shared.is_dead())?;
        Some((rank, shared.clone()))
    });
    if idle.len() > BATCH {
        idle.select_nth_unstable_by_key(BATCH, |(rank, _)| *rank);
        idle.truncate(BATCH);
    }
    // A few of few: most of those that are left may be in use in a moment.
    let count = client.connections.count() as usize;
    idle.sort_unstable_by_key(|(rank, _)| *rank);
    idle.truncate((count / 16).max(1));
    for (_, shared) in &idle {
        common.counters.closed_for_others.add(1);
        tracing::debug!(peer = ?shared.peer, "closing idle connection: connection limit reached");
        shared.kill();
        shared.call_attention();
    }
    !idle.is_empty()
}
