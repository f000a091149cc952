//! Queues of waiters: for memory, or to begin a call.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;

/// Waits for memory, or to begin a call.
pub trait Waiter: Send + Sync {
    /// Tells it that there may be some. False if it is not there any more, so that another can be told.
    fn wake(&self) -> bool;
}

/// A queue of waiters, first come first served.
#[derive(Default)]
pub struct Waiters(Arc<Queue>);

#[derive(Default)]
struct Queue {
    any: AtomicBool,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    /// By number; the first is woken first.
    entries: BTreeMap<i64, Arc<dyn Waiter>>,
    /// The numbers given out last at either end: none is given out twice.
    front: i64,
    back: i64,
}

/// Where a waiter is queued. It leaves the queues when this is dropped: an entry keeps the waiter, and so its
/// descriptor.
#[derive(Default)]
pub struct Queued {
    position: Option<Entry>,
    /// A queue that is told when the waiter may be in the wrong one.
    notice: Option<Entry>,
}

struct Entry {
    queue: Arc<Queue>,
    number: i64,
}

impl Waiters {
    /// Wakes the first that is still there.
    pub fn wake_one(&self) {
        while self.0.any.load(Ordering::SeqCst) {
            let waiter = {
                let mut line = lock(&self.0.line);
                let first = line.entries.pop_first();
                self.0.any.store(!line.entries.is_empty(), Ordering::SeqCst);
                first
            };
            if waiter.is_some_and(|(_, waiter)| waiter.wake()) {
                return;
            }
        }
    }

    /// Adds one, as the first if it was woken in vain.
    fn add(&self, waiter: Arc<dyn Waiter>, in_vain: bool) -> Entry {
        let mut line = lock(&self.0.line);
        let end = if in_vain { &mut line.front } else { &mut line.back };
        *end += if in_vain { -1 } else { 1 };
        let number = *end;
        line.entries.insert(number, waiter);
        self.0.any.store(true, Ordering::SeqCst);
        Entry { queue: self.0.clone(), number }
    }
}

impl Queued {
    /// Has the waiter in `queue`, and in `notice` if there is one. It keeps its position where it is there
    /// already; it is the first if it was woken, for that was in vain.
    pub fn stand(&mut self, queue: &Waiters, notice: Option<&Waiters>, waiter: &Arc<dyn Waiter>) {
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
        !lock(&self.queue.line).entries.contains_key(&self.number)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut line = lock(&self.queue.line);
        let waiter = line.entries.remove(&self.number);
        self.queue.any.store(!line.entries.is_empty(), Ordering::SeqCst);
        drop(line);
        // Maybe the last that knows of it: then it gives back what others wait for.
        drop(waiter);
    }
}
