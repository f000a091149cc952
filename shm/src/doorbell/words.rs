//! The two doorbells of a link, from one side's view.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_mem::{OutOfBounds, Word, WordMut};

use crate::cells::{DoorbellWord, DoorbellWordMut, SleepOutcome};
use crate::doorbell::Bell;
use crate::link::{DOORBELL_OFFSET, Ends};

/// The peer's doorbell, on which this side sleeps: a word in the peer's memory, with a futex or a bell.
#[derive(Debug, Clone)]
pub struct PeerDoorbell {
    word: Word,
    bell: Option<Arc<Bell>>,
}

/// This side's doorbell, on which the peer sleeps: a word in this side's memory, with a futex or a bell.
#[derive(Debug, Clone)]
pub struct OwnDoorbell {
    word: WordMut,
    bell: Option<Arc<Bell>>,
}

impl PeerDoorbell {
    /// Returns the doorbell of the peer, if the link has doorbells.
    pub fn of(ends: &Ends) -> Result<Option<PeerDoorbell>, OutOfBounds> {
        let word = Word::new(ends.peer.region(), ends.peer.place(DOORBELL_OFFSET, 4)?)?;
        Ok(ends.has_doorbell().then(|| PeerDoorbell { word, bell: ends.bell.clone() }))
    }
}

impl OwnDoorbell {
    /// Returns the doorbell of this side, which the peer ignores on a link without doorbells.
    pub fn of(ends: &Ends) -> Result<OwnDoorbell, OutOfBounds> {
        let word = WordMut::new(ends.own.region(), ends.own.place(DOORBELL_OFFSET, 4)?)?;
        Ok(OwnDoorbell { word, bell: ends.bell.clone() })
    }
}

impl DoorbellWord for PeerDoorbell {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    fn wait(&self, expected: u32, timeout: Option<Duration>) -> SleepOutcome {
        match &self.bell {
            Some(bell) => bell.wait(|| self.word.load(Ordering::Acquire) != expected, timeout),
            None => self.word.wait(expected, timeout),
        }
    }

    fn wake(&self) {
        match &self.bell {
            Some(bell) => bell.nudge(),
            None => self.word.wake(),
        }
    }

    fn slept(&self, found: bool) {
        if let Some(bell) = &self.bell {
            bell.slept(found);
        }
    }

    #[inline]
    fn fence() {
        <Word as DoorbellWord>::fence();
    }
}

impl DoorbellWord for OwnDoorbell {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    fn wait(&self, expected: u32, timeout: Option<Duration>) -> SleepOutcome {
        self.word.wait(expected, timeout)
    }

    /// Wakes the peer.
    fn wake(&self) {
        match &self.bell {
            Some(bell) => bell.ring(),
            None => DoorbellWord::wake(&self.word),
        }
    }

    #[inline]
    fn fence() {
        <Word as DoorbellWord>::fence();
    }
}

impl DoorbellWordMut for OwnDoorbell {
    fn store(&self, value: u32, order: Ordering) {
        DoorbellWordMut::store(&self.word, value, order);
    }

    fn bump(&self) {
        self.word.bump();
    }
}
