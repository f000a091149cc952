//! The threads that take requests from the device.

use super::device::{DevExchange, Device, Stock};
use super::spin::{Turn, Window};
use crate::session::{Session, Slot};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;
use tombolo_mem::Buffer;
use tombolo_sys::{Errno, fuse_dev};

/// What the threads of one mount share.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) session: Arc<Session>,
    pub(super) stock: Arc<Stock>,
    pub(super) turn: Turn,
}

/// Serves one descriptor until the mount is gone.
pub(super) fn serve(crew: &Crew, device: &Arc<Device>) {
    let fresh = |(slot, buffer): (Box<Slot>, Buffer)| {
        (slot, DevExchange::new(device.clone(), crew.stock.clone(), buffer))
    };
    let (mut slot, mut exchange) = fresh(crew.stock.take());
    let mut waiter = Waiter { crew, device, window: Window::default(), has_turn: false };
    loop {
        match waiter.receive(&mut exchange, &mut slot) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            // Unmounted; or the connection was aborted, which ABORT_ERROR lets us tell.
            Err(Errno::NODEV | Errno::CONNABORTED) => return,
            Err(error) => {
                tracing::error!(%error, "reading the FUSE device failed; this thread stops");
                return;
            }
        }
        let handled = catch_unwind(AssertUnwindSafe(|| crew.session.handle(slot, exchange)));
        (slot, exchange) = match handled {
            Ok(Some(finished)) => finished,
            Ok(None) => fresh(crew.stock.take()),
            Err(_) => {
                tracing::error!("a request failed with a panic and was answered with an I/O error");
                fresh(crew.stock.take())
            }
        };
    }
}

/// How one thread waits for its next request: looking, if it is its turn and pays, then asleep.
struct Waiter<'c> {
    crew: &'c Crew,
    device: &'c Device,
    window: Window,
    /// With the turn goes a descriptor that does not wait.
    has_turn: bool,
}

impl Waiter<'_> {
    fn receive(&mut self, exchange: &mut DevExchange, slot: &mut Slot) -> Result<(), Errno> {
        if self.window.is_open() && (self.has_turn || self.take_turn()) {
            let since = Instant::now();
            loop {
                match exchange.receive(slot) {
                    Err(Errno::AGAIN) if self.window.pause(since) => {}
                    Err(Errno::AGAIN) => break,
                    other => return other,
                }
            }
            self.give_turn_back()?;
        }
        let since = Instant::now();
        let outcome = exchange.receive(slot);
        self.window.slept(since.elapsed());
        outcome
    }

    fn take_turn(&mut self) -> bool {
        if !self.crew.turn.take() {
            return false;
        }
        self.has_turn = fuse_dev::set_waiting(self.device.fd(), false).is_ok();
        if !self.has_turn {
            self.crew.turn.give_back();
        }
        self.has_turn
    }

    fn give_turn_back(&mut self) -> Result<(), Errno> {
        self.has_turn = false;
        self.crew.turn.give_back();
        fuse_dev::set_waiting(self.device.fd(), true)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.has_turn {
            // The mount is gone, or will be: nobody is left to report an error to.
            let _ = self.give_turn_back();
        }
    }
}
