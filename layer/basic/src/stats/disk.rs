//! Statistics of a disk. The disk's operations are counted as the most similar ones of a file: `read`,
//! `write`, `flush`; `allocate` for discards and zeroes, `seek` for extents; resizing is not counted.
//! Operations in progress are counted too.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use tombolo_core::block::BlockDevice;
use tombolo_core::fs::Op;
use tombolo_core::{Answer, Ctx, Stability};
use tombolo_mem::{Sink, Source};

use super::{Counters, Timing};

/// Wraps `inner`, counting its operations in `counters`, which must be from [`Counters::of_disk`], as the
/// counters of exports do not report the number of operations in progress.
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

    fn call<T: Send + 'static>(&self, op: Op, call: impl FnOnce(&dyn BlockDevice) -> Answer<T>) -> Answer<T> {
        self.around(op, 0, || call(&*self.inner))
    }
}

impl BlockDevice for CountedDisk {
    tombolo_core::forward_disk!(to self.inner; profile geometry submit resize);
    tombolo_core::forward_disk!(through self.call; flush discard write_zeroes extents);

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.around(Op::Read, into.len() as u64, || self.inner.read(cx, offset, into))
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.around(Op::Write, from.len() as u64, || self.inner.write(cx, offset, stability, from))
    }
}
