use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use tombolo_mem::{OutOfBounds, Word};

use crate::cells::{DoorbellWord, DoorbellWordMut};
use crate::doorbell::OwnDoorbell;
use crate::link::{Ends, NOTIFY_FLAG_OFFSET};

/// The producer's side of a doorbell: wakes a peer that has announced its sleep. Usable from any thread.
#[derive(Debug)]
pub struct Ringer<W = Word, M = OwnDoorbell> {
    /// The notify flag in the peer's memory: odd while the peer sleeps, changing with each sleep. `None`
    /// without a doorbell.
    notify_flag: Option<W>,
    /// The doorbell, in this side's memory, on which the peer sleeps.
    doorbell: M,
    /// Value of the notify flag in the sleep that this side ended last: a peer that still shows it is about
    /// to wake.
    ended: AtomicU32,
    rings: AtomicU64,
}

impl Ringer {
    /// Returns the ringer of one side of a link.
    pub fn of(ends: &Ends) -> Result<Ringer, OutOfBounds> {
        let notify_flag = Word::new(ends.peer.region(), ends.peer.place(NOTIFY_FLAG_OFFSET, 4)?)?;
        Ok(Ringer::new(Some(notify_flag).filter(|_| ends.has_doorbell()), OwnDoorbell::of(ends)?))
    }
}

impl<W: DoorbellWord, M: DoorbellWordMut> Ringer<W, M> {
    /// Returns a ringer of the `doorbell` on which the peer sleeps while its `notify_flag` is odd.
    pub fn new(notify_flag: Option<W>, doorbell: M) -> Ringer<W, M> {
        Ringer { notify_flag, doorbell, ended: AtomicU32::new(0), rings: AtomicU64::new(0) }
    }

    /// Wakes the peer if it sleeps and has not been woken already. The producer must call this after it has
    /// pushed messages. Costs a fence, and a system call if it rings.
    #[inline]
    pub fn ring(&self) {
        let Some(notify_flag) = &self.notify_flag else { return };
        // This fence orders the pushed messages before the load of the notify flag. The sleeper orders the
        // store of its flag before its last poll, so that one of the two sees the other's store.
        W::fence();
        let sleep = notify_flag.load(Acquire);
        if sleep % 2 == 1 && sleep != self.ended.load(Relaxed) {
            self.wake(sleep);
        }
    }

    /// Returns the number of rings so far, for statistics.
    pub fn rings(&self) -> u64 {
        self.rings.load(Relaxed)
    }

    #[cold]
    fn wake(&self, sleep: u32) {
        self.doorbell.bump();
        self.doorbell.wake();
        // `ended` is stored only after the wake-up: another thread that reads it does not ring, and must not
        // rely on a wake-up that is still to happen.
        self.ended.swap(sleep, AcqRel);
        self.rings.fetch_add(1, Relaxed);
    }
}
