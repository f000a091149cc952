use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use tombolo_mem::{OutOfBounds, Region, Word, WordMut};

use crate::cells::{Cells, DoorbellWord, DoorbellWordMut, Nap};
use crate::doorbell::look::{look, looks_per_us};
use crate::doorbell::{Mode, WINDOW_MAX, Window};
use crate::link::{DOORBELL_OFFSET, DoorbellKind, Ends, NOTIFY_FLAG_OFFSET};
use crate::ring::Consumer;

/// Without a doorbell: the first sleep between two looks.
pub const INTERVAL_MIN: Duration = Duration::from_micros(50);
/// Without a doorbell: the longest sleep, and so the longest time that a message waits (the system adds what
/// its timers are late). 200 looks per second take well under a hundredth of a processor.
pub const INTERVAL_MAX: Duration = Duration::from_millis(5);

/// What is waited for.
pub trait Awaited {
    /// Whether it is there.
    fn is_ready(&mut self) -> bool;

    /// The address of a line that is written when it comes, if there is one.
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

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// What was awaited is there.
    Ready,
    /// Another thread of this process nudged: see [`Nudger`].
    Nudged,
    /// The time is up.
    TimedOut,
}

/// What a sleeper has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SleeperCounts {
    /// Waits that ended while it looked.
    pub found: u64,
    /// Times that it slept.
    pub sleeps: u64,
}

/// The consumer's side of a doorbell: waits for messages. There is one per end.
#[derive(Debug)]
pub struct Sleeper<W = Word, M = WordMut> {
    mode: Mode,
    window: Window,
    /// In our memory: odd while we sleep, and another number each time.
    notify_flag: M,
    /// In the peer's memory: another number after each ring. None if there is no doorbell.
    doorbell: Option<W>,
    /// Not zero if another thread of this process nudged. Private memory.
    nudged: M,
    /// Not zero while we may sleep on the doorbell. Private memory; other processes might write
    /// `notify_flag`.
    napping: M,
    counts: SleeperCounts,
}

/// Wakes a [`Sleeper`] of the same process. Any thread may.
#[derive(Debug, Clone)]
pub struct Nudger<W = Word, M = WordMut> {
    doorbell: Option<W>,
    nudged: M,
    napping: M,
}

impl Sleeper {
    /// The sleeper of one side of a link.
    pub fn of(ends: &Ends, mode: Mode) -> Result<Sleeper, OutOfBounds> {
        let notify_flag = WordMut::new(ends.own.region(), ends.own.place(NOTIFY_FLAG_OFFSET, 4)?)?;
        let doorbell = Word::new(ends.peer.region(), ends.peer.place(DOORBELL_OFFSET, 4)?)?;
        let private = Region::heap(8);
        let (nudged, napping) = (WordMut::new(&private, 0)?, WordMut::new(&private, 4)?);
        let doorbell = Some(doorbell).filter(|_| ends.doorbell == DoorbellKind::Futex);
        Ok(Sleeper::new(mode, notify_flag, doorbell, nudged, napping))
    }
}

impl<W: DoorbellWord + Clone, M: DoorbellWordMut + Clone> Sleeper<W, M> {
    /// A sleeper that sets `notify_flag` while it sleeps on the peer's `doorbell`; `nudged` and `napping` are
    /// private words of zero.
    pub fn new(mode: Mode, notify_flag: M, doorbell: Option<W>, nudged: M, napping: M) -> Sleeper<W, M> {
        looks_per_us();
        let window = Window::default();
        let counts = SleeperCounts::default();
        Sleeper { mode, window, notify_flag, doorbell, nudged, napping, counts }
    }

    /// How it waits.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What it has done so far.
    pub fn counts(&self) -> SleeperCounts {
        self.counts
    }

    /// What wakes it from within this process.
    pub fn nudger(&self) -> Nudger<W, M> {
        Nudger { doorbell: self.doorbell.clone(), nudged: self.nudged.clone(), napping: self.napping.clone() }
    }

    /// Waits until the peer's message is there, another thread nudges, or `timeout` is over. `awaited` must
    /// look at what the peer writes before it rings.
    pub fn wait(&mut self, timeout: Option<Duration>, mut awaited: impl Awaited) -> WakeReason {
        if awaited.is_ready() {
            return WakeReason::Ready;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let nudged = &self.nudged;
        let is_over = || nudged.load(Relaxed) != 0 || is_late();
        if look(self.mode, &mut self.window, &mut awaited, is_over) {
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
                if start.elapsed() >= WINDOW_MAX {
                    self.window.slept(false);
                }
                return WakeReason::TimedOut;
            }
            let first = interval == INTERVAL_MIN;
            if self.sleep(left, &mut interval, &mut awaited) {
                let by_interval = self.doorbell.is_none();
                let short = if by_interval { first } else { start.elapsed() < WINDOW_MAX };
                self.window.slept(short);
                return WakeReason::Ready;
            }
        }
    }

    /// One sleep, unless the message comes while we prepare for it. Whether it is there afterwards.
    fn sleep(&mut self, left: Option<Duration>, interval: &mut Duration, awaited: &mut impl Awaited) -> bool {
        let Some(doorbell) = self.doorbell.clone() else {
            self.sleep_for(left, interval);
            return awaited.is_ready();
        };
        let seen = doorbell.load(Acquire);
        let sleep = self.notify_flag.load(Relaxed).wrapping_add(1) | 1;
        // After `seen` was read: a ringer that sees the flag changes the doorbell.
        self.notify_flag.store(sleep, Release);
        self.napping.store(1, Relaxed);
        // We say that we sleep before we look once more. The producer writes its message before it looks
        // whether we sleep. So one of us sees the other. The same goes for a nudge.
        M::fence();
        let there = awaited.is_ready();
        let mut nap = Nap::Over;
        if !there && self.nudged.load(Relaxed) == 0 {
            self.counts.sleeps += 1;
            nap = doorbell.wait(seen, left);
        }
        self.napping.store(0, Relaxed);
        self.notify_flag.store(sleep.wrapping_add(1), Release);
        if nap == Nap::Impossible {
            self.sleep_for(left, interval);
        }
        there || awaited.is_ready()
    }

    /// Sleeps for the interval, and doubles it. A nudge ends it.
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
    /// Ends the sleeper's wait, or its next one. What was written before is seen after it.
    pub fn nudge(&self) {
        self.nudged.store(1, Release);
        self.nudged.wake();
        M::fence();
        let Some(doorbell) = &self.doorbell else { return };
        // It may be about to sleep, after its last look and before the kernel has it: then no thread is there
        // to be woken yet.
        while self.napping.load(Relaxed) != 0 && self.nudged.load(Relaxed) != 0 {
            doorbell.wake();
            M::yield_now();
        }
    }
}
