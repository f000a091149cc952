//! What the threads that wait for answers share: the leader's end of the ring, and where leader and receiver
//! thread are parked.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tombolo_mem::OutOfBounds;
use tombolo_shm::doorbell::PollBackoff;
use tombolo_shm::link::Ends;
use tombolo_shm::ring::Consumer;

use super::doorbell::NotifyFlag;
use tombolo_host_runtime::lock;
use tombolo_host_runtime::polling::PollWindow;

/// What the leader has.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) consumer: Consumer,
    pub(super) notify_flag: NotifyFlag,
    /// Whether the receiver thread sleeps on the doorbell, or looks now and then if there is none, or is
    /// about to. It is parked while no call is registered.
    pub(super) has_receiver: bool,
    /// How long callers look, as they have learnt.
    pub(super) window: PollWindow,
    /// How long they leave the next slot alone first.
    pub(super) backoff: PollBackoff,
}

impl Intake {
    pub(super) fn new(ends: &Ends) -> Result<Self, OutOfBounds> {
        let layout = ends.layout;
        let consumer = Consumer::at(&ends.peer, layout.ring_offset(), layout.slots(), ends.epoch)?;
        Ok(Self {
            consumer,
            notify_flag: NotifyFlag::new(ends)?,
            has_receiver: false,
            window: PollWindow::default(),
            backoff: PollBackoff::default(),
        })
    }
}

/// A number that all threads change, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Waiting(pub(super) AtomicUsize);

impl Waiting {
    /// One more is registered. What this thread does afterwards comes after it for all threads.
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

/// Whether the leader is parked on the doorbell, and whether it is to stop.
#[derive(Debug, Default)]
pub(super) struct LeaderPark {
    is_parked: AtomicBool,
    is_unpark_requested: AtomicBool,
    /// The thread that is parked, or was last.
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

    /// Whether a thread is parked, as far as that is seen without a fence.
    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    /// The parked thread is to give the lead up.
    pub(super) fn request_unpark(&self) {
        self.is_unpark_requested.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_unpark_requested(&self) -> bool {
        self.is_unpark_requested.load(Ordering::SeqCst)
    }

    /// Whether another thread than this one is parked.
    pub(super) fn is_other_thread(&self) -> bool {
        self.is_parked.load(Ordering::SeqCst) && *lock(&self.thread) != Some(thread::current().id())
    }
}

/// Where the thread is parked when there is no doorbell and no call is registered.
#[derive(Debug, Default)]
pub(super) struct Parker {
    is_unparked: Mutex<bool>,
    unparked: Condvar,
}

impl Parker {
    /// There is something to do.
    pub(super) fn unpark(&self) {
        let mut is_unparked = lock(&self.is_unparked);
        if !*is_unparked {
            *is_unparked = true;
            self.unparked.notify_one();
        }
    }

    /// Until there is something to do, or the time is up. Whether there is.
    pub(super) fn park(&self, at_most: Duration) -> bool {
        let is_unparked = lock(&self.is_unparked);
        let outcome = self.unparked.wait_timeout_while(is_unparked, at_most, |is_unparked| !*is_unparked);
        let mut is_unparked = match outcome {
            Ok((is_unparked, _)) => is_unparked,
            Err(poisoned) => poisoned.into_inner().0,
        };
        std::mem::take(&mut *is_unparked)
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
