//! Delay of a disk's answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::block::{BlockDevice, Extents, Geometry, Profile, Range, Resize, SizeWatch, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Stability};
use tombolo_mem::{Sink, Source};

use super::{Timer, after};

/// Wraps `inner`, delaying each answer by `time`. Starts a timer thread; fails if it cannot be started.
pub fn over(inner: Arc<dyn BlockDevice>, time: Duration) -> io::Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(DelayedDisk { inner, timer: Timer::start()?, time }))
}

struct DelayedDisk {
    inner: Arc<dyn BlockDevice>,
    timer: Arc<Timer>,
    time: Duration,
}

impl DelayedDisk {
    fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&dyn BlockDevice, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let inner = self.inner.clone();
        after(self.timer.sleep(self.time), cx, move |cx| {
            let answer = call(&*inner, cx);
            // The front end's own `submit` preceded this request.
            inner.submit();
            answer
        })
    }
}

impl BlockDevice for DelayedDisk {
    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.later(cx, move |disk, cx| disk.read(cx, offset, into))
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.later(cx, move |disk, cx| disk.write(cx, offset, stability, from))
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        self.later(cx, |disk, cx| disk.flush(cx))
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.later(cx, move |disk, cx| disk.discard(cx, range))
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.later(cx, move |disk, cx| disk.write_zeroes(cx, range, how))
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.later(cx, move |disk, cx| disk.extents(cx, range, count_max))
    }

    fn resize(&self) -> Option<&dyn Resize> {
        self.inner.resize().map(|_| self as &dyn Resize)
    }
}

impl Resize for DelayedDisk {
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()> {
        self.later(cx, move |disk, cx| match disk.resize() {
            Some(resize) => resize.set_size(cx, size_bytes),
            None => Answer::err(Error::NotSupported),
        })
    }

    fn follow_size(&self, cx: &Ctx) -> Answer<u64> {
        self.later(cx, move |disk, cx| match disk.resize() {
            Some(resize) => resize.follow_size(cx),
            None => Answer::err(Error::NotSupported),
        })
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        if let Some(resize) = self.inner.resize() {
            resize.watch(watch);
        }
    }
}
