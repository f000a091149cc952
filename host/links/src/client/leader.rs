//! Shared state of waiting threads: the leader's consumer of the ring, and the parking of leader and receiver
//! thread. The module `intake` explains both.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tombolo_core::lock;
use tombolo_mem::OutOfBounds;
use tombolo_shm::doorbell::{PollBackoff, PollTime};
use tombolo_shm::link::Ends;
use tombolo_shm::ring::Consumer;
use tombolo_sys::futex;

use super::doorbell::NotifyFlag;
use tombolo_host_runtime::polling::PollWindow;

/// State of the leader, the thread that receives for all callers: a thread leads while it has this locked.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) consumer: Consumer,
    pub(super) notify_flag: NotifyFlag,
    /// `true` while the receiver thread sleeps on the doorbell (or polls if there is none), or is about to.
    /// Otherwise it is parked: no call is registered, or a leader is about to arm.
    pub(super) is_receiving: bool,
    /// Adaptive polling time of callers.
    pub(super) window: PollWindow,
    /// Adaptive delay before callers poll the next slot.
    pub(super) backoff: PollBackoff,
}

impl Intake {
    pub(super) fn new(ends: &Ends) -> Result<Self, OutOfBounds> {
        let layout = ends.layout;
        let consumer = Consumer::at(&ends.peer, layout.ring_offset(), layout.slots(), ends.epoch)?;
        Ok(Self {
            consumer,
            notify_flag: NotifyFlag::new(ends)?,
            is_receiving: false,
            window: PollWindow::new(PollTime::of(ends)),
            backoff: PollBackoff::default(),
        })
    }
}

/// Number of calls with a registered waker, changed by all threads, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Waiting(pub(super) AtomicUsize);

impl Waiting {
    /// Counts a registration. The increment is sequentially consistent, and so ordered before this thread's
    /// later operations.
    #[inline]
    pub(super) fn enter(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// State of a leader that sleeps on the doorbell, and the request by other threads that it release the lead.
#[derive(Debug, Default)]
pub(super) struct LeaderPark {
    is_parked: AtomicBool,
    is_unpark_requested: AtomicBool,
    /// Thread that is parked, or was parked last.
    thread: Mutex<Option<ThreadId>>,
}

impl LeaderPark {
    pub(super) fn begin(&self) {
        *lock(&self.thread) = Some(thread::current().id());
        self.is_unpark_requested.store(false, Ordering::Relaxed);
        self.is_parked.store(true, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.is_parked.store(false, Ordering::SeqCst);
    }

    /// Returns `true` if a leader is parked. Without a fence this may be out of date: callers repeat it.
    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    /// Asks the parked thread to release the lead.
    pub(super) fn request_unpark(&self) {
        self.is_unpark_requested.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_unpark_requested(&self) -> bool {
        self.is_unpark_requested.load(Ordering::SeqCst)
    }

    /// Returns `true` if a thread other than this one is parked.
    pub(super) fn is_other_thread(&self) -> bool {
        self.is_parked.load(Ordering::SeqCst) && *lock(&self.thread) != Some(thread::current().id())
    }
}

/// Parking place of one thread, such as the receiver thread while no call is registered. The word is 1 once
/// the thread was woken. A condition variable would read the clock several times for each park.
#[derive(Debug, Default)]
pub(super) struct Parker(AtomicU32);

impl Parker {
    /// Wakes the parked thread.
    pub(super) fn unpark(&self) {
        if self.0.swap(1, Ordering::SeqCst) == 0 {
            futex::wake_here(&self.0);
        }
    }

    /// Parks until woken, at most for this time; a signal ends it, too. Returns `true` if woken.
    pub(super) fn park(&self, at_most: Duration) -> bool {
        if self.take() {
            return true;
        }
        // The wait fails if the word has changed, or the time is over.
        let _ = futex::wait_here(&self.0, 0, Some(at_most));
        self.take()
    }

    fn take(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parked_leader_need_not_unpark_itself() {
        let park = LeaderPark::default();
        assert!(!park.is_other_thread());
        park.begin();
        assert!(!park.is_other_thread());
        thread::scope(|scope| scope.spawn(|| assert!(park.is_other_thread())).join()).expect("seen");
        park.end();
        thread::scope(|scope| scope.spawn(|| assert!(!park.is_other_thread())).join()).expect("gone");
    }
}
