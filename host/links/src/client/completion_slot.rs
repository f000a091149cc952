//! Completion slot: the state of the request that occupies one request buffer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use tombolo_core::lock;
use tombolo_sys::moment::Moment;

use super::message::{RawReply, Spans};

/// State of the request that occupies one request buffer, on cache lines of its own, because a waiting caller
/// polls it.
///
/// `state` is changed under the lock of `completion`, except where no other thread can change it: by the
/// thread that is about to send a request with this id, and by the leader (see `intake`) that receives the
/// answer to its own call.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CompletionSlot {
    /// Id in the upper 32 bits, [`Phase`] in the lower.
    state: AtomicU64,
    completion: Mutex<Completion>,
}

/// Data exchanged between caller and leader.
#[derive(Debug, Default)]
pub(super) struct Completion {
    /// Waker for the answer, in phase `Awaited`.
    pub(super) waker: Option<Waker>,
    /// Time at which the waker was registered, in mode `Adaptive` only.
    pub(super) since: Option<Moment>,
    /// Answer, in phase `Answered`.
    pub(super) answer: Option<RawReply>,
    /// Bulk memory of a dropped call, possibly still in use by the server.
    pub(super) spans: Spans,
}

/// Phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Phase {
    /// The id is unused, or its answer was taken.
    Free = 0,
    /// Sent, without a registered waker.
    Sent = 1,
    /// Sent, with a registered waker.
    Awaited = 2,
    /// The answer is in the slot, or parked.
    Answered = 3,
    /// Sent, but the call was dropped.
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
    /// Returns a free slot for the buffer with this index.
    pub(super) fn new(index: u32) -> Self {
        let slot = Self { state: AtomicU64::new(0), completion: Mutex::default() };
        slot.clear(index);
        slot
    }

    /// Clears the slot, so that it matches no id: before the first id of its buffer is issued, and after its
    /// reply was parked.
    pub(super) fn clear(&self, id: u32) {
        // `id ^ 1` belongs to another buffer, so no caller compares it with this slot.
        self.set(id ^ 1, Phase::Free);
    }

    #[inline]
    pub(super) fn set(&self, id: u32, phase: Phase) {
        self.state.store(u64::from(id) << 32 | phase as u64, Ordering::Release);
    }

    /// Returns the id stored last, and its phase. The id of a cleared slot is that of another buffer.
    #[inline]
    pub(super) fn load(&self) -> (u32, Phase) {
        let state = self.state.load(Ordering::Acquire);
        ((state >> 32) as u32, Phase::of(state))
    }

    /// Returns the phase of an issued id. If the slot no longer has the id, its reply was parked: answered.
    #[inline]
    pub(super) fn phase(&self, id: u32) -> Phase {
        match self.load() {
            (issued, phase) if issued == id => phase,
            _ => Phase::Answered,
        }
    }

    pub(super) fn completion(&self) -> MutexGuard<'_, Completion> {
        lock(&self.completion)
    }
}
