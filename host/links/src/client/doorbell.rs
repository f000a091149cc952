//! Notify flag of a line: the word by which the client requests the server to ring the doorbell.

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use tombolo_mem::{OutOfBounds, WordMut};
use tombolo_shm::link::{Ends, NOTIFY_FLAG_OFFSET};

/// The flag by which this side requests the server to ring. Unlike a
/// [`Sleeper`](tombolo_shm::doorbell::Sleeper), this type does not sleep: any thread may set the flag while
/// another one sleeps.
#[derive(Debug)]
pub(super) struct NotifyFlag {
    notify_flag: Option<WordMut>,
    /// Value of the flag: odd while armed, different each time. The server rings once for each value.
    number: u32,
    is_armed: bool,
}

impl NotifyFlag {
    pub(super) fn new(ends: &Ends) -> Result<Self, OutOfBounds> {
        let at = ends.own.place(NOTIFY_FLAG_OFFSET, 4)?;
        let notify_flag = ends.has_doorbell().then(|| WordMut::new(ends.own.region(), at)).transpose()?;
        Ok(Self { notify_flag, number: 0, is_armed: false })
    }

    pub(super) fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Makes the server ring for its next answer. The caller must check the ring afterwards, because the
    /// server does not ring for an answer that it sent before it saw the flag.
    pub(super) fn arm(&mut self) {
        self.is_armed = true;
        let Some(notify_flag) = &self.notify_flag else { return };
        self.number = self.number.wrapping_add(1) | 1;
        notify_flag.store(self.number, Release);
        fence(SeqCst);
    }

    /// Cancels the request to ring.
    pub(super) fn disarm(&mut self) {
        self.is_armed = false;
        if let Some(notify_flag) = &self.notify_flag {
            self.number = self.number.wrapping_add(1);
            notify_flag.store(self.number, Relaxed);
        }
    }
}
