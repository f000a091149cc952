//! Clients, by address: what all connections and datagrams of one address may have together, connections
//! among it.
//!
//! An address has as many connections as it leaves free at most: one alone gets half of all, the next half of
//! what is left, and there is always something left for others. Where a new connection exceeds the limit,
//! idle ones are closed: first those that never asked anything, then those that have been silent longest, of
//! the address that has the most, or of the caller's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_host_runtime::buffer_pool::{BufferPool, ClientAccount, ConnectionAccount};
use tombolo_host_runtime::waiters::{Queued, Waiter, Waiters};

use super::common::Common;
use super::shared_connection::SharedConnection;

/// All clients that have something.
pub(super) struct Clients {
    pool: Arc<BufferPool>,
    calls_max: usize,
    by_address: Mutex<HashMap<IpAddr, Arc<Client>>>,
}

impl Clients {
    pub(super) fn new(pool: Arc<BufferPool>, calls_max: usize) -> Self {
        Self { pool, calls_max, by_address: Mutex::default() }
    }

    pub(super) fn of(&self, address: IpAddr) -> Arc<Client> {
        let mut by_address = self.lock();
        // Source addresses of datagrams can be forged.
        if by_address.len() >= KNOWN_MAX {
            by_address.retain(|_, client| Arc::strong_count(client) > 1);
        }
        by_address.entry(address).or_insert_with(|| Arc::new(self.fresh())).clone()
    }

    /// The client that has the most connections.
    pub(super) fn with_most_connections(&self) -> Option<Arc<Client>> {
        self.lock().values().max_by_key(|client| client.connections.count()).cloned()
    }

    /// Whether no client is known.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Forgets those that have nothing.
    pub(super) fn sweep(&self) {
        self.lock().retain(|_, client| Arc::strong_count(client) > 1);
    }

    fn fresh(&self) -> Client {
        let share = self.pool.share();
        Client {
            datagrams: share.account(),
            connections: Connections::default(),
            share,
            calls: AtomicUsize::new(0),
            calls_max: self.calls_max,
            waiters: Waiters::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Client>>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many addresses are known before those that have nothing are forgotten at once.
const KNOWN_MAX: usize = 1 << 16;

/// One address.
pub(super) struct Client {
    /// Its memory.
    pub(super) share: Arc<ClientAccount>,
    /// What its datagrams have of it.
    pub(super) datagrams: Arc<ConnectionAccount>,
    /// Its connections.
    pub(super) connections: Connections,
    /// Calls begun and not answered.
    calls: AtomicUsize,
    calls_max: usize,
    waiters: Waiters,
}

/// The connections of one address.
#[derive(Default)]
pub(super) struct Connections {
    count: AtomicU64,
    links: Mutex<HashMap<u64, Arc<SharedConnection>>>,
}

impl Connections {
    /// How many there are, and will be as soon as their threads have them.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn subtract(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn insert(&self, shared: &Arc<SharedConnection>) {
        self.lock().insert(key(shared), shared.clone());
    }

    pub(super) fn remove(&self, shared: &Arc<SharedConnection>) {
        self.lock().remove(&key(shared));
    }

    /// What `pick` makes of them, as far as it makes something.
    pub(super) fn list<T>(&self, pick: impl FnMut(&Arc<SharedConnection>) -> Option<T>) -> Vec<T> {
        self.lock().values().filter_map(pick).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<SharedConnection>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Its address in memory: there is no other while it is kept.
fn key(shared: &Arc<SharedConnection>) -> u64 {
    Arc::as_ptr(shared).addr() as u64
}

impl Client {
    /// Has the waiter woken when another call may be begun; the first of all if it was woken in vain. Look
    /// again after this, for that may be so already.
    pub(super) fn wait_for_calls(&self, waiter: &Arc<dyn Waiter>, queued: &mut Queued) {
        queued.stand(&self.waiters, None, waiter);
    }

    /// Wakes one waiter, if calls may begin: a woken waiter that leaves some wakes the next.
    pub(super) fn pass_on(&self) {
        if self.is_below_limit() {
            self.waiters.wake_one();
        }
        self.share.wake_next();
    }

    pub(super) fn begin_call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_calls(&self, count: usize) {
        self.calls.fetch_sub(count, Ordering::SeqCst);
        if self.is_below_limit() {
            self.waiters.wake_one();
        }
    }

    /// Whether another call may be begun.
    pub(super) fn is_below_limit(&self) -> bool {
        self.calls.load(Ordering::SeqCst) < self.calls_max
    }
}

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

    /// Those that never had a call answered come first, then those that did something longest ago. None if it
    /// may not be closed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tombolo_host_runtime::buffer_pool::BufferLimits;

    #[test]
    fn datagrams_of_forged_addresses_fill_no_memory_and_clients_in_use_stay_known() {
        let clients = Clients::new(BufferPool::new(BufferLimits::default()), 10);
        let kept = clients.of(Ipv4Addr::LOCALHOST.into());
        (1..3 * KNOWN_MAX as u32).for_each(|number| drop(clients.of(Ipv4Addr::from(number).into())));
        assert!(clients.lock().len() <= KNOWN_MAX);
        assert!(Arc::ptr_eq(&kept, &clients.of(Ipv4Addr::LOCALHOST.into())));
        clients.sweep();
        assert_eq!(clients.lock().len(), 1);
    }
}
