//! Waiting for a descriptor and for the answers of a link on one thread.
//!
//! A mount's thread sends a request over a link, and waits at its device for the next one; the answer wakes
//! the link's receiver thread, which replies. Each thread sleeps once for each request, and where the link's
//! doorbell is a descriptor, as in guests, one thread can wait for both. It takes the receiver thread's
//! [`Place`], and receives whenever it waits. Work between two waits must not block, as in tasks.
//!
//! A fast path: without this file, and without what implements [`Receiving`], everything works; a create in a
//! User Mode Linux guest then takes more sleeps and system calls (docs/decisions/links-calls.md).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::lock;

/// A receiver thread whose place another thread can take.
pub trait Receiving: Send + Sync {
    /// Takes the receiver thread's place. Returns `false` if another thread has it, or there is none.
    fn take_place(&self) -> bool;

    /// Receives until `own` can be read. Returns the time asleep, or `None` if this thread has lost the
    /// place.
    fn wait_beside(&self, own: BorrowedFd<'_>) -> Option<Duration>;

    /// Gives the place back to the receiver thread.
    fn leave_place(&self);
}

static OFFERED: Mutex<Vec<Weak<dyn Receiving>>> = Mutex::new(Vec::new());

/// Offers the place of a receiver thread to threads of this process, until it is dropped.
pub fn offer(receiving: Weak<dyn Receiving>) {
    let mut offered = lock(&OFFERED);
    offered.retain(|other| other.strong_count() > 0);
    offered.push(receiving);
}

/// The place of a receiver thread, given back on drop.
pub struct Place(Arc<dyn Receiving>);

impl Place {
    /// Takes the place of the latest receiver thread that offers its own; `None` if none can be taken.
    pub fn take() -> Option<Place> {
        // No lock is held while a receiver thread is asked.
        let offered: Vec<_> = {
            let mut offered = lock(&OFFERED);
            offered.retain(|other| other.strong_count() > 0);
            offered.iter().rev().filter_map(Weak::upgrade).collect()
        };
        offered.into_iter().find_map(Place::of)
    }

    /// Takes the place of one receiver thread.
    pub fn of(receiving: Arc<dyn Receiving>) -> Option<Place> {
        receiving.take_place().then(|| Place(receiving))
    }

    /// Receives until `own` can be read. Returns the time asleep, or `None` if the place is lost.
    pub fn wait_beside(&self, own: BorrowedFd<'_>) -> Option<Duration> {
        self.0.wait_beside(own)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.leave_place();
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Place")
    }
}
