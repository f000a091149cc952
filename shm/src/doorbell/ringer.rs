use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use tombolo_mem::{OutOfBounds, Word, WordMut};

use crate::cells::{DoorbellWord, DoorbellWordMut};
use crate::link::{DOORBELL_OFFSET, DoorbellKind, Ends, NOTIFY_FLAG_OFFSET};

/// The producer's side of a doorbell: wakes a peer that says that it sleeps. Any thread may ring.
#[derive(Debug)]
pub struct Ringer<W = Word, M = WordMut> {
    /// In the peer's memory: odd while it sleeps, and another number each time. None if there is no doorbell.
    notify_flag: Option<W>,
    /// What it sleeps on, in our memory.
    doorbell: M,
    /// The sleep that was last ended by ringing.
    ended: AtomicU32,
    rings: AtomicU64,
}

impl Ringer {
    /// The ringer of one side of a link.
    pub fn of(ends: &Ends) -> Result<Ringer, OutOfBounds> {
        let doorbell = WordMut::new(ends.own.region(), ends.own.place(DOORBELL_OFFSET, 4)?)?;
        let notify_flag = Word::new(ends.peer.region(), ends.peer.place(NOTIFY_FLAG_OFFSET, 4)?)?;
        Ok(Ringer::new(Some(notify_flag).filter(|_| ends.doorbell == DoorbellKind::Futex), doorbell))
    }
}

impl<W: DoorbellWord, M: DoorbellWordMut> Ringer<W, M> {
    /// A ringer of the `doorbell` that the peer sleeps on when its `notify_flag` says so.
    pub fn new(notify_flag: Option<W>, doorbell: M) -> Ringer<W, M> {
        Ringer { notify_flag, doorbell, ended: AtomicU32::new(0), rings: AtomicU64::new(0) }
    }

    /// To be called after messages were pushed: wakes the peer if it sleeps and was not woken already. Costs
    /// a fence, and a system call if it rings.
    #[inline]
    pub fn ring(&self) {
        let Some(notify_flag) = &self.notify_flag else { return };
        // The messages come before the look at the notify flag, as with the sleeper the flag comes before the
        // look at the ring.
        W::fence();
        let sleep = notify_flag.load(Acquire);
        if sleep % 2 == 1 && sleep != self.ended.load(Relaxed) {
            self.wake(sleep);
        }
    }

    /// How often it has rung.
    pub fn rings(&self) -> u64 {
        self.rings.load(Relaxed)
    }

    #[cold]
    fn wake(&self, sleep: u32) {
        self.doorbell.bump();
        self.doorbell.wake();
        // Not before: another thread that finds this sleep ended must not rely on a ring that is still to
        // come.
        self.ended.swap(sleep, AcqRel);
        self.rings.fetch_add(1, Relaxed);
    }
}
