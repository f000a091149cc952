//! A thread that serves requests from the device.

use super::device::{DevExchange, Device};
use super::thread_pool::ThreadPool;
use crate::session::Slot;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tombolo_host_runtime::polling::PollWindow;
use tombolo_mem::Buffer;
use tombolo_sys::moment::Moment;
use tombolo_sys::{Errno, fuse_dev};

/// Number of changes from one caller to another, without a pause, after which one more thread is called.
/// Requests of a single caller are no backlog: the caller waits for each reply before its next request, and
/// RELEASE and FORGET, for which it does not wait, are not urgent.
const BACKLOG: u32 = 4;

/// Shortest wait that is a pause: a request received within this time counts as having been queued already.
const PAUSE: Duration = Duration::from_micros(3);

/// Serves one descriptor until the mount has ended.
pub(super) fn serve(pool: &ThreadPool, device: &Arc<Device>) {
    let mut worker = Worker { pool, device, window: PollWindow::default(), waits: true };
    // Request memory is allocated on demand: most threads of a quiet mount never need any.
    let mut parts = None;
    while pool.enter() {
        let taken = parts.take().unwrap_or_else(|| worker.fresh());
        parts = worker.receive_while_needed(taken);
        if parts.is_none() {
            return pool.end();
        }
    }
}

/// Callers of the requests since the last pause, or since this thread last called another.
#[derive(Debug, Default)]
struct Callers {
    last: u32,
    changes: u32,
}

impl Callers {
    /// Counts a request; returns the number of changes of the caller so far. Caller 0 is unknown.
    fn changed(&mut self, caller: u32) -> u32 {
        if caller != 0 && caller != self.last {
            self.changes += u32::from(self.last != 0);
            self.last = caller;
        }
        self.changes
    }
}

/// Memory of a request, and the exchange that receives the request and sends its reply.
type Parts = (Box<Slot>, DevExchange);

struct Worker<'c> {
    pool: &'c ThreadPool,
    device: &'c Arc<Device>,
    window: PollWindow,
    /// `true` if reads of the descriptor block, as initially.
    waits: bool,
}

impl Worker<'_> {
    fn fresh(&self) -> Parts {
        let (slot, buffer): (_, Buffer) = self.pool.buffers.take();
        (slot, DevExchange::new(self.device.clone(), self.pool.buffers.clone(), buffer))
    }

    /// Serves requests while this thread is needed. Returns `None` once the mount has ended.
    fn receive_while_needed(&mut self, (mut slot, mut exchange): Parts) -> Option<Parts> {
        let mut callers = Callers::default();
        loop {
            let mut outcome = match self.sleeps_at_once() {
                true => Err(Errno::AGAIN),
                false => self.poll(&mut exchange, &mut slot),
            };
            if outcome == Err(Errno::AGAIN) {
                if self.pool.leave() {
                    return Some((slot, exchange));
                }
                let waited;
                (outcome, waited) = self.wait(&mut exchange, &mut slot);
                if waited > PAUSE {
                    callers = Callers::default();
                }
            }
            match outcome {
                Ok(()) => {}
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                // The file system was unmounted, or the connection aborted (reported thanks to ABORT_ERROR).
                Err(Errno::NODEV | Errno::CONNABORTED) => return None,
                Err(error) => {
                    tracing::error!(%error, "reading the FUSE device failed; the mount ends");
                    return None;
                }
            }
            let backlog = callers.changed(exchange.caller()) >= BACKLOG;
            if backlog || (exchange.is_large() && self.pool.is_alone()) {
                callers = Callers::default();
                self.pool.call();
            }
            (slot, exchange) = self.handle(slot, exchange);
        }
    }

    fn handle(&self, slot: Box<Slot>, exchange: DevExchange) -> Parts {
        match catch_unwind(AssertUnwindSafe(|| self.pool.session.handle(slot, exchange))) {
            Ok(Some(finished)) => finished,
            Ok(None) => self.fresh(),
            Err(_) => {
                tracing::error!("a request panicked and was answered with EIO");
                self.fresh()
            }
        }
    }

    /// Returns `true` if this thread blocks without polling first: no poll window is open, and no other
    /// thread receives, so this one may not leave.
    fn sleeps_at_once(&self) -> bool {
        !self.window.is_open() && self.pool.is_alone()
    }

    /// Polls for a request; EAGAIN if there is none.
    fn poll(&mut self, exchange: &mut DevExchange, slot: &mut Slot) -> Result<(), Errno> {
        self.set_waiting(false)?;
        exchange.receive(slot)
    }

    /// Waits for a request: polls while the poll window is open, then blocks. Returns the time waited too.
    fn wait(&mut self, exchange: &mut DevExchange, slot: &mut Slot) -> (Result<(), Errno>, Duration) {
        let begun = Moment::now();
        let mut blocked_at = begun;
        if self.window.is_open() {
            while self.window.is_open() && self.window.pause(begun) {
                match exchange.receive(slot) {
                    Err(Errno::AGAIN) => {}
                    other => return (other, begun.elapsed()),
                }
            }
            blocked_at = Moment::now();
        }
        let outcome = self.set_waiting(true).and_then(|()| exchange.receive(slot));
        let now = Moment::now();
        self.window.slept(now.since(blocked_at));
        (outcome, now.since(begun))
    }

    fn set_waiting(&mut self, waits: bool) -> Result<(), Errno> {
        if self.waits != waits {
            fuse_dev::set_waiting(self.device.fd(), waits)?;
            self.waits = waits;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_is_no_backlog_and_two_are() {
        let mut callers = Callers::default();
        assert!((0..100).all(|round| callers.changed(if round % 3 == 0 { 0 } else { 7 }) == 0));
        assert_eq!((0..4).map(|round| callers.changed(8 + round % 2)).max(), Some(BACKLOG));
    }
}
