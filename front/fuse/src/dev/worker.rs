//! One thread that takes requests from the device.

use super::device::{DevExchange, Device};
use super::thread_pool::ThreadPool;
use crate::session::Slot;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_host_runtime::polling::PollWindow;
use tombolo_mem::Buffer;
use tombolo_sys::{Errno, fuse_dev};

/// After so many changes of the caller without a pause in between there is work for one more thread. The
/// requests of one caller are none: each waits for the answer to the one before, and what follows a close
/// does not hurry.
const BACKLOG: u32 = 4;

/// A request that came sooner than this had been there already.
const PAUSE: Duration = Duration::from_micros(3);

/// Serves one descriptor until the mount is gone.
pub(super) fn serve(pool: &ThreadPool, device: &Arc<Device>) {
    let mut worker = Worker { pool, device, window: PollWindow::default(), waits: true };
    // Memory for a request is had when it is needed: most threads of a quiet mount never are.
    let mut parts = None;
    while pool.enter() {
        let taken = parts.take().unwrap_or_else(|| worker.fresh());
        parts = worker.receive_while_needed(taken);
        if parts.is_none() {
            return pool.end();
        }
    }
}

/// The callers of the requests since the last pause.
#[derive(Debug, Default)]
struct Callers {
    last: u32,
    changes: u32,
}

impl Callers {
    /// Counts a request of this caller; how often it was another one so far. 0 is no caller in particular.
    fn changed(&mut self, caller: u32) -> u32 {
        if caller != 0 && caller != self.last {
            self.changes += u32::from(self.last != 0);
            self.last = caller;
        }
        self.changes
    }
}

/// A slot and the exchange that goes with it.
type Parts = (Box<Slot>, DevExchange);

struct Worker<'c> {
    pool: &'c ThreadPool,
    device: &'c Arc<Device>,
    window: PollWindow,
    /// Whether a read of the descriptor waits, as it does at first.
    waits: bool,
}

impl Worker<'_> {
    fn fresh(&self) -> Parts {
        let (slot, buffer): (_, Buffer) = self.pool.buffers.take();
        (slot, DevExchange::new(self.device.clone(), self.pool.buffers.clone(), buffer))
    }

    /// Serves requests as long as this thread is needed. None once the mount is gone.
    fn receive_while_needed(&mut self, (mut slot, mut exchange): Parts) -> Option<Parts> {
        let mut callers = Callers::default();
        loop {
            let mut outcome = match self.sleeps_at_once() {
                true => Err(Errno::AGAIN),
                false => self.look(&mut exchange, &mut slot),
            };
            if outcome == Err(Errno::AGAIN) {
                if self.pool.leave() {
                    return Some((slot, exchange));
                }
                let since = Instant::now();
                outcome = self.wait(&mut exchange, &mut slot);
                if since.elapsed() > PAUSE {
                    callers = Callers::default();
                }
            }
            match outcome {
                Ok(()) => {}
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                // Unmounted; or the connection was aborted, which ABORT_ERROR lets us tell.
                Err(Errno::NODEV | Errno::CONNABORTED) => return None,
                Err(error) => {
                    tracing::error!(%error, "reading the FUSE device failed; the mount is given up");
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
                tracing::error!("a request failed with a panic and was answered with an I/O error");
                self.fresh()
            }
        }
    }

    /// Is a look at the device not worth its system calls? It is if other threads receive: they see to what
    /// is there.
    fn sleeps_at_once(&self) -> bool {
        !self.window.is_open() && self.pool.is_alone()
    }

    /// Is there a request? EAGAIN: none.
    fn look(&mut self, exchange: &mut DevExchange, slot: &mut Slot) -> Result<(), Errno> {
        self.set_waiting(false)?;
        exchange.receive(slot)
    }

    /// Waits for a request: looking as long as that pays, then asleep.
    fn wait(&mut self, exchange: &mut DevExchange, slot: &mut Slot) -> Result<(), Errno> {
        let since = Instant::now();
        while self.window.is_open() && self.window.pause(since) {
            match exchange.receive(slot) {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
        self.set_waiting(true)?;
        let since = Instant::now();
        let outcome = exchange.receive(slot);
        self.window.slept(since.elapsed());
        outcome
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
