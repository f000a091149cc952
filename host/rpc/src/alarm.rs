//! Wake-up of a thread that polls before it sleeps: an event thread of the server, or a client's receiver.

use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_sys::Result;
use tombolo_sys::epoll::EventFd;

/// A flag that other threads raise to make one thread look for work.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// Event that wakes the sleeping thread; `None` if a simulation runs the engine without a thread.
    pub(crate) wakeup: Option<EventFd>,
    raised: AtomicBool,
    /// `true` while the thread sleeps or is about to, and nothing has woken it yet.
    asleep: AtomicBool,
}

impl Alarm {
    pub(crate) fn with_wakeup() -> Result<Self> {
        Ok(Self { wakeup: Some(EventFd::new()?), ..Self::default() })
    }

    /// Raises the alarm, and wakes the thread if it sleeps.
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(wakeup) = &self.wakeup
        {
            wakeup.notify();
        }
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Clears the alarm. Returns `true` if it was raised.
    pub(crate) fn take(&self) -> bool {
        self.is_raised() && self.raised.swap(false, Ordering::SeqCst)
    }

    /// Runs `sleep` unless the alarm is raised. `sleep` must also wait for `wakeup`, by which a later alarm
    /// ends it.
    pub(crate) fn sleep(&self, sleep: impl FnOnce()) {
        self.asleep.store(true, Ordering::SeqCst);
        // An alarm raised before `asleep` was set has not notified `wakeup`.
        if !self.is_raised() {
            sleep();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}
