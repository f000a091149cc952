//! Counters of a line.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::counter::Counter;

/// Counters since the start, and gauges. They are read while they change, so they need not agree exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests sent.
    pub calls: u64,
    /// Answers received.
    pub answers: u64,
    /// Answers received by the thread of their own caller.
    pub own: u64,
    /// Ids in use (a gauge).
    pub in_flight: u64,
    /// Calls queued for an id (a gauge).
    pub queued: u64,
    /// Calls that had to wait for an id.
    pub queued_total: u64,
    /// Times that the sleeping server was woken.
    pub rings: u64,
    /// Times that the receiver thread slept.
    pub sleeps: u64,
    /// Times that a blocked caller, instead of the receiver thread, slept on the doorbell.
    pub parks: u64,
    /// Buffers in the memory of another domain that the server got by reference instead of a copy.
    pub named: u64,
}

/// The live counters behind [`Counts`].
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    /// Written under the lock of the ring's producer.
    pub(super) calls: Counter,
    pub(super) intake: Intake,
    pub(super) queued_total: AtomicU64,
    /// Written by the receiver thread.
    pub(super) sleeps: Counter,
}

/// Counters written only by the leader.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Intake {
    pub(super) answers: Counter,
    pub(super) own: Counter,
    pub(super) parks: Counter,
}

impl Counters {
    pub(super) fn answers(&self) -> u64 {
        self.intake.answers.get()
    }

    /// Returns the approximate number of unanswered requests.
    pub(super) fn in_flight(&self) -> u64 {
        let answers = self.answers();
        self.calls.get().saturating_sub(answers)
    }

    pub(super) fn read(&self, rings: u64) -> Counts {
        Counts {
            answers: self.intake.answers.get(),
            own: self.intake.own.get(),
            parks: self.intake.parks.get(),
            calls: self.calls.get(),
            queued_total: self.queued_total.load(Ordering::Relaxed),
            rings,
            sleeps: self.sleeps.get(),
            ..Counts::default()
        }
    }
}
