//! Clients by address: limits shared by all connections and datagrams of one address, among them the number
//! of connections.
//!
//! An address may have at most as many connections as remain free: the first address gets half of all, the
//! next one half of the remainder, and so on. When an accepted connection exceeds the limit, some idle
//! connections are closed: of the address with the most connections or, if none of them is idle, of the new
//! connection's address. Connections that never had a call answered go first, then the longest idle.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_core::lock;
use tombolo_host_runtime::buffer_pool::{BufferPool, ClientAccount, ConnectionAccount};
use tombolo_host_runtime::waiters::{Queued, Waiter, Waiters};

use super::common::Common;
use super::shared_connection::SharedConnection;

/// Clients by address. Clients that only this table refers to are unused: the periodic
/// [`sweep`](Self::sweep) removes them, and so do look-ups while there are at least [`CLIENTS_MAX`] clients.
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
        let mut by_address = lock(&self.by_address);
        // Datagrams with forged source addresses could otherwise fill the table between two sweeps.
        if by_address.len() >= CLIENTS_MAX {
            by_address.retain(|_, client| Arc::strong_count(client) > 1);
        }
        by_address.entry(address).or_insert_with(|| Arc::new(self.fresh())).clone()
    }

    /// Returns the client with the most connections, or `None` if no client is registered.
    pub(super) fn with_most_connections(&self) -> Option<Arc<Client>> {
        lock(&self.by_address).values().max_by_key(|client| client.connections.count()).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.by_address).is_empty()
    }

    pub(super) fn sweep(&self) {
        lock(&self.by_address).retain(|_, client| Arc::strong_count(client) > 1);
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
}

/// Number of clients at which look-ups begin to remove unused ones.
const CLIENTS_MAX: usize = 1 << 16;

/// Limits of one client address, and its present use of them.
pub(super) struct Client {
    /// Memory account of the client.
    pub(super) share: Arc<ClientAccount>,
    /// The part of `share` that datagrams use.
    pub(super) datagrams: Arc<ConnectionAccount>,
    pub(super) connections: Connections,
    /// Number of calls begun and not answered.
    calls: AtomicUsize,
    calls_max: usize,
    /// Connections that wait until another call may begin.
    waiters: Waiters,
}

/// The connections of one address.
#[derive(Default)]
pub(super) struct Connections {
    /// Number of [`ConnectionPermit`]s.
    count: AtomicU64,
    /// Connections that event threads serve, by [`key`].
    open: Mutex<HashMap<u64, Arc<SharedConnection>>>,
}

impl Connections {
    /// Returns the number of connections, including accepted ones that no event thread has taken over yet,
    /// and closed ones with pending calls.
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
        lock(&self.open).insert(key(shared), shared.clone());
    }

    pub(super) fn remove(&self, shared: &Arc<SharedConnection>) {
        lock(&self.open).remove(&key(shared));
    }

    /// Returns all results of `pick` that are not `None`.
    pub(super) fn list<T>(&self, pick: impl FnMut(&Arc<SharedConnection>) -> Option<T>) -> Vec<T> {
        lock(&self.open).values().filter_map(pick).collect()
    }
}

/// Returns the connection's address in memory, unique while it exists.
fn key(shared: &Arc<SharedConnection>) -> u64 {
    Arc::as_ptr(shared).addr() as u64
}

impl Client {
    /// Registers a waiter, to be woken when another call may begin. A waiter that was woken but could not
    /// begin a call goes to the front of the queue. The caller must check the limit again afterwards, because
    /// a call may have ended before the registration.
    pub(super) fn wait_for_calls(&self, waiter: &Arc<dyn Waiter>, queued: &mut Queued) {
        queued.enqueue(&self.waiters, None, waiter);
    }

    /// Wakes one waiter for calls, if calls may begin, and waiters for memory, if memory is free. Called
    /// after a connection has received and when it is closed, so that a waiter that leaves some of the limit
    /// unused wakes the next.
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

    /// Returns `true` if another call may begin.
    pub(super) fn is_below_limit(&self) -> bool {
        self.calls.load(Ordering::SeqCst) < self.calls_max
    }
}

/// Idle time after which a connection that never had a call answered may be closed in favour of another.
const UNUSED_AFTER: Duration = Duration::from_secs(1);

/// Idle time after which any other connection may be closed in favour of another.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of connections closed at a time.
const BATCH: usize = 64;

/// A permit for one connection.
pub(super) struct ConnectionPermit {
    common: Arc<Common>,
    client: Arc<Client>,
}

impl ConnectionPermit {
    /// Returns a permit, or `None` at the limit.
    pub(super) fn new(common: &Arc<Common>, client: &Arc<Client>) -> Option<Self> {
        let (all, own) = (&common.counters.connections, &client.connections);
        let free = (common.options.connections_max as u64).saturating_sub(all.get());
        // The check and the additions are not one step: `Server::adopt`, on other threads, may exceed the
        // limit slightly.
        if own.count() >= free {
            return None;
        }
        all.increment();
        own.add();
        Some(Self { common: common.clone(), client: client.clone() })
    }

    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.client.connections.subtract();
        self.common.counters.connections.decrement();
    }
}

/// Time of a connection's last recorded activity.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Milliseconds since the server's start, shifted by one; the lowest bit is set if a call was answered.
    last_ms: AtomicU64,
}

impl Activity {
    pub(super) fn note(&self, common: &Common, now: Instant, answered: bool) {
        let ms = now.saturating_duration_since(common.started).as_millis() as u64;
        self.last_ms.store(ms << 1 | u64::from(answered), Ordering::Relaxed);
    }

    /// Returns a sort key: connections that never had a call answered first, then by last activity. `None`
    /// if the connection has not been idle for long enough to be closed.
    fn rank(&self, now_ms: u64) -> Option<(bool, u64)> {
        let noted = self.last_ms.load(Ordering::Relaxed);
        let (last_ms, answered) = (noted >> 1, noted & 1 == 1);
        let after = if answered { IDLE_AFTER } else { UNUSED_AFTER };
        let silent = Duration::from_millis(now_ms.saturating_sub(last_ms));
        (silent >= after).then_some((answered, last_ms))
    }
}

/// Closes idle connections of the client that has the most connections or, if none of them is idle, of
/// `client`, which requests another one. Returns `true` if any was closed, or is being closed.
pub(super) fn close_idle_connections(common: &Common, client: &Arc<Client>) -> bool {
    let largest = common.clients.with_most_connections();
    largest.is_some_and(|largest| close_idle(common, &largest)) || close_idle(common, client)
}

fn close_idle(common: &Common, client: &Client) -> bool {
    let now_ms = common.started.elapsed().as_millis() as u64;
    let mut is_closing = false;
    let mut idle: Vec<((bool, u64), Arc<SharedConnection>)> = client.connections.list(|shared| {
        let rank = shared.activity.rank(now_ms).filter(|_| !shared.has_calls())?;
        is_closing |= shared.is_dead();
        (!shared.is_dead()).then(|| (rank, shared.clone()))
    });
    // Event threads on a busy machine may take longer than the pause between two attempts.
    if is_closing {
        return true;
    }
    if idle.len() > BATCH {
        idle.select_nth_unstable_by_key(BATCH, |(rank, _)| *rank);
        idle.truncate(BATCH);
    }
    // At most a sixteenth of the client's connections, or a single one, is closed at a time: the others may
    // be in use again before the next new connection.
    let count = client.connections.count() as usize;
    idle.sort_unstable_by_key(|(rank, _)| *rank);
    idle.truncate((count / 16).max(1));
    for (_, shared) in &idle {
        common.counters.closed_for_others.increment();
        tracing::debug!(peer = ?shared.peer, "closing idle connection: connection limit reached");
        shared.kill();
        shared.schedule_turn();
    }
    !idle.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tombolo_host_runtime::buffer_pool::BufferLimits;

    #[test]
    fn unused_clients_are_evicted_and_used_ones_retained() {
        let clients = Clients::new(BufferPool::new(BufferLimits::default()), 10);
        let kept = clients.of(Ipv4Addr::LOCALHOST.into());
        (1..3 * CLIENTS_MAX as u32).for_each(|number| drop(clients.of(Ipv4Addr::from(number).into())));
        assert!(lock(&clients.by_address).len() <= CLIENTS_MAX);
        assert!(Arc::ptr_eq(&kept, &clients.of(Ipv4Addr::LOCALHOST.into())));
        clients.sweep();
        assert_eq!(lock(&clients.by_address).len(), 1);
    }
}
