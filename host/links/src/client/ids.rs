//! Free ids, and the queue of calls waiting for one. `host/links/tests/it/ids_model.rs` models its steps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::lock;

use super::queued_request::QueuedRequest;

/// Free ids, and the queue of calls waiting for one.
#[derive(Debug)]
pub(super) struct Ids {
    /// Cache of one free id, outside the lock; empty while a request is queued, except briefly.
    cached: IdCache,
    inner: Mutex<Inner>,
    /// Number of buffers, by which the ids of two consecutive generations of one buffer differ.
    slots: u32,
    /// `true` if a request is queued.
    is_wanted: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    /// Next id of each unused buffer but the cached one. The last is issued first: its buffer is most likely
    /// in the CPU's caches.
    free: Vec<u32>,
    waiting: VecDeque<Arc<QueuedRequest>>,
}

impl Ids {
    pub(super) fn new(slots: u32) -> Self {
        let free = (0..slots).rev().collect();
        let inner = Mutex::new(Inner { free, waiting: VecDeque::new() });
        Self { cached: IdCache::default(), inner, slots, is_wanted: AtomicBool::new(false) }
    }

    /// Returns a free id, unless requests are queued for one.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        self.cached.take().or_else(|| lock(&self.inner).free.pop())
    }

    /// Returns a free id; otherwise appends `queued` to the queue.
    pub(super) fn take_or_wait(&self, queued: &Arc<QueuedRequest>) -> Option<u32> {
        let mut inner = lock(&self.inner);
        let id = inner.free.pop().or_else(|| self.cached.take());
        if id.is_some() {
            return id;
        }
        inner.waiting.push_back(queued.clone());
        self.is_wanted.store(true, Ordering::SeqCst);
        // A thread that frees an id checks `is_wanted` afterwards, so that either it sees the queued request,
        // or this thread finds the id.
        let id = self.cached.take();
        if id.is_some() {
            inner.waiting.pop_back();
            self.is_wanted.store(!inner.waiting.is_empty(), Ordering::SeqCst);
        }
        id
    }

    /// Frees an id whose answer was taken. If a request is queued, returns it and the id to use.
    #[inline]
    pub(super) fn give_back(&self, id: u32) -> Option<(Arc<QueuedRequest>, u32)> {
        // The next id names the same buffer in the next generation, even if the addition wraps: the number of
        // slots is a power of two.
        let mut next = id.wrapping_add(self.slots);
        if !self.is_wanted() && self.cached.put(next) {
            if !self.is_wanted() {
                return None;
            }
            // A request was queued meanwhile. If another thread has taken the id, that thread will free it.
            next = self.cached.take()?;
        }
        let mut inner = lock(&self.inner);
        match inner.waiting.pop_front() {
            Some(queued) => {
                self.is_wanted.store(!inner.waiting.is_empty(), Ordering::SeqCst);
                Some((queued, next))
            }
            None => {
                inner.free.push(next);
                None
            }
        }
    }

    /// Frees an id with which no request was sent: it may be issued again. Otherwise as `give_back`.
    pub(super) fn put_back(&self, id: u32) -> Option<(Arc<QueuedRequest>, u32)> {
        self.give_back(id.wrapping_sub(self.slots))
    }

    /// Returns `true` if a request is queued for an id.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }

    /// Removes and returns the queued requests.
    pub(super) fn take_waiting(&self) -> VecDeque<Arc<QueuedRequest>> {
        std::mem::take(&mut lock(&self.inner).waiting)
    }

    /// Returns the number of ids in use and of calls queued for one.
    pub(super) fn used_and_waiting(&self) -> (u64, u64) {
        let inner = lock(&self.inner);
        let free = inner.free.len() as u64 + u64::from(!self.cached.is_empty());
        (u64::from(self.slots).saturating_sub(free), inner.waiting.len() as u64)
    }
}

/// Value of an empty cache.
const NONE: u64 = u64::MAX;

/// Cache of one free id, outside the lock of the others.
///
/// A caller with one request at a time uses the cached id for all but the first: one exchange each to take
/// and return it, instead of a lock (docs/decisions/shm-rings.md).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct IdCache(AtomicU64);

impl Default for IdCache {
    fn default() -> Self {
        Self(AtomicU64::new(NONE))
    }
}

impl IdCache {
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        u32::try_from(self.0.swap(NONE, Ordering::SeqCst)).ok()
    }

    /// Stores an id, or returns `false` if the cache is not empty. The store is sequentially consistent, and
    /// so ordered before this thread's later read of `is_wanted`.
    #[inline]
    pub(super) fn put(&self, id: u32) -> bool {
        self.is_empty()
            && self.0.compare_exchange(NONE, id.into(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) == NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_id_is_next_generation_of_buffer() {
        let ids = Ids::new(8);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let id = ids.take().expect("free");
            assert!(seen.insert(id));
            assert_eq!(id % 8, 0, "the warmest buffer");
            assert!(ids.give_back(id).is_none());
        }
        assert_eq!(ids.used_and_waiting(), (0, 0));
    }

    #[test]
    fn generations_wrap_without_leaving_the_buffer() {
        let ids = Ids::new(8);
        let last = u32::MAX - 2;
        ids.give_back(last);
        assert_eq!(ids.take(), Some(last.wrapping_add(8)));
        assert_eq!(last.wrapping_add(8) % 8, last % 8);
    }

    #[test]
    fn queued_requests_get_ids_in_order() {
        let ids = Ids::new(8);
        let out: Vec<u32> = std::iter::from_fn(|| ids.take()).collect();
        assert_eq!(out.len(), 8);
        let queued = [0, 1, 2].map(|kind| Arc::new(QueuedRequest::new(kind, [0; 48], None, 0)));
        assert!(queued.iter().all(|queued| ids.take_or_wait(queued).is_none()));
        for (queued, id) in queued.iter().zip(out) {
            let (next, given) = ids.give_back(id).expect("a request is queued");
            assert!(Arc::ptr_eq(&next, queued));
            assert_eq!(given % 8, id % 8);
        }
    }
}
