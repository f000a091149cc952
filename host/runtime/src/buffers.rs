//! Memory for records and file data: lent, limited, and used again.
//!
//! A [`Stock`] has buffers of a few sizes. The one that came back last is lent first, for the processor's cache still holds
//! it. What is lent is counted, in all, for each client ([`Share`]) and for each of its connections ([`Account`]), so that one client that asks for much, or takes
//! nothing back, keeps neither the others nor the machine out of memory. What nobody needed for a while is freed.
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

/// The sizes that are lent. All but the first two hold a power of two of file data and a header.
const SIZES: [usize; 9] =
    [2 << 10, 16 << 10, 44 << 10, 76 << 10, 140 << 10, 268 << 10, 396 << 10, 524 << 10, 1036 << 10];

/// How much memory may be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// To all clients together, in bytes.
    pub total_bytes: usize,
    /// To one client, in bytes.
    pub share_bytes: usize,
    /// Kept for later when nobody has it, in bytes.
    pub retained_bytes: usize,
}

impl Default for BufferLimits {
    /// 256 MiB, a quarter of them for one client; 32 MiB are kept.
    fn default() -> Self {
        Self { total_bytes: 256 << 20, share_bytes: 64 << 20, retained_bytes: 32 << 20 }
    }
}

/// All buffers of one server.
pub struct Stock {
    limits: BufferLimits,
    shelves: [Mutex<Shelf>; SIZES.len()],
    lent_bytes: AtomicUsize,
    retained_bytes: AtomicUsize,
    /// Those who wait for memory that all clients share.
    waiters: Waiters,
    /// Of them those who have next to nothing: any memory will do for them.
    modest_waiters: Waiters,
}

/// The buffers of one size that nobody has; the warmest is the last.
#[derive(Default)]
struct Shelf {
    chunks: Vec<Arc<Chunk>>,
    /// The fewest that lay here since the last look: so many were not needed.
    low: usize,
}

/// A buffer and who pays for it.
struct Chunk {
    buffer: Buffer,
    shelf: usize,
    /// Where it goes back to. The stock owns what lies on its shelves, not the other way round.
    stock: Weak<Stock>,
    /// None: one of the server's own.
    account: Mutex<Option<Arc<Account>>>,
    /// How many leases there are.
    leases: AtomicUsize,
}

impl Stock {
    /// An empty one.
    pub fn new(limits: BufferLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            shelves: Default::default(),
            lent_bytes: AtomicUsize::new(0),
            retained_bytes: AtomicUsize::new(0),
            waiters: Waiters::default(),
            modest_waiters: Waiters::default(),
        })
    }

    /// A client's share.
    pub fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share {
            stock: self.clone(),
            lent_bytes: AtomicUsize::new(0),
            waiters: Waiters::default(),
            modest_waiters: Waiters::default(),
            becomes_modest: Waiters::default(),
        })
    }

    /// The account of a client that has one only.
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        self.share().account()
    }

    /// A buffer of the server's own, which no limit refuses. None beyond [`BUFFER_MAX_BYTES`].
    pub fn take(self: &Arc<Self>, len_bytes: usize) -> Option<Lease> {
        let shelf = SIZES.iter().position(|size| len_bytes <= *size)?;
        let chunk = self.warmest(shelf).unwrap_or_else(|| {
            let buffer = Buffer::new(SIZES[shelf]);
            Arc::new(Chunk {
                buffer,
                shelf,
                stock: Arc::downgrade(self),
                account: Mutex::default(),
                leases: AtomicUsize::new(0),
            })
        });
        chunk.leases.store(1, Ordering::Relaxed);
        Some(Lease(Some(chunk)))
    }

    /// How many bytes are lent to clients.
    pub fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::Relaxed)
    }

    /// Whether there are buffers that nobody has.
    pub fn has_spare(&self) -> bool {
        self.retained_bytes.load(Ordering::Relaxed) > 0
    }

    /// Frees what has not been needed since the last call.
    pub fn trim(&self) {
        for (shelf, size) in self.shelves.iter().zip(SIZES) {
            let mut shelf = lock(shelf);
            let unneeded = shelf.low.min(shelf.chunks.len());
            shelf.low = shelf.chunks.len() - unneeded;
            let freed: Vec<_> = shelf.chunks.drain(..unneeded).collect();
            drop(shelf);
            self.retained_bytes.fetch_sub(freed.len() * size, Ordering::Relaxed);
        }
    }

    fn warmest(&self, at: usize) -> Option<Arc<Chunk>> {
        let mut shelf = lock(&self.shelves[at]);
        loop {
            let mut chunk = shelf.chunks.pop()?;
            shelf.low = shelf.low.min(shelf.chunks.len());
            self.retained_bytes.fetch_sub(SIZES[at], Ordering::Relaxed);
            // Somebody may still have a source of it: then it goes when that goes.
            if Arc::get_mut(&mut chunk).is_some_and(|chunk| chunk.buffer.as_slice().is_some()) {
                return Some(chunk);
            }
        }
    }

    fn put_back(&self, chunk: Arc<Chunk>) {
        let size = SIZES[chunk.shelf];
        if self.retained_bytes.fetch_add(size, Ordering::Relaxed) + size > self.limits.retained_bytes {
            self.retained_bytes.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        lock(&self.shelves[chunk.shelf]).chunks.push(chunk);
    }
}

/// What one client has, in all its accounts.
pub struct Share {
    stock: Arc<Stock>,
    lent_bytes: AtomicUsize,
    waiters: Waiters,
    /// Of them the accounts that have next to nothing: any memory will do for them.
    modest_waiters: Waiters,
    /// Those who wait for memory that all clients share, in the wrong queue once this client has next to nothing.
    becomes_modest: Waiters,
}

/// What one connection of a client has.
pub struct Account {
    share: Arc<Share>,
    lent_bytes: AtomicUsize,
    /// Its connection, if that waits in the wrong queue once it has next to nothing.
    becomes_modest: Waiters,
}

impl Share {
    /// An account of this client.
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account {
            share: self.clone(),
            lent_bytes: AtomicUsize::new(0),
            becomes_modest: Waiters::default(),
        })
    }

    /// Wakes one of those that wait, if there is room: who was woken and leaves some says so to the next.
    pub fn pass_on(&self) {
        if self.has_little() {
            self.becomes_modest.wake_one();
        }
        if self.is_below_half() {
            self.waiters.wake_one();
        }
        if self.has_any() {
            self.modest_waiters.wake_one();
        }
        if self.stock.has_any() {
            self.stock.modest_waiters.wake_one();
        }
        if self.stock.is_below_half() {
            self.stock.waiters.wake_one();
        }
    }

    /// Whether some have to wait that want more than next to nothing.
    pub fn is_short(&self) -> bool {
        !(self.is_below_half() && self.stock.is_below_half())
    }

    fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    fn is_below_half(&self) -> bool {
        self.lent_bytes() <= self.stock.limits.share_bytes / 2
    }

    /// Less than one long call.
    fn has_little(&self) -> bool {
        self.lent_bytes() < BUFFER_MAX_BYTES
    }

    /// Whether there is memory for another long call.
    fn has_any(&self) -> bool {
        self.lent_bytes() + BUFFER_MAX_BYTES <= self.stock.limits.share_bytes
    }

    fn exceeds(&self) -> bool {
        let limits = &self.stock.limits;
        self.lent_bytes() > limits.share_bytes
            || self.stock.lent_bytes.load(Ordering::SeqCst) > limits.total_bytes
    }
}

impl Account {
    /// Whether the connection may begin something that takes memory: its client has at most half its share, so that what it has begun
    /// can be finished with the other half, and all clients together have at most half of everything. But a connection, and a client, that
    /// has next to nothing may begin as long as there is memory at all, so that a few that hold much do not keep everybody out.
    pub fn has_room(&self) -> bool {
        let (share, stock) = (&self.share, &self.share.stock);
        match stock.is_below_half() {
            true => share.is_below_half() || (self.has_little() && share.has_any()),
            false => share.has_little() && stock.has_any(),
        }
    }

    /// Has the waiter woken when there may be room, and when it has to wait elsewhere because it has next to nothing now; the first
    /// of all if it was woken in vain. Look again after this, for room may have come meanwhile.
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
        let (share, stock) = (&*self.share, &*self.share.stock);
        match stock.is_below_half() {
            true if self.has_little() => (&share.modest_waiters, None),
            true => (&share.waiters, Some(&self.becomes_modest)),
            false if share.has_little() => (&stock.modest_waiters, None),
            false => (&stock.waiters, Some(&share.becomes_modest)),
        }
    }

    /// How many bytes the connection has.
    pub fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    /// Less than one long call.
    fn has_little(&self) -> bool {
        self.lent_bytes() < BUFFER_MAX_BYTES
    }

    /// Counts memory that the connection has beside its buffers.
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
        if self.has_little() {
            self.becomes_modest.wake_one();
        }
        self.share.pass_on();
    }

    fn counters(&self) -> [&AtomicUsize; 3] {
        [&self.lent_bytes, &self.share.lent_bytes, &self.share.stock.lent_bytes]
    }
}

impl Stock {
    /// Whether there is memory for another long call.
    fn has_any(&self) -> bool {
        self.lent_bytes.load(Ordering::SeqCst) + BUFFER_MAX_BYTES <= self.limits.total_bytes
    }

    fn is_below_half(&self) -> bool {
        self.lent_bytes.load(Ordering::SeqCst) <= self.limits.total_bytes / 2
    }
}

/// Where the buffers of one connection come from. Cloning it costs one atomic increment.
#[derive(Clone)]
pub struct Buffers(Arc<Account>);

impl Buffers {
    /// What one account may have.
    pub fn of(account: Arc<Account>) -> Self {
        Self(account)
    }

    /// Whose memory it is.
    pub fn account(&self) -> &Arc<Account> {
        &self.0
    }

    /// A source of buffers for one client alone, as tests of a service need it.
    pub fn new(limits: BufferLimits) -> Self {
        Self(Stock::new(limits).account())
    }

    /// A buffer of at least `len_bytes`, whose contents are those of its last use. None beyond [`BUFFER_MAX_BYTES`], and
    /// when the client has its share or all clients together have what there is. A server begins no
    /// further calls that need one for a client that has half of that, so a call that takes one buffer at once hardly ever gets none.
    pub fn take(&self, len_bytes: usize) -> Option<Lease> {
        let share = &self.0.share;
        let lease = share.stock.take(len_bytes)?;
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

/// A buffer that goes back to the stock when the last lease of it is dropped.
///
/// A source or sink of it may outlive the lease; its memory is then freed with the last of them, and not used again. But
/// nobody counts it any more, so keep the lease as long as its data is needed.
pub struct Lease(Option<Arc<Chunk>>);

impl Lease {
    /// Length in bytes; at least what was asked for.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |chunk| chunk.buffer.len())
    }

    /// Never: the smallest buffer has some bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of `range` that lies inside the buffer, to be written into.
    pub fn sink(&self, range: Range<usize>) -> Sink {
        self.0.as_ref().map_or_else(Sink::new, |chunk| chunk.buffer.sink(range))
    }

    /// The part of `range` that lies inside the buffer, to be read from.
    pub fn source(&self, range: Range<usize>) -> Source {
        self.0.as_ref().map_or_else(Source::new, |chunk| chunk.buffer.source(range))
    }

    /// Whether this is the only lease, and no sink or source of the buffer is left.
    pub fn is_sole(&mut self) -> bool {
        let chunk = self.0.as_mut().and_then(Arc::get_mut);
        chunk.is_some_and(|chunk| chunk.buffer.as_slice().is_some())
    }

    /// From now on this client pays for the buffer, unless another does.
    pub fn charge(&self, account: &Arc<Account>) {
        let Some(chunk) = &self.0 else { return };
        let mut payer = lock(&chunk.account);
        if payer.is_none() {
            account.charge(SIZES[chunk.shelf]);
            *payer = Some(account.clone());
        }
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        if let Some(chunk) = &self.0 {
            chunk.leases.fetch_add(1, Ordering::Relaxed);
        }
        Self(self.0.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(chunk) = self.0.take() else { return };
        if chunk.leases.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let account = lock(&chunk.account).take();
        let size = SIZES[chunk.shelf];
        if let Some(stock) = chunk.stock.upgrade() {
            stock.put_back(chunk);
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
