//! Delay of answers by a fixed time, to exercise the treatment of answers that are not immediate.
//!
//! The operation begins after the delay; until then its buffers are in use and nothing has happened. If an
//! interrupt is raised during the delay, the operation is not performed and answers `Interrupted`. `forget`
//! and `release`, which have no answer, are not delayed.

pub mod disk;
mod timer;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tombolo_core::fs::{
    Client, Cookie, DirPage, Export, File, FileSystem, Locks, PersistentHandles, Ranges, ReadDone, Write,
    Written, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::{Sink, Source};

use crate::arguments::{Keep, Lend};
use timer::Timer;

/// An export with delayed answers.
pub struct Delay {
    inner: Arc<dyn Export>,
    timer: Arc<Timer>,
    time: Duration,
}

/// Wraps `inner`, delaying answers by `time`. Starts a timer thread; fails if it cannot be started.
pub fn over(inner: Arc<dyn Export>, time: Duration) -> io::Result<Delay> {
    Ok(Delay { inner, timer: Timer::start()?, time })
}

impl Export for Delay {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let inner = self.inner.attach(client)?;
        Ok(Arc::new(Delayed { inner, timer: self.timer.clone(), time: self.time }))
    }
}

struct Delayed {
    inner: Arc<dyn FileSystem>,
    timer: Arc<Timer>,
    time: Duration,
}

impl Delayed {
    fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let inner = self.inner.clone();
        after(self.timer.sleep(self.time), cx, move |cx| call(&*inner, cx))
    }
}

/// Performs `call` after `sleep`, unless the request is interrupted before.
fn after<T: Send + 'static>(
    sleep: impl Future<Output = ()> + Send + 'static,
    cx: &Ctx,
    call: impl FnOnce(&Ctx) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let cx = cx.clone();
    Answer::later(async move {
        let (mut sleep, mut raised) = (pin!(sleep), pin!(cx.interrupt.raised()));
        let interrupted = poll_fn(|context| {
            if raised.as_mut().poll(context).is_ready() {
                return Poll::Ready(true);
            }
            sleep.as_mut().poll(context).map(|()| false)
        });
        if interrupted.await {
            return Err(Error::Interrupted);
        }
        call(&cx).resolve().await
    })
}

impl FileSystem for Delayed {
    tombolo_core::forward!(later self.later;
        lookup getattr setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir rename open flush fsync
        statfs syncfs
    );
    tombolo_core::forward!(offer self.inner; xattrs locks persistent_handles ranges);

    // Notices of changes and versions are not delayed: a request for notices is never answered immediately,
    // and stays pending until there is a notice.
    tombolo_core::forward!(to self.inner; profile forget release is_prompt changes versions);

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.later(cx, move |fs, cx| fs.read(cx, file, offset, into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let how = *how;
        self.later(cx, move |fs, cx| fs.write(cx, file, &how, from))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.later(cx, move |fs, cx| fs.readdir(cx, file, cookie, page))
    }
}

impl Xattrs for Delayed {
    tombolo_core::forward!(later self.later; get set list remove);
}

impl Locks for Delayed {
    tombolo_core::forward!(later self.later; test lock unlock);
}

impl PersistentHandles for Delayed {
    tombolo_core::forward!(to self.inner; volume record recall);
    tombolo_core::forward!(later self.later; handle_of resolve parent node_by_number);
}

impl Ranges for Delayed {
    tombolo_core::forward!(later self.later; allocate seek copy);
}
