//! Memory for records and file data: lent, limited, and used again.
//!
//! A [`Stock`] has buffers of a few sizes. The one that came back last is lent first, for the processor's cache still holds
//! it. What is lent is counted, in all, for each client ([`Share`]) and for each of its connections ([`Account`]), so that one client that asks for much, or takes
//! nothing back, keeps neither the others nor the machine out of memory. What nobody needed for a while is freed.
//!
//! Not here: small buffers. Lending one costs some tens of nanoseconds, and its memory comes in pages.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tombolo_mem::{Buffer, Sink, Source};

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
pub(crate) struct Stock {
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
    pub(crate) fn new(limits: BufferLimits) -> Arc<Self> {
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
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share {
            stock: self.clone(),
            lent_bytes: AtomicUsize::new(0),
            waiters: Waiters::default(),
            modest_waiters: Waiters::default(),
        })
    }

    /// The account of a client that has one only.
    pub(crate) fn account(self: &Arc<Self>) -> Arc<Account> {
        self.share().account()
    }

    /// A buffer of the server's own, which no limit refuses. None beyond [`BUFFER_MAX_BYTES`].
    pub(crate) fn take(self: &Arc<Self>, len_bytes: usize) -> Option<Lease> {
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
    pub(crate) fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::Relaxed)
    }

    /// Whether there are buffers that nobody has.
    pub(crate) fn has_spare(&self) -> bool {
        self.retained_bytes.load(Ordering::Relaxed) > 0
    }

    /// Frees what has not been needed since the last call.
    pub(crate) fn trim(&self) {
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
pub(crate) struct Share {
    stock: Arc<Stock>,
    lent_bytes: AtomicUsize,
    waiters: Waiters,
    /// Of them the accounts that have next to nothing: any memory will do for them.
    modest_waiters: Waiters,
}

/// What one connection of a client has.
pub(crate) struct Account {
    share: Arc<Share>,
    lent_bytes: AtomicUsize,
}

impl Share {
    /// An account of this client.
    pub(crate) fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account { share: self.clone(), lent_bytes: AtomicUsize::new(0) })
    }

    /// Wakes one of those that wait, if there is room: who was woken and leaves some says so to the next.
    pub(crate) fn pass_on(&self) {
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
    pub(crate) fn is_short(&self) -> bool {
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
    pub(crate) fn has_room(&self) -> bool {
        let (share, stock) = (&self.share, &self.share.stock);
        match stock.is_below_half() {
            true => share.is_below_half() || (self.has_little() && share.has_any()),
            false => share.has_little() && stock.has_any(),
        }
    }

    /// Has the waiter woken when there may be room; the first of all if it was woken in vain. Look again after this, for room
    /// may have come meanwhile.
    pub(crate) fn wait_for_room(&self, waiter: Arc<dyn Waiter>, in_vain: bool) {
        let (share, stock) = (&self.share, &self.share.stock);
        let queue = match stock.is_below_half() {
            true if self.has_little() => &share.modest_waiters,
            true => &share.waiters,
            false if share.has_little() => &stock.modest_waiters,
            false => &stock.waiters,
        };
        queue.add(waiter, in_vain);
    }

    /// How many bytes the connection has.
    pub(crate) fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    /// Less than one long call.
    fn has_little(&self) -> bool {
        self.lent_bytes() < BUFFER_MAX_BYTES
    }

    /// Counts memory that the connection has beside its buffers.
    pub(crate) fn charge(&self, bytes: usize) {
        for lent_bytes in self.counters() {
            lent_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Undoes [`charge`](Self::charge).
    pub(crate) fn give_back(&self, bytes: usize) {
        for lent_bytes in self.counters() {
            lent_bytes.fetch_sub(bytes, Ordering::SeqCst);
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
pub struct Buffers(pub(crate) Arc<Account>);

impl Buffers {
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
    pub(crate) fn is_sole(&mut self) -> bool {
        let chunk = self.0.as_mut().and_then(Arc::get_mut);
        chunk.is_some_and(|chunk| chunk.buffer.as_slice().is_some())
    }

    /// From now on this client pays for the buffer, unless another does.
    pub(crate) fn charge(&self, account: &Arc<Account>) {
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

/// Somebody who waits for memory.
pub(crate) trait Waiter: Send + Sync {
    /// Tells it that there may be some. False if it is not there any more, so that another can be told.
    fn wake(&self) -> bool;
}

/// Those who wait, in turn.
#[derive(Default)]
pub(crate) struct Waiters {
    any: AtomicBool,
    queue: Mutex<VecDeque<Arc<dyn Waiter>>>,
}

impl Waiters {
    /// Adds one, as the first if it was woken in vain.
    pub(crate) fn add(&self, waiter: Arc<dyn Waiter>, in_vain: bool) {
        let mut queue = lock(&self.queue);
        match in_vain {
            true => queue.push_front(waiter),
            false => queue.push_back(waiter),
        }
        self.any.store(true, Ordering::SeqCst);
    }

    pub(crate) fn wake_one(&self) {
        while self.any.load(Ordering::SeqCst) {
            let waiter = {
                let mut queue = lock(&self.queue);
                let waiter = queue.pop_front();
                self.any.store(!queue.is_empty(), Ordering::SeqCst);
                waiter
            };
            if waiter.is_some_and(|waiter| waiter.wake()) {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BufferLimits =
        BufferLimits { total_bytes: 8 << 20, share_bytes: 4 << 20, retained_bytes: 2 << 20 };

    #[test]
    fn the_buffer_that_came_back_last_is_lent_first() {
        let buffers = Buffers::new(LIMITS);
        let (first, second) = (buffers.take(40_000).expect("one"), buffers.take(40_000).expect("two"));
        first.sink(0..1).write_at(0, b"1");
        second.sink(0..1).write_at(0, b"2");
        drop(first);
        drop(second);
        let again = buffers.take(33_000).expect("one that was used");
        assert_eq!(again.source(0..1).to_vec(1), b"2");
        assert_eq!(buffers.0.lent_bytes(), again.len());
    }

    #[test]
    fn what_nobody_has_goes_with_its_stock() {
        let buffers = Buffers::new(LIMITS);
        let stock = Arc::downgrade(&buffers.0.share.stock);
        drop(buffers.take(100).expect("a buffer"));
        assert!(stock.upgrade().expect("it is there").has_spare());
        let kept = buffers.take(40_000).expect("another");
        drop(buffers);
        drop(kept);
        assert!(stock.upgrade().is_none(), "it is kept by its own buffers");
    }

    #[test]
    fn a_buffer_that_somebody_still_reads_is_not_lent() {
        let buffers = Buffers::new(LIMITS);
        let lease = buffers.take(100).expect("a buffer");
        lease.sink(0..5).write_at(0, b"theirs");
        let source = lease.source(0..5);
        drop(lease);
        let other = buffers.take(100).expect("another");
        other.sink(0..5).write_at(0, b"other");
        assert_eq!(source.to_vec(5), b"their");
    }

    #[test]
    fn every_lease_of_a_buffer_keeps_it() {
        let buffers = Buffers::new(LIMITS);
        let lease = buffers.take(100).expect("a buffer");
        let clone = lease.clone();
        drop(lease);
        assert_eq!(buffers.0.lent_bytes(), clone.len());
        drop(clone);
        assert_eq!(buffers.0.lent_bytes(), 0);
    }

    #[test]
    fn a_client_has_its_share_and_another_still_gets_some() {
        let stock = Stock::new(LIMITS);
        let (greedy, other) = (Buffers(stock.account()), Buffers(stock.account()));
        let mut had: Vec<_> = std::iter::from_fn(|| greedy.take(1 << 20)).collect();
        assert_eq!(had.len(), 3, "of 1,036 KiB each");
        assert!(!greedy.0.has_room() && other.0.has_room());
        assert!(other.take(1 << 20).is_some());
        assert!(other.take(BUFFER_MAX_BYTES + 1).is_none());
        had.pop();
        assert!(greedy.take(1 << 20).is_some());
    }

    #[test]
    fn what_is_not_needed_is_freed() {
        let stock = Stock::new(LIMITS);
        let buffers = Buffers(stock.account());
        let had: Vec<_> = std::iter::from_fn(|| buffers.take(1 << 20)).collect();
        drop(had);
        assert!(stock.retained_bytes.load(Ordering::Relaxed) <= LIMITS.retained_bytes);
        assert!(stock.has_spare());
        stock.trim();
        stock.trim();
        assert!(!stock.has_spare());
        // What is used again and again stays.
        for _ in 0..5 {
            drop(buffers.take(1 << 20));
            stock.trim();
            assert!(stock.has_spare());
        }
    }

    #[test]
    fn a_few_that_hold_much_keep_nobody_out_who_has_little() {
        let stock = Stock::new(LIMITS);
        let greedy: Vec<_> = (0..4).map(|_| Buffers(stock.account())).collect();
        let modest = Buffers(stock.account());
        let mut had: Vec<_> = greedy.iter().map(|buffers| buffers.take(1 << 20)).collect();
        assert!(!stock.is_below_half() && modest.0.has_room());
        let own = modest.take(1 << 20);
        assert!(own.is_some() && !modest.0.has_room(), "now it has a long call");
        drop(own);
        while stock.has_any() {
            had.push(greedy[had.len() % 4].take(1 << 20));
        }
        assert!(!modest.0.has_room(), "there is nothing left");
        let told = Arc::new(Told(Mutex::default()));
        greedy[0].0.wait_for_room(Arc::new(One(1, true, told.clone())), false);
        modest.0.wait_for_room(Arc::new(One(2, true, told.clone())), false);
        had.pop();
        assert!(!stock.is_below_half() && modest.0.has_room());
        assert_eq!(*lock(&told.0), [2], "the others hold half of it still");
    }

    #[test]
    fn connections_that_hold_the_half_of_their_client_keep_no_other_of_it_out() {
        let stock = Stock::new(BufferLimits { total_bytes: 64 << 20, ..LIMITS });
        let share = stock.share();
        let (greedy, modest) = (Buffers(share.account()), Buffers(share.account()));
        let had = [greedy.take(1 << 20), greedy.take(1 << 20)];
        assert!(had.iter().all(Option::is_some));
        assert!(!greedy.0.has_room() && modest.0.has_room());
        let own = modest.take(1 << 20);
        assert!(own.is_some() && !modest.0.has_room(), "now it has a long call, and there is no other");
        let told = Arc::new(Told(Mutex::default()));
        greedy.0.wait_for_room(Arc::new(One(1, true, told.clone())), false);
        share.account().wait_for_room(Arc::new(One(2, true, told.clone())), false);
        drop(own);
        assert_eq!(*lock(&told.0), [2], "the other holds half of it still");
        drop(had);
        assert_eq!((share.lent_bytes(), greedy.0.lent_bytes(), stock.lent_bytes()), (0, 0, 0));
        assert_eq!(*lock(&told.0), [2, 1]);
    }

    struct Told(Mutex<Vec<u8>>);
    struct One(u8, bool, Arc<Told>);
    impl Waiter for One {
        fn wake(&self) -> bool {
            lock(&self.2.0).push(self.0);
            self.1
        }
    }

    #[test]
    fn who_waits_is_told_in_turn() {
        let stock = Stock::new(LIMITS);
        let buffers = Buffers(stock.account());
        let told = Arc::new(Told(Mutex::default()));
        let mut had: Vec<_> = std::iter::from_fn(|| buffers.take(1 << 19)).collect();
        for (name, is_there) in [(1, true), (2, false), (3, true), (4, true)] {
            buffers.0.wait_for_room(Arc::new(One(name, is_there, told.clone())), false);
        }
        buffers.0.wait_for_room(Arc::new(One(9, true, told.clone())), true);
        while had.len() > 4 {
            had.pop();
        }
        assert!(lock(&told.0).is_empty(), "half a share is lent still");
        had.pop();
        assert_eq!(*lock(&told.0), [9], "who was told in vain comes first");
        had.pop();
        buffers.0.share.pass_on();
        assert_eq!(*lock(&told.0), [9, 1, 2, 3], "one that has left is passed over");
    }
}
