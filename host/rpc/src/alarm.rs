//! Wake-ups of threads that poll before they sleep.

use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_sys::Result;
use tombolo_sys::epoll::EventFd;

/// A flag that tells a thread, such as a client's engine, to look for work.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// Event that wakes the sleeping thread; `None` if the engine has no thread.
    pub(crate) wakeup: Option<EventFd>,
    any: AtomicBool,
    asleep: AtomicBool,
}

impl Alarm {
    pub(crate) fn with_wakeup() -> Result<Self> {
        Ok(Self { wakeup: Some(EventFd::new()?), ..Self::default() })
    }

    /// Raises the alarm, and wakes the thread if it sleeps.
    pub(crate) fn raise(&self) {
        self.any.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(wakeup) = &self.wakeup
        {
            wakeup.notify();
        }
    }

    /// Returns `true` if the alarm is raised.
    pub(crate) fn is_raised(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Clears the alarm. Returns `true` if it was raised.
    pub(crate) fn take(&self) -> bool {
        self.is_raised() && self.any.swap(false, Ordering::SeqCst)
    }

    /// Runs `sleep` unless the alarm is raised; a later alarm ends the sleep.
    pub(crate) fn sleep(&self, sleep: impl FnOnce()) {
        self.asleep.store(true, Ordering::SeqCst);
        // An earlier alarm may have found the thread awake.
        if !self.is_raised() {
            sleep();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}
