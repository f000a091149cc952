//! Delay of a disk's answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::block::{BlockDevice, Resize, SizeWatch};
use tombolo_core::fs::within;
use tombolo_core::{Answer, Ctx};

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
            // The front end's `submit` was during the delay, before this request reached `inner`.
            inner.submit();
            answer
        })
    }
}

impl BlockDevice for DelayedDisk {
    tombolo_core::forward_disk!(to self.inner; profile geometry);
    tombolo_core::forward_disk!(later self.later; read write flush discard write_zeroes extents);

    fn resize(&self) -> Option<&dyn Resize> {
        self.inner.resize().map(|_| self as &dyn Resize)
    }
}

impl Resize for DelayedDisk {
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()> {
        self.later(cx, move |disk, cx| within(disk.resize(), |resize| resize.set_size(cx, size_bytes)))
    }

    fn follow_size(&self, cx: &Ctx) -> Answer<u64> {
        self.later(cx, move |disk, cx| within(disk.resize(), |resize| resize.follow_size(cx)))
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        if let Some(resize) = self.inner.resize() {
            resize.watch(watch);
        }
    }
}
