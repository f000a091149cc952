//! A pool of buffers for records and file data, with limits for each client and for all together.
//!
//! A [`BufferPool`] has a free list for each of a few size classes. The buffer returned last is lent first,
//! since it is likely still cached. Lent memory is accounted in total, for each client ([`ClientAccount`])
//! and for each of its connections ([`ConnectionAccount`]), so that a client that requests much, or does not
//! receive its replies, exhausts the memory of neither the others nor the machine. Buffers not needed for a
//! while are freed.
//!
//! Non-goals: small buffers. Lending one costs some tens of nanoseconds, and its memory is allocated in
//! pages.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tombolo_mem::{Buffer, Sink, Source};

use crate::lock;
use crate::waiters::{Queued, Waiter, Waiters};

/// Size of the largest buffer, which a *long call* needs: a mebibyte of data and its headers.
pub const BUFFER_MAX_BYTES: usize = SIZES[SIZES.len() - 1];

/// Size classes. All but the first two fit file data of 32 KiB to 1 MiB (powers of two, and 384 KiB) and a
/// header.
const SIZES: [usize; 9] =
    [2 << 10, 16 << 10, 44 << 10, 76 << 10, 140 << 10, 268 << 10, 396 << 10, 524 << 10, 1036 << 10];

/// Limits on lent memory. Memory that is charged once it is in use ([`Lease::charge`],
/// [`ConnectionAccount::charge`]) may exceed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Maximum lent to all clients together, in bytes.
    pub total_bytes: usize,
    /// Maximum lent to one client, in bytes.
    pub share_bytes: usize,
    /// Maximum retained for reuse while not lent, in bytes.
    pub retained_bytes: usize,
}

impl Default for BufferLimits {
    /// Returns the defaults: 256 MiB, a quarter of them for one client; 32 MiB are retained.
    fn default() -> Self {
        Self { total_bytes: 256 << 20, share_bytes: 64 << 20, retained_bytes: 32 << 20 }
    }
}

/// All buffers of one server.
pub struct BufferPool {
    limits: BufferLimits,
    classes: [Mutex<SizeClass>; SIZES.len()],
    lent_bytes: AtomicUsize,
    retained_bytes: AtomicUsize,
    /// Connections waiting until at most half of the total is lent.
    waiters: Waiters,
    /// Connections of clients that are lent less than a long call needs, waiting until one more long call
    /// fits in the total.
    light_waiters: Waiters,
}

/// Free buffers of one size, ordered by time of return.
#[derive(Default)]
struct SizeClass {
    free: Vec<Arc<PooledBuffer>>,
    /// Minimum number of free buffers since the last trim: these buffers were not needed.
    low: usize,
}

/// A buffer and the account that it is charged to.
struct PooledBuffer {
    buffer: Buffer,
    /// Index of the buffer's size in [`SIZES`].
    class: usize,
    /// Pool to which the buffer is returned. The pool owns its free buffers, not vice versa.
    pool: Weak<BufferPool>,
    /// Account that the buffer is charged to; `None` while it is free or in the server's own use.
    account: Mutex<Option<Arc<ConnectionAccount>>>,
    /// Number of leases of the buffer, which returns to the pool with the last one.
    leases: AtomicUsize,
}

impl BufferPool {
    /// Returns an empty pool.
    pub fn new(limits: BufferLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            classes: Default::default(),
            lent_bytes: AtomicUsize::new(0),
            retained_bytes: AtomicUsize::new(0),
            waiters: Waiters::default(),
            light_waiters: Waiters::default(),
        })
    }

    /// Returns a new client account.
    pub fn share(self: &Arc<Self>) -> Arc<ClientAccount> {
        Arc::new(ClientAccount {
            pool: self.clone(),
            lent_bytes: AtomicUsize::new(0),
            waiters: Waiters::default(),
            light_waiters: Waiters::default(),
            becomes_light: Waiters::default(),
        })
    }

    /// Returns a new account of a client with a single connection.
    pub fn account(self: &Arc<Self>) -> Arc<ConnectionAccount> {
        self.share().account()
    }

    /// Takes a buffer for the server's own use, not subject to limits. Returns `None` beyond
    /// [`BUFFER_MAX_BYTES`].
    pub fn take(self: &Arc<Self>, len_bytes: usize) -> Option<Lease> {
        let class = SIZES.iter().position(|size| len_bytes <= *size)?;
        let pooled = self.take_free(class).unwrap_or_else(|| {
            let buffer = Buffer::new(SIZES[class]);
            Arc::new(PooledBuffer {
                buffer,
                class,
                pool: Arc::downgrade(self),
                account: Mutex::default(),
                leases: AtomicUsize::new(0),
            })
        });
        pooled.leases.store(1, Ordering::Relaxed);
        Some(Lease(Some(pooled)))
    }

    /// Returns the number of bytes lent to clients.
    pub fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::Relaxed)
    }

    /// Returns `true` if there are free buffers.
    pub fn has_spare(&self) -> bool {
        self.retained_bytes.load(Ordering::Relaxed) > 0
    }

    /// Frees buffers not needed since the last call.
    pub fn trim(&self) {
        for (class, size) in self.classes.iter().zip(SIZES) {
            let mut class = lock(class);
            let unneeded = class.low.min(class.free.len());
            class.low = class.free.len() - unneeded;
            let freed: Vec<_> = class.free.drain(..unneeded).collect();
            drop(class);
            self.retained_bytes.fetch_sub(freed.len() * size, Ordering::Relaxed);
        }
    }

    fn take_free(&self, at: usize) -> Option<Arc<PooledBuffer>> {
        let mut class = lock(&self.classes[at]);
        loop {
            let mut pooled = class.free.pop()?;
            class.low = class.low.min(class.free.len());
            self.retained_bytes.fetch_sub(SIZES[at], Ordering::Relaxed);
            // A buffer that a source or sink still uses is freed with the last of them.
            if Arc::get_mut(&mut pooled).is_some_and(|pooled| pooled.buffer.as_slice().is_some()) {
                return Some(pooled);
            }
        }
    }

    fn put_back(&self, pooled: Arc<PooledBuffer>) {
        let size = SIZES[pooled.class];
        if self.retained_bytes.fetch_add(size, Ordering::Relaxed) + size > self.limits.retained_bytes {
            self.retained_bytes.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        lock(&self.classes[pooled.class]).free.push(pooled);
    }
}

/// Memory account of one client, over all its connections.
pub struct ClientAccount {
    pool: Arc<BufferPool>,
    lent_bytes: AtomicUsize,
    /// Connections of the client waiting until at most half of its share is lent.
    waiters: Waiters,
    /// Connections that are lent less than a long call needs, waiting until one more long call fits in the
    /// client's share.
    light_waiters: Waiters,
    /// Connections in [`BufferPool::waiters`], woken once this client is lent less than a long call needs:
    /// they then belong in the pool's `light_waiters`.
    becomes_light: Waiters,
}

/// Memory account of one connection of a client.
pub struct ConnectionAccount {
    share: Arc<ClientAccount>,
    lent_bytes: AtomicUsize,
    /// The connection while in [`ClientAccount::waiters`], woken once it is lent less than a long call needs:
    /// it then belongs in the client's `light_waiters`.
    becomes_light: Waiters,
}

impl ClientAccount {
    /// Returns a new account of this client.
    pub fn account(self: &Arc<Self>) -> Arc<ConnectionAccount> {
        Arc::new(ConnectionAccount {
            share: self.clone(),
            lent_bytes: AtomicUsize::new(0),
            becomes_light: Waiters::default(),
        })
    }

    /// Wakes the first waiter of each queue for which there is memory. A woken waiter that leaves memory for
    /// others calls this function again.
    pub fn wake_next(&self) {
        if self.is_light() {
            self.becomes_light.wake_one();
        }
        if self.is_below_half() {
            self.waiters.wake_one();
        }
        if self.fits_long_call() {
            self.light_waiters.wake_one();
        }
        if self.pool.fits_long_call() {
            self.pool.light_waiters.wake_one();
        }
        if self.pool.is_below_half() {
            self.pool.waiters.wake_one();
        }
    }

    /// Returns `true` if a connection that is lent as much as a long call needs must wait to begin a call.
    pub fn is_short(&self) -> bool {
        !(self.is_below_half() && self.pool.is_below_half())
    }

    fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    fn is_below_half(&self) -> bool {
        self.lent_bytes() <= self.pool.limits.share_bytes / 2
    }

    /// Returns `true` if the client is lent less than a long call needs.
    fn is_light(&self) -> bool {
        self.lent_bytes() < BUFFER_MAX_BYTES
    }

    /// Returns `true` if another long call fits in the client's share.
    fn fits_long_call(&self) -> bool {
        self.lent_bytes() + BUFFER_MAX_BYTES <= self.pool.limits.share_bytes
    }

    fn exceeds(&self) -> bool {
        let limits = &self.pool.limits;
        self.lent_bytes() > limits.share_bytes
            || self.pool.lent_bytes.load(Ordering::SeqCst) > limits.total_bytes
    }
}

impl ConnectionAccount {
    /// Returns `true` if the connection may begin work that takes memory. In general its client must use at
    /// most half of its share, so that the other half can complete what was begun, and all clients together
    /// at most half of the total. A connection or client with little memory may begin as long as a long call
    /// still fits, so that a few large users do not exclude all others.
    pub fn has_room(&self) -> bool {
        let (share, pool) = (&self.share, &self.share.pool);
        match pool.is_below_half() {
            true => share.is_below_half() || (self.is_light() && share.fits_long_call()),
            false => share.is_light() && pool.fits_long_call(),
        }
    }

    /// Registers a waiter, to be woken when memory may be available, or when it belongs in another queue. A
    /// waiter that was woken but still lacks room goes to the front. The caller must check
    /// [`has_room`](Self::has_room) afterwards, as memory may have been returned meanwhile.
    pub fn wait_for_room(&self, waiter: &Arc<dyn Waiter>, queued: &mut Queued) {
        loop {
            let (queue, notice) = self.queue();
            queued.enqueue(queue, notice, waiter);
            // Memory returned before the waiter was queued has caused no notification.
            if std::ptr::eq(queue, self.queue().0) {
                return;
            }
        }
    }

    /// Returns the queue to wait in now, and, if less lent memory would move the waiter to another queue, the
    /// queue that is woken in that case.
    fn queue(&self) -> (&Waiters, Option<&Waiters>) {
        let (share, pool) = (&*self.share, &*self.share.pool);
        match pool.is_below_half() {
            true if self.is_light() => (&share.light_waiters, None),
            true => (&share.waiters, Some(&self.becomes_light)),
            false if share.is_light() => (&pool.light_waiters, None),
            false => (&pool.waiters, Some(&share.becomes_light)),
        }
    }

    /// Returns the number of bytes charged to the connection.
    pub fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    /// Returns `true` if the connection is lent less than a long call needs.
    fn is_light(&self) -> bool {
        self.lent_bytes() < BUFFER_MAX_BYTES
    }

    /// Charges memory to the connection. Leases charge their buffers themselves.
    pub fn charge(&self, bytes: usize) {
        for lent_bytes in self.counters() {
            lent_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Reverts [`charge`](Self::charge).
    pub fn give_back(&self, bytes: usize) {
        for lent_bytes in self.counters() {
            lent_bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        if self.is_light() {
            self.becomes_light.wake_one();
        }
        self.share.wake_next();
    }

    fn counters(&self) -> [&AtomicUsize; 3] {
        [&self.lent_bytes, &self.share.lent_bytes, &self.share.pool.lent_bytes]
    }
}

impl BufferPool {
    /// Returns `true` if another long call fits in the total.
    fn fits_long_call(&self) -> bool {
        self.lent_bytes.load(Ordering::SeqCst) + BUFFER_MAX_BYTES <= self.limits.total_bytes
    }

    fn is_below_half(&self) -> bool {
        self.lent_bytes.load(Ordering::SeqCst) <= self.limits.total_bytes / 2
    }
}

/// A connection's view of the pool: buffers taken through it are charged to the connection's account. Cloning
/// costs one atomic increment.
#[derive(Clone)]
pub struct Buffers(Arc<ConnectionAccount>);

impl Buffers {
    /// Returns a view that charges this account.
    pub fn of(account: Arc<ConnectionAccount>) -> Self {
        Self(account)
    }

    /// Returns the account.
    pub fn account(&self) -> &Arc<ConnectionAccount> {
        &self.0
    }

    /// Returns the view of the only connection to a new pool.
    pub fn new(limits: BufferLimits) -> Self {
        Self(BufferPool::new(limits).account())
    }

    /// Takes a buffer of at least `len_bytes` with arbitrary contents. Returns `None` beyond
    /// [`BUFFER_MAX_BYTES`], and when the client's share or the total is exhausted. Since servers begin calls
    /// only while there is room ([`ConnectionAccount::has_room`]), a call that takes one buffer at once
    /// rarely fails.
    pub fn take(&self, len_bytes: usize) -> Option<Lease> {
        let share = &self.0.share;
        let lease = share.pool.take(len_bytes)?;
        lease.charge(&self.0);
        // Dropping the lease returns the buffer and its charge.
        if share.exceeds() { None } else { Some(lease) }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} bytes lent)", self.0.lent_bytes())
    }
}

/// A buffer that returns to the pool when its last lease is dropped.
///
/// A source or sink may outlive the lease; the memory is then freed with the last of them instead of being
/// reused. Without a lease the memory is charged to no account, so retain the lease as long as the data are
/// needed.
pub struct Lease(Option<Arc<PooledBuffer>>);

impl Lease {
    /// Returns the length in bytes, at least the one requested.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |pooled| pooled.buffer.len())
    }

    /// Returns `false`: no buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the part of `range` within the buffer, for writing.
    pub fn sink(&self, range: Range<usize>) -> Sink {
        self.0.as_ref().map_or_else(Sink::new, |pooled| pooled.buffer.sink(range))
    }

    /// Returns the part of `range` within the buffer, for reading.
    pub fn source(&self, range: Range<usize>) -> Source {
        self.0.as_ref().map_or_else(Source::new, |pooled| pooled.buffer.source(range))
    }

    /// Returns `true` if this is the only lease, and no sink or source of the buffer exists.
    pub fn is_sole(&mut self) -> bool {
        let pooled = self.0.as_mut().and_then(Arc::get_mut);
        pooled.is_some_and(|pooled| pooled.buffer.as_slice().is_some())
    }

    /// Charges the buffer to this account, unless it is already charged to one.
    pub fn charge(&self, account: &Arc<ConnectionAccount>) {
        let Some(pooled) = &self.0 else { return };
        let mut charged_to = lock(&pooled.account);
        if charged_to.is_none() {
            account.charge(SIZES[pooled.class]);
            *charged_to = Some(account.clone());
        }
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        if let Some(pooled) = &self.0 {
            pooled.leases.fetch_add(1, Ordering::Relaxed);
        }
        Self(self.0.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(pooled) = self.0.take() else { return };
        if pooled.leases.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let account = lock(&pooled.account).take();
        let size = SIZES[pooled.class];
        if let Some(pool) = pooled.pool.upgrade() {
            pool.put_back(pooled);
        }
        if let Some(account) = account {
            account.give_back(size);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests;
