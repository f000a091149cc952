//! Statistics of a disk. The disk's operations are counted as the most similar ones of a file: `read`,
//! `write`, `flush`; `allocate` for discards and zeroes, `seek` for extents; resizing is not counted.
//! Operations in progress are counted too.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use tombolo_core::block::{BlockDevice, Extents, Range, Zeroing};
use tombolo_core::fs::Op;
use tombolo_core::{Answer, Ctx, Stability};
use tombolo_mem::{Sink, Source};

use super::{Counters, Timing};

/// Wraps `inner`, counting its operations in `counters`, which must be those [of a disk](Counters::of_disk).
pub fn over(inner: Arc<dyn BlockDevice>, counters: Arc<Counters>) -> Arc<dyn BlockDevice> {
    Arc::new(CountedDisk { inner, counters })
}

struct CountedDisk {
    inner: Arc<dyn BlockDevice>,
    counters: Arc<Counters>,
}

/// An operation in progress, which ends on drop, even unanswered.
struct InProgress<C: Deref<Target = Counters>>(C);

impl<C: Deref<Target = Counters>> Drop for InProgress<C> {
    #[inline]
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl CountedDisk {
    #[inline]
    fn around<T: Send + 'static>(&self, op: Op, bytes: u64, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let timing = Timing::begin(&self.counters, op);
        let under_way = InProgress(&*self.counters);
        match inner() {
            Answer::Done(result) => {
                timing.end(&self.counters, result.is_ok().then_some(bytes));
                Answer::Done(result)
            }
            Answer::Later(later) => {
                mem::forget(under_way);
                let under_way = InProgress(self.counters.clone());
                Answer::later(async move {
                    let result = later.await;
                    timing.end(&under_way.0, result.is_ok().then_some(bytes));
                    result
                })
            }
        }
    }
}

impl BlockDevice for CountedDisk {
    tombolo_core::forward_disk!(to self.inner; profile geometry submit resize);

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.around(Op::Read, into.len() as u64, || self.inner.read(cx, offset, into))
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.around(Op::Write, from.len() as u64, || self.inner.write(cx, offset, stability, from))
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        self.around(Op::Flush, 0, || self.inner.flush(cx))
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.around(Op::Allocate, 0, || self.inner.discard(cx, range))
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.around(Op::Allocate, 0, || self.inner.write_zeroes(cx, range, how))
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.around(Op::Seek, 0, || self.inner.extents(cx, range, count_max))
    }
}
