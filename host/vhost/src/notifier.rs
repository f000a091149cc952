//! Descriptors that signal the guest or its front end, and the sleep of a queue's thread until the guest or
//! another thread signals.

use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{self, Errno};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Descriptor that signals an interrupt of the guest or a queue's fault: an eventfd, or the write end of a
/// pipe (UML).
#[derive(Debug)]
pub(crate) struct Notifier(OwnedFd);

impl Notifier {
    /// Makes the descriptor non-blocking: a full descriptor is signalled already, and must not block this
    /// side.
    pub(crate) fn new(file: File) -> std::io::Result<Notifier> {
        let fd = OwnedFd::from(file);
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Notifier(fd))
    }

    /// Signals the descriptor. Errors are ignored: either the descriptor is full, and so signalled already,
    /// or the front end has made it unusable.
    pub(crate) fn notify(&self) {
        let _ = rustix::io::retry_on_intr(|| io::write(&self.0, &1u64.to_ne_bytes()));
    }
}

/// Sleep of a queue's thread until the guest kicks or a [`Waker`] wakes it.
///
/// The guest's descriptor is watched edge-triggered and never read. Hence a front end that drains it or makes
/// it blocking cannot block the thread, and a wake-up takes one system call less.
#[derive(Debug)]
pub(crate) struct Waiter {
    epoll: OwnedFd,
    /// Kick descriptor, held open while it is watched.
    _kick: Option<OwnedFd>,
}

/// Handle that wakes a [`Waiter`] from within this process.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waiter {
    /// Watches the guest's descriptor, if any, and creates a waker. Fails for descriptors that cannot be
    /// polled, such as regular files.
    pub(crate) fn new(kick: Option<OwnedFd>) -> std::io::Result<(Waiter, Waker)> {
        use rustix::event::{EventfdFlags, eventfd};
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(0), edge)?;
        if let Some(kick) = &kick {
            epoll::add(&epoll, kick, epoll::EventData::new_u64(1), edge)?;
        }
        Ok((Waiter { epoll, _kick: kick }, Waker(waker)))
    }

    /// Returns `true` if the guest cannot kick, so that its queue must be polled.
    pub(crate) fn must_poll(&self) -> bool {
        self._kick.is_none()
    }

    /// Sleeps until a kick, a wake-up, the timeout (`None`: without limit) or an interrupting signal.
    pub(crate) fn wait(&self, timeout_ms: Option<u32>) -> std::io::Result<()> {
        let timeout = timeout_ms.map(|ms| rustix::event::Timespec {
            tv_sec: i64::from(ms / 1000),
            tv_nsec: i64::from(ms % 1000) * 1_000_000,
        });
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Waker {
    pub(crate) fn wake(&self) {
        // A failed write means that the counter is full, and so signalled already; no other error is possible
        // on our own eventfd.
        let _ = io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
