//! Counts every operation, and times them.
//!
//! Counts, errors and bytes are exact. Times are sampled: on a virtual machine two readings of the clock take as long as
//! a look-up that is answered from memory (about 100 ns against 300). So each thread's shard times the first
//! [`TIMED_FIRST`] calls of an operation and then every [`TIMED_EVERY`]th, which stands for that many.

mod counters;
mod histogram;
mod snapshot;

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::Export;
use tombolo_core::{Answer, Result};

use crate::around::{Around, Call, Layered, Payload};
use tombolo_core::fs::Op;

use counters::Sample;
pub use counters::{Counters, TIMED_EVERY, TIMED_FIRST};
pub use snapshot::{Operation, Snapshot};

/// The layer's behaviour; [`over`] applies it.
#[derive(Debug)]
pub struct Stats(Arc<Counters>);

/// `inner` with its operations counted in `counters`, which any number of exports and threads may share.
pub fn over(inner: Arc<dyn Export>, counters: Arc<Counters>) -> Layered<dyn Export, Stats> {
    Layered::new(inner, Arc::new(Stats::new(counters)))
}

impl Stats {
    /// Counts in `counters`.
    pub fn new(counters: Arc<Counters>) -> Self {
        Self(counters)
    }
}

impl Around for Stats {
    #[inline]
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let timing = Timing::begin(&self.0, call.op);
        match inner() {
            Answer::Done(result) => {
                timing.end(&self.0, &result);
                Answer::Done(result)
            }
            Answer::Later(later) => {
                let counters = self.0.clone();
                Answer::later(async move {
                    let result = later.await;
                    timing.end(&counters, &result);
                    result
                })
            }
        }
    }

    #[inline]
    fn unanswered(&self, op: Op, inner: impl FnOnce()) {
        let timing = Timing::begin(&self.0, op);
        inner();
        timing.end(&self.0, &Ok(()));
    }
}

/// One call under way.
struct Timing {
    op: Op,
    /// When it began, for calls that are timed, and how many calls it stands for.
    sample: Option<(Instant, Sample)>,
}

impl Timing {
    #[inline]
    fn begin(counters: &Counters, op: Op) -> Self {
        let sample = counters.count(op);
        Self { op, sample: sample.map(|sample| (Instant::now(), sample)) }
    }

    #[inline]
    fn end<T: Payload>(self, counters: &Counters, result: &Result<T>) {
        if let Some((began, sample)) = self.sample {
            counters.time(self.op, sample, began.elapsed());
        }
        match result {
            Ok(payload) => counters.transferred(self.op, payload.transferred_bytes()),
            Err(_) => counters.failed(self.op),
        }
    }
}
