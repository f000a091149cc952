//! Notify flag of a line, and the server's doorbell.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use tombolo_mem::{OutOfBounds, Word, WordMut};
use tombolo_shm::link::{DOORBELL_OFFSET, DoorbellKind, Ends, NOTIFY_FLAG_OFFSET};
use tombolo_sys::futex::{self, Woken};

/// The flag that tells the server whether this side sleeps. Unlike a
/// [`Sleeper`](tombolo_shm::doorbell::Sleeper), this type does not sleep: any thread may set the flag while
/// another one sleeps.
#[derive(Debug)]
pub(super) struct NotifyFlag {
    notify_flag: Option<WordMut>,
    /// Value of the flag: odd while armed, different each time. The server rings once for each value.
    number: u32,
    is_armed: bool,
}

impl NotifyFlag {
    pub(super) fn new(ends: &Ends) -> Result<Self, OutOfBounds> {
        let notify_flag = match ends.doorbell {
            DoorbellKind::Futex => {
                Some(WordMut::new(ends.own.region(), ends.own.place(NOTIFY_FLAG_OFFSET, 4)?)?)
            }
            DoorbellKind::Silent => None,
        };
        Ok(Self { notify_flag, number: 0, is_armed: false })
    }

    pub(super) fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Makes the server ring when it answers. The caller must check for earlier answers afterwards.
    pub(super) fn arm(&mut self) {
        self.is_armed = true;
        let Some(notify_flag) = &self.notify_flag else { return };
        self.number = self.number.wrapping_add(1) | 1;
        notify_flag.store(self.number, Release);
        fence(SeqCst);
    }

    /// Cancels the request to ring.
    pub(super) fn disarm(&mut self) {
        self.is_armed = false;
        if let Some(notify_flag) = &self.notify_flag {
            self.number = self.number.wrapping_add(1);
            notify_flag.store(self.number, Relaxed);
        }
    }
}

/// Result of a sleep on the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// The doorbell may have rung.
    Rung,
    /// The time-out expired.
    TimedOut,
    /// Sleeping is impossible: the memory's file was truncated, or the system forbids it.
    Unavailable,
}

/// The server's doorbell, for one thread to sleep on.
#[derive(Debug)]
pub(super) struct Doorbell(Word);

impl Doorbell {
    /// Returns the doorbell, or `None` if the link has none.
    pub(super) fn new(ends: &Ends) -> Result<Option<Self>, OutOfBounds> {
        let word = Word::new(ends.peer.region(), ends.peer.place(DOORBELL_OFFSET, 4)?)?;
        Ok((ends.doorbell == DoorbellKind::Futex).then_some(Self(word)))
    }

    /// Returns the number of rings. The caller reads it before its last check of the message ring.
    pub(super) fn rung(&self) -> u32 {
        self.0.load(Acquire)
    }

    /// Sleeps until the number of rings differs from `rung`, a thread nudges, or the time-out expires.
    pub(super) fn wait(&self, rung: u32, timeout: Duration) -> Waited {
        match futex::wait(&self.0, rung, Some(timeout)) {
            Ok(Woken::Maybe | Woken::Changed) => Waited::Rung,
            Ok(Woken::TimedOut) => Waited::TimedOut,
            Err(_) => Waited::Unavailable,
        }
    }

    /// Wakes the thread that sleeps on it, if any.
    pub(super) fn nudge(&self) {
        // The wake-up fails only where no thread can sleep.
        let _ = futex::wake(&self.0);
    }
}
