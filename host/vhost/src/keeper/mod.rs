//! A keeper stands between front ends and the server of their device, on the way of messages only: to the
//! front end it is a server that never goes, to the server a front end that connects again. So a server can
//! be killed or replaced under guests whose virtual machine monitor cannot connect again, or knows nothing of
//! in-flight areas.
//!
//! Requests and data do not pass through it: those go between the guest's memory and the server, and eventfds
//! wake both. It knows no device and maps no memory; it remembers messages with their descriptors.
//!
//! - [`Keeper`]: takes front ends in at a socket, as its [`Settings`] say.
//! - [`Place`]: where the servers listen, one after the other.
//! - [`Servers`]: says which of them runs. What starts them is not here.
//!
//! Reading order: `message`, `state`, `servers`, `session`, here. `docs/decisions/keeper.md` has the reasons.

mod message;
mod servers;
mod session;
mod state;

pub use servers::{Place, Servers};

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::fd_store::Held;
use message::Channel;
use session::{Session, SessionEnd};
use tombolo_host_runtime::descriptors::DescriptorBudget;

/// Descriptors of a front end at the most: its memory and three for each of 256 queues, and a message that
/// brings them anew.
const DESCRIPTORS_MAX: usize = 64 + 3 * 256 + 48;

/// How front ends are kept.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// So many at a time; more wait until one leaves.
    pub guests_max: usize,
    /// Whether no front end has an area of requests under way of its own: where servers leave in it what a
    /// front end must not change. Such servers leave descriptors too
    /// ([`Settings::has_fd_store`](crate::Settings)).
    pub keeps_all_areas: bool,
}

/// Takes front ends in at one socket, each with a thread of its own.
#[derive(Debug)]
pub struct Keeper {
    servers: Arc<Servers>,
    place: Arc<Place>,
    settings: Settings,
    count: Mutex<usize>,
    left: Condvar,
}

impl Keeper {
    /// Starts to take in what connects to `listener`, for the servers at `place`. It goes on until the
    /// process ends, or the servers do ([`Servers::end`]).
    pub fn start(
        listener: UnixListener,
        place: Place,
        servers: Arc<Servers>,
        settings: Settings,
    ) -> io::Result<()> {
        listener.set_nonblocking(false)?;
        let place = Arc::new(place);
        let keeper = Keeper { servers, place, settings, count: Mutex::default(), left: Condvar::new() };
        let keeper = Arc::new(keeper);
        thread::Builder::new().name("keeper".into()).spawn(move || keeper.take_in(&listener)).map(drop)
    }

    fn take_in(self: &Arc<Keeper>, listener: &UnixListener) {
        loop {
            self.wait_for_room();
            let taken = listener.accept().and_then(|(stream, _)| self.serve(stream));
            if let Err(error) = taken {
                tracing::warn!(%error, "cannot take a guest in");
                self.leave();
                // Most often out of descriptors: one leaving mends it.
                thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn serve(self: &Arc<Keeper>, stream: UnixStream) -> io::Result<()> {
        let budget = DescriptorBudget::of_process().share(DESCRIPTORS_MAX);
        let budget = budget.ok_or_else(|| io::Error::other("no descriptors left; raise RLIMIT_NOFILE"))?;
        let front_end = Channel::new(stream)?;
        let keeper = Arc::clone(self);
        let serve = move || {
            let (servers, place) = (Arc::clone(&keeper.servers), Arc::clone(&keeper.place));
            let held = keeper.settings.keeps_all_areas.then(|| DescriptorBudget::of_process().share(0));
            let held = held.flatten().map(Held::new);
            let end = match Session::new(front_end, servers, place, held) {
                Ok(mut session) => session.run(),
                Err(end) => end,
            };
            drop(budget);
            keeper.leave();
            match end {
                SessionEnd::Left => tracing::info!("a guest has left"),
                end => tracing::warn!(reason = error_with_sources(&end), "a guest is let go"),
            }
        };
        thread::Builder::new().name("kept-guest".into()).spawn(serve).map(drop)
    }

    fn wait_for_room(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count >= self.settings.guests_max {
            count = self.left.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
        *count += 1;
    }

    fn leave(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.left.notify_all();
    }
}

fn error_with_sources(end: &dyn std::error::Error) -> String {
    std::iter::successors(Some(end), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
