//! Turns of guests that may connect concurrently but run one at a time: a live migration's destination
//! connects and queries the device while the source still runs.

use tombolo_host_runtime::lock;

use super::server::GuestId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

/// The running guest and those that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<TurnQueue>);

#[derive(Debug, Default)]
struct TurnQueue {
    running: Option<GuestId>,
    /// Waiting guests with the eventfds that notify them.
    waiting: VecDeque<(GuestId, Arc<OwnedFd>)>,
}

/// One guest's means to take its turn, to pass it on, and to wait for it.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    guest: GuestId,
    /// `None` if all guests run concurrently.
    shared: Option<(Arc<Turns>, Arc<OwnedFd>)>,
}

impl Turn {
    pub(crate) fn new(turns: Option<Arc<Turns>>, guest: GuestId) -> io::Result<Turn> {
        let called = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = turns.map(|turns| Ok::<_, io::Error>((turns, Arc::new(called()?)))).transpose()?;
        Ok(Turn { guest, shared })
    }

    /// Takes the turn if it is free. Returns `true` if this guest's queues may run now; otherwise the
    /// guest's thread is notified when they may.
    pub(crate) fn take(&self) -> bool {
        let Some((turns, called)) = &self.shared else { return true };
        let mut queue = lock(&turns.0);
        let is_mine = *queue.running.get_or_insert(self.guest) == self.guest;
        if !is_mine && queue.waiting.iter().all(|(guest, _)| *guest != self.guest) {
            queue.waiting.push_back((self.guest, called.clone()));
        }
        is_mine
    }

    /// Passes the turn to the guest that has waited longest, or frees it if none waits. A guest without the
    /// turn leaves the queue of waiting guests.
    pub(crate) fn pass(&self) {
        let Some((turns, _)) = &self.shared else { return };
        let mut queue = lock(&turns.0);
        queue.waiting.retain(|(guest, _)| *guest != self.guest);
        if queue.running == Some(self.guest) {
            let next = queue.waiting.pop_front();
            if let Some((_, called)) = &next {
                // A failed write means that the counter is full, and so signalled already; no other error is
                // possible on our own eventfd.
                let _ = rustix::io::write(called, &1u64.to_ne_bytes());
            }
            queue.running = next.map(|(guest, _)| guest);
        }
    }

    /// Waits for the front end's next message or the guest's turn. Returns `true` if the guest was passed the
    /// turn. If all guests run concurrently, returns `false` at once.
    pub(crate) fn wait_for_turn_or_message(&self, stream: &UnixStream) -> bool {
        let Some((_, called)) = &self.shared else { return false };
        let mut fds = [PollFd::new(stream, PollFlags::IN), PollFd::new(called, PollFlags::IN)];
        // An error recurs where the message is received.
        let _ = poll(&mut fds, None);
        rustix::io::read(called, &mut [0; 8]).is_ok()
    }
}
