//! How other threads speak to an event thread.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::admission::Admitted;
use super::connection_table::Token;
use tombolo_sys::Result;
use tombolo_sys::epoll::Bell;

/// What others told an event thread.
pub(super) struct ThreadQueue {
    /// Rung when there is something and the thread sleeps.
    pub(super) bell: Bell,
    /// Connections that the thread has or will have soon.
    pub(super) connections: AtomicUsize,
    any: AtomicBool,
    asleep: AtomicBool,
    commands: Mutex<Commands>,
}

/// What lies in a queue.
#[derive(Default)]
pub(super) struct Commands {
    /// Connections to look at.
    pub(super) tokens: Vec<Token>,
    /// Callers to serve.
    pub(super) callers: Vec<(OwnedFd, SocketAddr, Admitted)>,
    /// Nothing new is to be begun.
    pub(super) stop: bool,
}

impl Commands {
    fn clear(&mut self) {
        self.tokens.clear();
        self.callers.clear();
    }
}

impl ThreadQueue {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            bell: Bell::new()?,
            connections: AtomicUsize::new(0),
            any: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            commands: Mutex::default(),
        })
    }

    /// Has the thread look at a connection.
    pub(super) fn check_connection(&self, token: Token) {
        self.put(|commands| commands.tokens.push(token));
    }

    /// Gives the thread a caller to serve.
    pub(super) fn add_caller(&self, stream: OwnedFd, address: SocketAddr, admitted: Admitted) {
        self.put(|commands| commands.callers.push((stream, address, admitted)));
    }

    /// Has the thread begin nothing new, and end.
    pub(super) fn stop(&self) {
        self.put(|commands| commands.stop = true);
    }

    /// Whether there is something.
    pub(super) fn has_commands(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Takes what there is into `commands`, whose memory is used for what comes next.
    pub(super) fn take(&self, commands: &mut Commands) {
        commands.clear();
        let mut there = self.lock();
        self.any.store(false, Ordering::SeqCst);
        commands.stop |= there.stop;
        std::mem::swap(&mut *there, commands);
        there.stop = commands.stop;
    }

    /// Runs `sleep` unless the queue has commands; a command that comes meanwhile rings the bell.
    pub(super) fn sleep(&self, sleep: impl FnOnce()) {
        self.asleep.store(true, Ordering::SeqCst);
        // A command from before this line may have seen the thread awake.
        if !self.has_commands() {
            sleep();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn put(&self, write: impl FnOnce(&mut Commands)) {
        write(&mut self.lock());
        self.any.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
