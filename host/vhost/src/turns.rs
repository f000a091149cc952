//! Guests that may be connected at the same time, but run one after the other: a live migration's destination
//! connects, and asks what there is to know, while the source still runs.

use super::server::GuestId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Whose queues run, and whose wait for it.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    running: Option<GuestId>,
    /// With what tells each of them.
    waiting: VecDeque<(GuestId, Arc<OwnedFd>)>,
}

/// One guest's place.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    guest: GuestId,
    /// None where all guests run at the same time.
    place: Option<(Arc<Turns>, Arc<OwnedFd>)>,
}

impl Turn {
    pub(crate) fn new(turns: Option<Arc<Turns>>, guest: GuestId) -> io::Result<Turn> {
        let called = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let place = turns.map(|turns| Ok::<_, io::Error>((turns, Arc::new(called()?)))).transpose()?;
        Ok(Turn { guest, place })
    }

    /// Whether this guest's queues may run now. Otherwise it is told when they may.
    pub(crate) fn take(&self) -> bool {
        let Some((turns, called)) = &self.place else { return true };
        let mut line = turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_mine = *line.running.get_or_insert(self.guest) == self.guest;
        if !is_mine && line.waiting.iter().all(|(guest, _)| *guest != self.guest) {
            line.waiting.push_back((self.guest, called.clone()));
        }
        is_mine
    }

    /// Gives the turn to the guest that has waited longest, or the place in the line up.
    pub(crate) fn pass(&self) {
        let Some((turns, _)) = &self.place else { return };
        let mut line = turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        line.waiting.retain(|(guest, _)| *guest != self.guest);
        if line.running == Some(self.guest) {
            let next = line.waiting.pop_front();
            if let Some((_, called)) = &next {
                // Full means told already; nothing else can fail on our own eventfd.
                let _ = rustix::io::write(called, &1u64.to_ne_bytes());
            }
            line.running = next.map(|(guest, _)| guest);
        }
    }

    /// Waits for the guest's next message, or until the turn that it waits for is given to it; whether that
    /// came.
    pub(crate) fn comes_before_a_message(&self, stream: &UnixStream) -> bool {
        let Some((_, called)) = &self.place else { return false };
        let mut fds = [PollFd::new(stream, PollFlags::IN), PollFd::new(called, PollFlags::IN)];
        // What fails here fails again where the message is taken.
        let _ = poll(&mut fds, None);
        rustix::io::read(called, &mut [0; 8]).is_ok()
    }
}
