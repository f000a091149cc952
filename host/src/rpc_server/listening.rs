//! Taking callers in.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::common::Common;
use super::mailbox::Mailbox;
use super::token::Token;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_sys::{Errno, tcp};

/// Callers of one turn; then those that are connected have theirs.
const TURN_MAX: usize = 64;

/// When the system has no descriptors left: it says so at once each time, and the caller waits on.
const PAUSE: Duration = Duration::from_millis(100);

/// A peer that says nothing for so long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(300);

/// The listening sockets, which one event thread has.
pub(super) struct Listening {
    sockets: Vec<OwnedFd>,
    common: Arc<Common>,
    /// All event threads.
    threads: Arc<[Arc<Mailbox>]>,
    /// Nobody is taken in before.
    paused_until: Option<Instant>,
}

impl Listening {
    pub(super) fn new(sockets: Vec<OwnedFd>, common: Arc<Common>, threads: Arc<[Arc<Mailbox>]>) -> Self {
        Self { sockets, common, threads, paused_until: None }
    }

    pub(super) fn watch(&self, epoll: &Epoll) -> Result<(), Errno> {
        for (index, socket) in self.sockets.iter().enumerate() {
            epoll.add(socket, Token::listener(index).number(), Interest::Readable)?;
        }
        Ok(())
    }

    /// Takes no more callers; who waits is refused by the system.
    pub(super) fn close(&mut self, epoll: &Epoll) {
        self.ignore(epoll);
        self.sockets.clear();
        self.paused_until = None;
    }

    /// When [`resume`](Self::resume) is to be called.
    pub(super) fn resumes_at(&self) -> Option<Instant> {
        self.paused_until
    }

    /// After a pause, takes callers again.
    pub(super) fn resume(&mut self, epoll: &Epoll, now: Instant) {
        if self.paused_until.is_some_and(|time| now >= time) {
            let watched = self.watch(epoll);
            self.paused_until = watched.is_err().then(|| now + PAUSE);
        }
    }

    /// Takes in those who wait at a socket, up to a limit.
    pub(super) fn turn(&mut self, index: usize, epoll: &Epoll) {
        for _ in 0..TURN_MAX {
            let Some(socket) = self.sockets.get(index) else { return };
            match tcp::accept(socket.as_fd()) {
                Ok((stream, address)) => self.take_in(stream, address),
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    if let Some(suppressed) = self.common.lines.no_room.turn() {
                        tracing::error!(%error, suppressed, "callers wait: no connection can be taken");
                    }
                    self.ignore(epoll);
                    self.paused_until = Some(Instant::now() + PAUSE);
                    return;
                }
                // The caller's connection failed before we took it (accept(2), ERRORS).
                Err(error) => tracing::debug!(%error, "a caller left"),
            }
        }
    }

    fn take_in(&self, stream: OwnedFd, address: SocketAddr) {
        let (options, counters) = (&self.common.options, &self.common.counters);
        let full = counters.connections.get() >= options.connections_max as u64;
        if full || !options.admits(address.ip()) {
            counters.refused.add(1);
            if let Some(suppressed) = self.common.lines.refused.turn() {
                let reason = if full { "there are too many connections" } else { "it is not allowed to" };
                tracing::warn!(peer = %address, suppressed, "a caller was refused: {reason}");
            }
            return;
        }
        if let Err(error) = tcp::tune(&stream, SILENCE) {
            tracing::debug!(peer = %address, %error, "a caller left");
            return;
        }
        let least = self.threads.iter().min_by_key(|thread| thread.connections.load(Ordering::Relaxed));
        if let Some(thread) = least {
            counters.connections.add(1);
            counters.connections_total.add(1);
            thread.connections.fetch_add(1, Ordering::Relaxed);
            thread.bring(stream, address);
        }
    }

    fn ignore(&self, epoll: &Epoll) {
        for socket in &self.sockets {
            // It is not watched during a pause.
            let _ = epoll.remove(socket);
        }
    }
}
