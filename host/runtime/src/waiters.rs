//! Queues of waiters for memory or for the permission to begin a call.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;

/// A waiter for memory or for the permission to begin a call.
pub trait Waiter: Send + Sync {
    /// Wakes the waiter. Returns `false` if it no longer exists, so that another can be woken.
    fn wake(&self) -> bool;
}

/// A FIFO queue of waiters.
#[derive(Default)]
pub struct Waiters(Arc<Queue>);

#[derive(Default)]
struct Queue {
    /// `true` if there are entries; read without the lock.
    any: AtomicBool,
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    /// Waiters by number, lowest first.
    entries: BTreeMap<i64, Arc<dyn Waiter>>,
    /// Last numbers assigned at the front, descending, and at the back, ascending; none is assigned twice.
    front: i64,
    back: i64,
}

/// Position of a waiter in its queues. Dropping it removes the waiter from them, so that a queue does not
/// keep a connection that has ended, and its descriptor, alive.
#[derive(Default)]
pub struct Queued {
    position: Option<Entry>,
    /// Entry in a queue that wakes the waiter when it may be waiting in the wrong queue.
    notice: Option<Entry>,
}

struct Entry {
    queue: Arc<Queue>,
    number: i64,
}

impl Waiters {
    /// Wakes the first waiter that still exists.
    pub fn wake_one(&self) {
        while self.0.any.load(Ordering::SeqCst) {
            let waiter = {
                let mut order = lock(&self.0.order);
                let first = order.entries.pop_first();
                self.0.any.store(!order.entries.is_empty(), Ordering::SeqCst);
                first
            };
            if waiter.is_some_and(|(_, waiter)| waiter.wake()) {
                return;
            }
        }
    }

    /// Adds a waiter: to the front if it was woken in vain (`is_futile`), otherwise to the back.
    fn add(&self, waiter: Arc<dyn Waiter>, is_futile: bool) -> Entry {
        let mut order = lock(&self.0.order);
        let end = if is_futile { &mut order.front } else { &mut order.back };
        *end += if is_futile { -1 } else { 1 };
        let number = *end;
        order.entries.insert(number, waiter);
        self.0.any.store(true, Ordering::SeqCst);
        Entry { queue: self.0.clone(), number }
    }
}

impl Queued {
    /// Places the waiter in `queue`, and in `notice` if given. A waiter that is in `queue` already keeps its
    /// position. One that its former queue (not `notice`) has woken, evidently in vain, goes to the front of
    /// `queue`, any other to the back.
    pub fn enqueue(&mut self, queue: &Waiters, notice: Option<&Waiters>, waiter: &Arc<dyn Waiter>) {
        let was_woken = self.position.as_ref().is_some_and(Entry::was_woken);
        let stays = self
            .position
            .as_ref()
            .is_some_and(|position| !was_woken && Arc::ptr_eq(&position.queue, &queue.0));
        if !stays {
            self.position = Some(queue.add(waiter.clone(), was_woken));
        }
        self.notice = notice.map(|notice| notice.add(waiter.clone(), false));
    }
}

impl Entry {
    fn was_woken(&self) -> bool {
        !lock(&self.queue.order).entries.contains_key(&self.number)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut order = lock(&self.queue.order);
        let waiter = order.entries.remove(&self.number);
        self.queue.any.store(!order.entries.is_empty(), Ordering::SeqCst);
        drop(order);
        // This may be the last reference to the waiter, whose destructor may return memory to other waiters.
        drop(waiter);
    }
}
