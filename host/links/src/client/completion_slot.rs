//! The state of the request of one buffer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use super::message::{RawReply, Spans};
use tombolo_host_runtime::lock;

/// The state of the request of one buffer. Two cache lines to itself: a waiting caller looks at it all the
/// time.
///
/// The state is changed under the lock of the completion, but for two cases in which no other thread can: by
/// the caller that has taken the id and not sent yet, and by the leader that receives the answer to its own
/// call while no waker is registered for it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CompletionSlot {
    /// The id above, the phase below.
    state: AtomicU64,
    completion: Mutex<Completion>,
}

/// What caller and leader leave for each other.
#[derive(Debug, Default)]
pub(super) struct Completion {
    /// Woken by the answer, in phase `Awaited`.
    pub(super) waker: Option<Waker>,
    /// Since when, where callers learn how long to look.
    pub(super) since: Option<Instant>,
    /// In phase `Answered`.
    pub(super) answer: Option<RawReply>,
    /// Bulk memory of a dropped call, which the server may still be using.
    pub(super) spans: Spans,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Phase {
    /// The id is not out, or its answer was taken.
    Free = 0,
    /// Sent, and no waker is registered.
    Sent = 1,
    /// Sent, and a waker is registered.
    Awaited = 2,
    /// The answer is in the slot, or parked.
    Answered = 3,
    /// Sent, and the call was dropped.
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

impl CompletionSlot {
    /// Of the buffer of that index.
    pub(super) fn new(index: u32) -> Self {
        let slot = Self { state: AtomicU64::new(0), completion: Mutex::default() };
        slot.clear(index);
        slot
    }

    /// No id of this buffer has anything to do with it: none was issued, or the reply of the last one was
    /// parked.
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

    pub(super) fn completion(&self) -> MutexGuard<'_, Completion> {
        lock(&self.completion)
    }
}
