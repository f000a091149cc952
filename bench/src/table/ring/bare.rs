//! Exchange of a number between two threads: the limit of the machine.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tombolo_mem::WordMut;
use tombolo_shm::region::sealed::Sealed;
use tombolo_sys::{affinity, futex};

use super::{AT_ONCE, timed_by};
use crate::error::{Doing, Result};
use crate::measure::{Work, spare_cores};

/// Size of the shared memory: each word has its own, non-adjacent cache line.
const BYTES: u64 = 4096;
const ANSWER: usize = 256;
/// Interval at which a sleeper checks whether the other thread is alive.
const NAP: Duration = Duration::from_millis(100);

/// Way in which the threads wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    CacheLine,
    Futex,
}

impl Bare {
    pub fn work(self) -> Work<'static> {
        Work::new(move |count, clock| {
            let mut table = Table::new(self, spare_cores().get(1).copied())?;
            timed_by(AT_ONCE, count, clock, || {
                table.turn();
                Ok(())
            })
        })
    }
}

/// Both sides; the peer is a thread that lives for a turn.
struct Table {
    side: Side,
    last: u32,
    over: Arc<AtomicBool>,
    other: Option<JoinHandle<()>>,
}

struct Side {
    how: Bare,
    outgoing: WordMut,
    incoming: WordMut,
}

impl Table {
    /// Starts the peer thread on that core.
    fn new(how: Bare, core: Option<usize>) -> Result<Self> {
        let memory = Sealed::create("bench", BYTES).map_err(std::io::Error::other);
        let memory = memory.doing(|| "get memory to share".to_owned())?;
        let word = |at| {
            let word = WordMut::new(memory.region(), at).map_err(std::io::Error::other);
            word.doing(|| "find a word in shared memory".to_owned())
        };
        let side = Side { how, outgoing: word(0)?, incoming: word(ANSWER)? };
        let there = Side { how, outgoing: word(ANSWER)?, incoming: word(0)? };
        let over = Arc::new(AtomicBool::new(false));
        let over_there = Arc::clone(&over);
        let other = thread::Builder::new().name("bare".into()).spawn(move || {
            // A machine with one core has no alternative.
            let _alone = core.map(|core| affinity::pin(None, &[core]));
            let mut number: u32 = 1;
            while there.hear(number, &over_there) {
                there.say(number);
                number = number.wrapping_add(1);
            }
        });
        let other = Some(other.doing(|| "start a thread".to_owned())?);
        Ok(Self { side, last: 0, over, other })
    }

    #[inline]
    fn turn(&mut self) {
        self.last = self.last.wrapping_add(1);
        self.side.say(self.last);
        self.side.hear(self.last, &self.over);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(other) = self.other.take() {
            // The thread cannot panic.
            let _ended = other.join();
        }
    }
}

impl Side {
    #[inline]
    fn say(&self, number: u32) {
        self.outgoing.store(number, Ordering::Release);
        if self.how == Bare::Futex {
            // Cannot fail for mapped words.
            let _woken = futex::wake(&self.outgoing);
        }
    }

    /// Waits for that number. Returns `false` when the other side ends.
    #[inline]
    fn hear(&self, number: u32, over: &AtomicBool) -> bool {
        loop {
            let seen = self.incoming.load(Ordering::Acquire);
            if seen == number {
                return true;
            }
            if over.load(Ordering::Relaxed) {
                return false;
            }
            match self.how {
                Bare::CacheLine => spin_loop(),
                Bare::Futex => drop(futex::wait(&self.incoming, seen, Some(NAP))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Clock;

    #[test]
    fn numbers_travel_both_ways_until_the_peer_ends() {
        for how in [Bare::CacheLine, Bare::Futex] {
            let mut clock = Clock::new();
            how.work().run(20, &mut clock).unwrap();
            assert!(clock.count() >= 20, "{how:?}");
        }
    }
}
