//! What is known of the request of one buffer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use super::reply::Answer;
use super::spans::Spans;
use tombolo_host_runtime::lock;

/// What is known of the request of one buffer. Two cache lines to itself: whoever waits looks at it all the time.
///
/// The state is changed under the lock of the desk, but for two cases in which nobody else can: by who has taken the id and
/// not sent yet, and by who receives the answer to its own call while nobody is registered for it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Entry {
    /// The id above, the phase below.
    state: AtomicU64,
    desk: Mutex<Desk>,
}

/// What one who waits and one who receives leave for each other.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Whom to wake, in phase `Awaited`.
    pub(super) waker: Option<Waker>,
    /// Since when, where callers learn how long to look.
    pub(super) since: Option<Instant>,
    /// In phase `Answered`.
    pub(super) answer: Option<Answer>,
    /// Bulk memory that a call nobody wants any more may still be using.
    pub(super) spans: Spans,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Phase {
    /// The id is not out, or its answer was taken.
    Free = 0,
    /// Sent, and nobody is to be woken.
    Sent = 1,
    /// Sent, and somebody is to be woken.
    Awaited = 2,
    /// The answer is on the desk, or put aside.
    Answered = 3,
    /// Sent, and nobody wants the answer.
    Abandoned = 4,
}

impl Phase {
    #[inline]
    fn of(state: u64) -> Self {
        match state as u32 {
            1 => Self::Sent,
            2 => Self::Awaited,
            3 => Self::Answered,
            4 => Self::Abandoned,
            _ => Self::Free,
        }
    }
}

impl Entry {
    /// Of the buffer of that index.
    pub(super) fn new(index: u32) -> Self {
        let entry = Self { state: AtomicU64::new(0), desk: Mutex::default() };
        entry.clear(index);
        entry
    }

    /// No id of this buffer has anything to do with it: none was issued, or the answer of the last one was put aside.
    pub(super) fn clear(&self, id: u32) {
        // The id of another buffer fits none.
        self.set(id ^ 1, Phase::Free);
    }

    #[inline]
    pub(super) fn set(&self, id: u32, phase: Phase) {
        self.state.store(u64::from(id) << 32 | phase as u64, Ordering::Release);
    }

    /// The id that was issued last, and its phase.
    #[inline]
    pub(super) fn look(&self) -> (u32, Phase) {
        let state = self.state.load(Ordering::Acquire);
        ((state >> 32) as u32, Phase::of(state))
    }

    /// How far the request of that id is, which was issued. One that has another id now is answered.
    #[inline]
    pub(super) fn phase(&self, id: u32) -> Phase {
        match self.look() {
            (issued, phase) if issued == id => phase,
            _ => Phase::Answered,
        }
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.desk)
    }
}
