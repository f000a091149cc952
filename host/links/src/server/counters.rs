//! Counters of a server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::lock;

use crate::counter::Counter;

/// Counters since the start, and gauges. They are read while they change, so they need not agree exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Links whose memory is not yet freed (a gauge).
    pub links: u64,
    /// Links made since the start.
    pub links_total: u64,
    /// Links cut because of a protocol violation or a failure, on either side.
    pub cut: u64,
    /// Requests received.
    pub requests: u64,
    /// Requests answered.
    pub answers: u64,
    /// Requests not answered yet when [`Session::serve`](super::Session::serve) returned.
    pub later: u64,
    /// Unanswered requests on current links (a gauge).
    pub in_flight: u64,
    /// Times that a sleeping peer was woken.
    pub rings: u64,
    /// Times that a link's thread slept.
    pub sleeps: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.answers += other.answers;
        self.later += other.later;
        self.in_flight += other.in_flight;
        self.rings += other.rings;
        self.sleeps += other.sleeps;
    }
}

/// Counters of one link.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) intake: Intake,
    /// Number of answers sent; written under the lock of the link's producer.
    pub(super) answers: CacheAligned<Counter>,
}

/// Counters written only by the link's thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Intake {
    pub(super) requests: Counter,
    pub(super) later: Counter,
    /// Copy of the sleeper's count.
    pub(super) sleeps: AtomicU64,
}

/// A value on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CacheAligned<T>(T);

impl<T> std::ops::Deref for CacheAligned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl Counters {
    pub(super) fn read(&self, rings: u64) -> Counts {
        let (answers, requests) = (self.answers.get(), self.intake.requests.get());
        Counts {
            requests,
            answers,
            later: self.intake.later.get(),
            in_flight: requests.saturating_sub(answers),
            rings,
            sleeps: self.intake.sleeps.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }
}

/// Sums of the counters of closed links, and the number of links.
#[derive(Debug, Default)]
pub(super) struct Totals(Mutex<Counts>);

impl Totals {
    pub(super) fn opened(&self) {
        let mut counts = lock(&self.0);
        counts.links += 1;
        counts.links_total += 1;
    }

    pub(super) fn cut(&self) {
        lock(&self.0).cut += 1;
    }

    /// Adds the counters of a closed link. Its unanswered requests will never be answered.
    pub(super) fn closed(&self, counts: &Counts) {
        let mut sum = lock(&self.0);
        sum.links -= 1;
        sum.add(&Counts { in_flight: 0, ..*counts });
    }

    /// Returns the sum of these totals and `live`, the counters of the open links.
    pub(super) fn sum(&self, live: impl Iterator<Item = Counts>) -> Counts {
        let mut sum = *lock(&self.0);
        live.for_each(|counts| sum.add(&counts));
        sum
    }
}
