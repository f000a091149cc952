use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use tombolo_mem::{OutOfBounds, Region, WordMut};

use crate::cells::{Cells, DoorbellWord, DoorbellWordMut, SleepOutcome};
use crate::doorbell::polling::{poll, polls_per_us};
use crate::doorbell::{Mode, PeerDoorbell, PollTime};
use crate::link::{Ends, NOTIFY_FLAG_OFFSET};
use crate::ring::Consumer;

/// Without a doorbell, or while it has lost bytes: initial interval between two polls.
pub const INTERVAL_MIN: Duration = Duration::from_micros(50);
/// As for [`INTERVAL_MIN`]: maximum interval between two polls, and thus maximum delay of a message (plus the
/// system's timer slack). 200 polls per second take well under a hundredth of a processor.
pub const INTERVAL_MAX: Duration = Duration::from_millis(5);

/// A condition that a sleeper waits for, such as a message in a ring.
pub trait Awaited {
    /// Returns `true` once the condition holds.
    fn is_ready(&mut self) -> bool;

    /// Returns the address of a line that is written when the condition changes, if there is one.
    fn line(&self) -> Option<*const u8> {
        None
    }
}

impl<F: FnMut() -> bool> Awaited for F {
    #[inline]
    fn is_ready(&mut self) -> bool {
        self()
    }
}

impl<C: Cells> Awaited for &Consumer<C> {
    #[inline]
    fn is_ready(&mut self) -> bool {
        Consumer::is_ready(self)
    }

    fn line(&self) -> Option<*const u8> {
        self.address()
    }
}

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// The awaited condition holds: the message has arrived.
    Ready,
    /// Another thread of this process called [`Nudger::nudge`].
    Nudged,
    /// The timeout expired.
    TimedOut,
}

/// Statistics of a sleeper since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SleeperCounts {
    /// Number of waits ended by polling, without a sleep. Messages present before polling do not count.
    pub found: u64,
    /// Number of sleeps, of which one wait may have several.
    pub sleeps: u64,
}

/// The consumer's side of a doorbell: waits for messages. One thread at a time uses it.
#[derive(Debug)]
pub struct Sleeper<W = PeerDoorbell, M = WordMut> {
    mode: Mode,
    poll_time: PollTime,
    /// Notify flag in this side's memory: odd while this consumer sleeps, changing with each sleep.
    notify_flag: M,
    /// Doorbell, in the peer's memory: changes with each ring. `None` without a doorbell.
    doorbell: Option<W>,
    /// Word that is nonzero after a nudge by another thread of this process, in private memory.
    nudged: M,
    /// Word that is nonzero while this consumer may sleep on the doorbell, in private memory, because other
    /// processes might write `notify_flag`.
    sleeping: M,
    counts: SleeperCounts,
}

/// A handle that wakes a [`Sleeper`] of the same process, from any thread.
#[derive(Debug, Clone)]
pub struct Nudger<W = PeerDoorbell, M = WordMut> {
    doorbell: Option<W>,
    nudged: M,
    sleeping: M,
}

impl Sleeper {
    /// Returns the sleeper of one side of a link.
    pub fn of(ends: &Ends, mode: Mode) -> Result<Sleeper, OutOfBounds> {
        let notify_flag = WordMut::new(ends.own.region(), ends.own.place(NOTIFY_FLAG_OFFSET, 4)?)?;
        let private = Region::heap(8);
        let (nudged, sleeping) = (WordMut::new(&private, 0)?, WordMut::new(&private, 4)?);
        let sleeper = Sleeper::new(mode, notify_flag, PeerDoorbell::of(ends)?, nudged, sleeping);
        Ok(Sleeper { poll_time: PollTime::of(ends), ..sleeper })
    }
}

impl<W: DoorbellWord + Clone, M: DoorbellWordMut + Clone> Sleeper<W, M> {
    /// Returns a sleeper that sets `notify_flag` while it sleeps on the peer's `doorbell`; `nudged` and
    /// `sleeping` are private words of zero.
    pub fn new(mode: Mode, notify_flag: M, doorbell: Option<W>, nudged: M, sleeping: M) -> Sleeper<W, M> {
        // Calibrates polling now rather than in the first wait.
        polls_per_us();
        let poll_time = PollTime::default();
        let counts = SleeperCounts::default();
        Sleeper { mode, poll_time, notify_flag, doorbell, nudged, sleeping, counts }
    }

    /// Returns the waiting strategy given at creation.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the statistics.
    pub fn counts(&self) -> SleeperCounts {
        self.counts
    }

    /// Returns a handle that wakes the sleeper from within this process.
    pub fn nudger(&self) -> Nudger<W, M> {
        Nudger {
            doorbell: self.doorbell.clone(),
            nudged: self.nudged.clone(),
            sleeping: self.sleeping.clone(),
        }
    }

    /// Waits until `awaited` is ready, another thread nudges, or `timeout` expires. `awaited` must depend on
    /// data that the peer writes before it rings.
    pub fn wait(&mut self, timeout: Option<Duration>, mut awaited: impl Awaited) -> WakeReason {
        if awaited.is_ready() {
            return WakeReason::Ready;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let nudged = &self.nudged;
        let is_over = || nudged.load(Relaxed) != 0 || is_late();
        if poll(self.mode, &mut self.poll_time, &mut awaited, is_over) {
            self.counts.found += 1;
            return WakeReason::Ready;
        }
        let start = Instant::now();
        let mut interval = INTERVAL_MIN;
        loop {
            if self.take_nudge() {
                return WakeReason::Nudged;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                if start.elapsed() >= self.poll_time.max() {
                    self.poll_time.slept(false);
                }
                return WakeReason::TimedOut;
            }
            let first = interval == INTERVAL_MIN;
            if self.sleep(left, &mut interval, &mut awaited) {
                // Without a doorbell the sleep lasts whole intervals: it was short if the first one sufficed.
                let by_interval = self.doorbell.is_none();
                let short = if by_interval { first } else { start.elapsed() < self.poll_time.max() };
                self.poll_time.slept(short);
                return WakeReason::Ready;
            }
        }
    }

    /// Sleeps once, unless the message or a nudge arrives during the preparation. Returns `true` if the
    /// message has arrived.
    fn sleep(&mut self, left: Option<Duration>, interval: &mut Duration, awaited: &mut impl Awaited) -> bool {
        let Some(doorbell) = self.doorbell.clone() else {
            self.sleep_for(left, interval);
            return awaited.is_ready();
        };
        let expected = doorbell.load(Acquire);
        let sleep = self.notify_flag.load(Relaxed).wrapping_add(1) | 1;
        // The flag is stored after `expected` was read: a ringer that sees the flag changes the doorbell, and
        // the wait below then returns at once.
        self.notify_flag.store(sleep, Release);
        self.sleeping.store(1, Relaxed);
        // The flag is stored before the condition is polled once more, and the producer writes its message
        // before it loads the flag, so that either this poll finds the message, or the producer finds the
        // flag. The same applies to a nudge.
        M::fence();
        let is_ready = awaited.is_ready();
        let mut is_found = is_ready;
        let mut outcome = SleepOutcome::Woken;
        if !is_ready && self.nudged.load(Relaxed) == 0 {
            self.counts.sleeps += 1;
            outcome = doorbell.wait(expected, left);
            is_found = awaited.is_ready();
            doorbell.slept(is_found);
        }
        self.sleeping.store(0, Relaxed);
        self.notify_flag.store(sleep.wrapping_add(1), Release);
        if outcome == SleepOutcome::Unsupported {
            self.sleep_for(left, interval);
        }
        is_found || awaited.is_ready()
    }

    /// Sleeps for the interval, at most for the time `left`, unless nudged, and doubles the interval, up to
    /// [`INTERVAL_MAX`].
    fn sleep_for(&mut self, left: Option<Duration>, interval: &mut Duration) {
        self.counts.sleeps += 1;
        let time = left.map_or(*interval, |left| left.min(*interval));
        self.nudged.wait(0, Some(time));
        *interval = (*interval * 2).min(INTERVAL_MAX);
    }

    fn take_nudge(&mut self) -> bool {
        if self.nudged.load(Acquire) == 0 {
            return false;
        }
        self.nudged.store(0, Relaxed);
        true
    }
}

impl<W: DoorbellWord, M: DoorbellWordMut> Nudger<W, M> {
    /// Ends the sleeper's current or next wait. Earlier stores of this thread are visible to the sleeper
    /// after that wait.
    pub fn nudge(&self) {
        self.nudged.store(1, Release);
        self.nudged.wake();
        M::fence();
        let Some(doorbell) = &self.doorbell else { return };
        // A wake-up is lost if the sleeper is between its last poll and the system call, so it is repeated.
        while self.sleeping.load(Relaxed) != 0 && self.nudged.load(Relaxed) != 0 {
            doorbell.wake();
            M::yield_now();
        }
    }
}
