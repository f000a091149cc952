//! How other threads speak to an event thread.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::admission::Admitted;
use super::token::Token;
use tombolo_sys::Result;
use tombolo_sys::epoll::Bell;

/// What others told an event thread.
pub(super) struct Mailbox {
    /// Rung when there is something and the thread sleeps.
    pub(super) bell: Bell,
    /// Connections that the thread has or will have soon.
    pub(super) connections: AtomicUsize,
    any: AtomicBool,
    asleep: AtomicBool,
    letters: Mutex<Letters>,
}

/// What lies in a mailbox.
#[derive(Default)]
pub(super) struct Letters {
    /// Connections to look at.
    pub(super) tokens: Vec<Token>,
    /// Callers to serve.
    pub(super) callers: Vec<(OwnedFd, SocketAddr, Admitted)>,
    /// Nothing new is to be begun.
    pub(super) stop: bool,
}

impl Letters {
    fn clear(&mut self) {
        self.tokens.clear();
        self.callers.clear();
    }
}

impl Mailbox {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            bell: Bell::new()?,
            connections: AtomicUsize::new(0),
            any: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            letters: Mutex::default(),
        })
    }

    /// Has the thread look at a connection.
    pub(super) fn point_to(&self, token: Token) {
        self.put(|letters| letters.tokens.push(token));
    }

    /// Gives the thread a caller to serve.
    pub(super) fn bring(&self, stream: OwnedFd, address: SocketAddr, admitted: Admitted) {
        self.put(|letters| letters.callers.push((stream, address, admitted)));
    }

    /// Has the thread begin nothing new, and end.
    pub(super) fn stop(&self) {
        self.put(|letters| letters.stop = true);
    }

    /// Whether there is something.
    pub(super) fn has_letters(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Takes what there is into `letters`, whose memory is used for what comes next.
    pub(super) fn take(&self, letters: &mut Letters) {
        letters.clear();
        let mut there = self.lock();
        self.any.store(false, Ordering::SeqCst);
        letters.stop |= there.stop;
        std::mem::swap(&mut *there, letters);
        there.stop = letters.stop;
    }

    /// Runs `sleep` unless there is something; who puts something in meanwhile rings the bell.
    pub(super) fn sleep(&self, sleep: impl FnOnce()) {
        self.asleep.store(true, Ordering::SeqCst);
        // Who put something in before this line may have seen us awake.
        if !self.has_letters() {
            sleep();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn put(&self, write: impl FnOnce(&mut Letters)) {
        write(&mut self.lock());
        self.any.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
