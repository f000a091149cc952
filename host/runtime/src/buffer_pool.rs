//! A pool of buffers for records and file data, with limits for each client and for all.
//!
//! A [`BufferPool`] has a free list for each of a few size classes. The buffer that came back last is lent
//! first, for the processor's cache still holds it. What is lent is counted in all, for each client
//! ([`ClientAccount`]) and for each of its connections ([`ConnectionAccount`]), so that a client that asks
//! for much, or does not take its replies, keeps neither the others nor the machine out of memory. Buffers
//! that were not needed for a while are freed.
//!
//! Not here: small buffers. Lending one costs some tens of nanoseconds, and its memory comes in pages.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tombolo_mem::{Buffer, Sink, Source};

use crate::lock;
use crate::waiters::{Queued, Waiter, Waiters};

/// The largest buffer that is lent: a mebibyte of data and what stands in front of it.
pub const BUFFER_MAX_BYTES: usize = SIZES[SIZES.len() - 1];

/// The size classes. All but the first two hold a power of two of file data and a header.
const SIZES: [usize; 9] =
    [2 << 10, 16 << 10, 44 << 10, 76 << 10, 140 << 10, 268 << 10, 396 << 10, 524 << 10, 1036 << 10];

/// How much memory may be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// To all clients together, in bytes.
    pub total_bytes: usize,
    /// To one client, in bytes.
    pub share_bytes: usize,
    /// Retained for later while not lent, in bytes.
    pub retained_bytes: usize,
}

impl Default for BufferLimits {
    /// 256 MiB, a quarter of them for one client; 32 MiB are retained.
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
    /// Connections that wait for memory that all clients share.
    waiters: Waiters,
    /// Of them those of clients that hold next to nothing: any memory will do for them.
    light_waiters: Waiters,
}

/// The free buffers of one size; the last is the one that came back last.
#[derive(Default)]
struct SizeClass {
    free: Vec<Arc<PooledBuffer>>,
    /// The fewest that were free since the last trim: so many were not needed.
    low: usize,
}

/// A buffer and the account that it is charged to.
struct PooledBuffer {
    buffer: Buffer,
    class: usize,
    /// Where it goes back to. The pool owns its free buffers, not the other way round.
    pool: Weak<BufferPool>,
    /// None: one of the server's own.
    account: Mutex<Option<Arc<ConnectionAccount>>>,
    /// How many leases there are.
    leases: AtomicUsize,
}

impl BufferPool {
    /// An empty one.
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

    /// A client's share.
    pub fn share(self: &Arc<Self>) -> Arc<ClientAccount> {
        Arc::new(ClientAccount {
            pool: self.clone(),
            lent_bytes: AtomicUsize::new(0),
            waiters: Waiters::default(),
            light_waiters: Waiters::default(),
            becomes_light: Waiters::default(),
        })
    }

    /// The account of a client that has one only.
    pub fn account(self: &Arc<Self>) -> Arc<ConnectionAccount> {
        self.share().account()
    }

    /// A buffer of the server's own, which no limit refuses. None beyond [`BUFFER_MAX_BYTES`].
    pub fn take(self: &Arc<Self>, len_bytes: usize) -> Option<Lease> {
        let class = SIZES.iter().position(|size| len_bytes <= *size)?;
        let pooled = self.most_recent(class).unwrap_or_else(|| {
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

    /// How many bytes are lent to clients.
    pub fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::Relaxed)
    }

    /// Whether there are free buffers.
    pub fn has_spare(&self) -> bool {
        self.retained_bytes.load(Ordering::Relaxed) > 0
    }

    /// Frees what has not been needed since the last call.
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

    fn most_recent(&self, at: usize) -> Option<Arc<PooledBuffer>> {
        let mut class = lock(&self.classes[at]);
        loop {
            let mut pooled = class.free.pop()?;
            class.low = class.low.min(class.free.len());
            self.retained_bytes.fetch_sub(SIZES[at], Ordering::Relaxed);
            // A source of it may still be in use: then the memory is freed with that.
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

/// What one client holds, in all its accounts.
pub struct ClientAccount {
    pool: Arc<BufferPool>,
    lent_bytes: AtomicUsize,
    waiters: Waiters,
    /// Of them the accounts that hold next to nothing: any memory will do for them.
    light_waiters: Waiters,
    /// Connections that wait for memory that all clients share, in the wrong queue once this client holds
    /// next to nothing.
    becomes_light: Waiters,
}

/// What one connection of a client holds.
pub struct ConnectionAccount {
    share: Arc<ClientAccount>,
    lent_bytes: AtomicUsize,
    /// Its connection, if that waits in the wrong queue once it holds next to nothing.
    becomes_light: Waiters,
}

impl ClientAccount {
    /// An account of this client.
    pub fn account(self: &Arc<Self>) -> Arc<ConnectionAccount> {
        Arc::new(ConnectionAccount {
            share: self.clone(),
            lent_bytes: AtomicUsize::new(0),
            becomes_light: Waiters::default(),
        })
    }

    /// Wakes the first waiter of each queue for which there is room. A waiter that was woken and leaves some
    /// room calls it again.
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

    /// Whether an account that holds more than next to nothing would have to wait.
    pub fn is_short(&self) -> bool {
        !(self.is_below_half() && self.pool.is_below_half())
    }

    fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    fn is_below_half(&self) -> bool {
        self.lent_bytes() <= self.pool.limits.share_bytes / 2
    }

    /// Less than one long call.
    fn is_light(&self) -> bool {
        self.lent_bytes() < BUFFER_MAX_BYTES
    }

    /// Whether there is memory for another long call.
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
    /// Whether the connection may begin something that takes memory: its client has at most half its share,
    /// so that what it has begun can be finished with the other half, and all clients together have at most
    /// half of everything. But a connection, and a client, that has next to nothing may begin as long as
    /// there is memory at all, so that a few that hold much do not keep all others out.
    pub fn has_room(&self) -> bool {
        let (share, pool) = (&self.share, &self.share.pool);
        match pool.is_below_half() {
            true => share.is_below_half() || (self.is_light() && share.fits_long_call()),
            false => share.is_light() && pool.fits_long_call(),
        }
    }

    /// Has the waiter woken when there may be room, and when it has to wait elsewhere because it has next to
    /// nothing now; the first of all if it was woken in vain. Look again after this, for room may have come
    /// meanwhile.
    pub fn wait_for_room(&self, waiter: &Arc<dyn Waiter>, queued: &mut Queued) {
        loop {
            let (queue, notice) = self.queue();
            queued.stand(queue, notice, waiter);
            // What was given back meanwhile gave no notice.
            if std::ptr::eq(queue, self.queue().0) {
                return;
            }
        }
    }

    /// Where to wait as things are, and what tells when it is somewhere else because less is lent.
    fn queue(&self) -> (&Waiters, Option<&Waiters>) {
        let (share, pool) = (&*self.share, &*self.share.pool);
        match pool.is_below_half() {
            true if self.is_light() => (&share.light_waiters, None),
            true => (&share.waiters, Some(&self.becomes_light)),
            false if share.is_light() => (&pool.light_waiters, None),
            false => (&pool.waiters, Some(&share.becomes_light)),
        }
    }

    /// How many bytes the connection holds.
    pub fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    /// Less than one long call.
    fn is_light(&self) -> bool {
        self.lent_bytes() < BUFFER_MAX_BYTES
    }

    /// Counts memory that the connection holds beside its buffers.
    pub fn charge(&self, bytes: usize) {
        for lent_bytes in self.counters() {
            lent_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Undoes [`charge`](Self::charge).
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
    /// Whether there is memory for another long call.
    fn fits_long_call(&self) -> bool {
        self.lent_bytes.load(Ordering::SeqCst) + BUFFER_MAX_BYTES <= self.limits.total_bytes
    }

    fn is_below_half(&self) -> bool {
        self.lent_bytes.load(Ordering::SeqCst) <= self.limits.total_bytes / 2
    }
}

/// The pool as one connection uses it: what it takes is charged to its account. Cloning it costs one atomic
/// increment.
#[derive(Clone)]
pub struct Buffers(Arc<ConnectionAccount>);

impl Buffers {
    /// Charged to this account.
    pub fn of(account: Arc<ConnectionAccount>) -> Self {
        Self(account)
    }

    /// What its buffers are charged to.
    pub fn account(&self) -> &Arc<ConnectionAccount> {
        &self.0
    }

    /// A pool for one client alone.
    pub fn new(limits: BufferLimits) -> Self {
        Self(BufferPool::new(limits).account())
    }

    /// A buffer of at least `len_bytes`, whose contents are those of its last use. None beyond
    /// [`BUFFER_MAX_BYTES`], and when the client has its share or all clients together have what there is. A
    /// server begins no further calls that need one for a client that has half of that, so a call that takes
    /// one buffer at once hardly ever gets none.
    pub fn take(&self, len_bytes: usize) -> Option<Lease> {
        let share = &self.0.share;
        let lease = share.pool.take(len_bytes)?;
        lease.charge(&self.0);
        // The buffer goes back, and what was charged with it.
        if share.exceeds() { None } else { Some(lease) }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} bytes lent)", self.0.lent_bytes())
    }
}

/// A buffer that goes back to the pool when its last lease is dropped.
///
/// A source or sink of it may outlive the lease; its memory is then freed with the last of them, and not used
/// again. But it is not counted any more, so keep the lease as long as its data is needed.
pub struct Lease(Option<Arc<PooledBuffer>>);

impl Lease {
    /// Length in bytes; at least what was asked for.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |pooled| pooled.buffer.len())
    }

    /// Never: the smallest buffer has some bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of `range` that lies inside the buffer, to be written into.
    pub fn sink(&self, range: Range<usize>) -> Sink {
        self.0.as_ref().map_or_else(Sink::new, |pooled| pooled.buffer.sink(range))
    }

    /// The part of `range` that lies inside the buffer, to be read from.
    pub fn source(&self, range: Range<usize>) -> Source {
        self.0.as_ref().map_or_else(Source::new, |pooled| pooled.buffer.source(range))
    }

    /// Whether this is the only lease, and no sink or source of the buffer is left.
    pub fn is_sole(&mut self) -> bool {
        let pooled = self.0.as_mut().and_then(Arc::get_mut);
        pooled.is_some_and(|pooled| pooled.buffer.as_slice().is_some())
    }

    /// Charges the buffer to this account, unless it is charged to another.
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
