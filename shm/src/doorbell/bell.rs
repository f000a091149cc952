//! A doorbell over a stream of bytes, for two sides without a common kernel.
//!
//! To ring is to write one byte, whose value is ignored: the ringing side changes the doorbell's word in
//! shared memory first, and the sleeper reads that word. Bytes may therefore be lost, repeated or invented by
//! the peer without harm to this side:
//!
//! - A sleeper also polls the word, at first after [`PATIENCE_MIN`]. If the word has changed without a byte,
//!   the bell is *lost*: the sleeper polls at short intervals, as without a bell, until one byte has
//!   announced a message. Each further loss doubles the number of bytes required.
//! - After [`EMPTY_MAX`] wake-ups in a row without a message, or at the end of the stream, the stream is
//!   *muted*: for a while the sleeper ignores it, and polls the word at intervals only.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_sys::epoll::EventFd;
use tombolo_sys::stream::{self, Drained};

use crate::cells::SleepOutcome;
use crate::doorbell::{INTERVAL_MAX, INTERVAL_MIN};

/// Polling interval of the word while the bell works: the minimum after each message, then doubled up to the
/// maximum, which costs an idle link no more than its heartbeat.
const PATIENCE_MIN: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of rings required until a lost bell is trusted again. After as many rings without a loss,
/// the next loss counts as the first.
const RINGS_MAX: u32 = 1024;
/// Number of wake-ups in a row without a message after which the stream is muted.
const EMPTY_MAX: u32 = 16;
/// Time for which a stream is muted at first; each further time is twice as long, until a message arrives.
const MUTED_MIN: Duration = Duration::from_millis(100);
/// Longest time for which a stream is muted.
const MUTED_MAX: Duration = Duration::from_secs(10);
/// Time for which a stream that has ended is muted: the other end of a guest's port may be connected again.
const ENDED: Duration = Duration::from_secs(1);

/// A stream that carries rings in both directions. Both descriptors are nonblocking.
#[derive(Debug)]
pub struct BellStream {
    input: OwnedFd,
    output: OwnedFd,
}

/// The bell of one side of a link. One thread at a time sleeps on it.
#[derive(Debug)]
pub struct Bell {
    stream: Arc<BellStream>,
    /// Wakes the sleeper from within this process.
    nudge: EventFd,
    trust: Mutex<Trust>,
}

/// Experience with the stream. Only the sleeping thread changes it.
#[derive(Clone, Copy, Debug)]
struct Trust {
    /// Number of rings with a message until the bell is no longer lost.
    rings_due: u32,
    /// Value of `rings_due` after the next loss.
    rings_after_loss: u32,
    /// Number of rings with a message since the last loss.
    rings: u32,
    muted_until: Option<Instant>,
    /// Time for which the stream is muted next.
    muted_for: Duration,
    /// Next polling interval of the word while the bell is neither lost nor muted.
    patience: Duration,
    /// Next polling interval while the bell is lost or muted.
    interval: Duration,
    /// Number of wake-ups by the peer since the last message, or since the stream was muted.
    empty: u32,
    waker: Waker,
}

/// Reason for the end of the last sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waker {
    /// A nudge by this side, or the timeout.
    Own,
    /// A byte from the peer.
    Ring,
    /// A change of the word without a byte.
    Word,
}

impl BellStream {
    /// Returns the stream of these nonblocking descriptors.
    pub fn new(input: OwnedFd, output: OwnedFd) -> BellStream {
        BellStream { input, output }
    }
}

impl Bell {
    /// Returns a bell over the stream, which only one link uses at a time.
    pub fn new(stream: Arc<BellStream>) -> tombolo_sys::Result<Bell> {
        Ok(Bell { stream, nudge: EventFd::new()?, trust: Mutex::new(Trust::new()) })
    }

    /// Writes a byte to the stream, which wakes the peer.
    pub(super) fn ring(&self) {
        // An error is ignored: if the stream is full, bytes that the peer has not read will wake it; if the
        // stream has ended or failed, the peer polls the word.
        let _ = stream::ring(&self.stream.output);
    }

    /// Wakes the thread of this process that sleeps on the bell, if there is one.
    pub(super) fn nudge(&self) {
        self.nudge.notify();
    }

    /// Sleeps until the peer rings, this side nudges, the timeout expires, or `is_changed`, which is called
    /// at intervals, returns `true`.
    pub(super) fn wait(&self, is_changed: impl Fn() -> bool, timeout: Option<Duration>) -> SleepOutcome {
        // No lock is held during the sleep.
        let mut trust = *self.trust();
        let outcome = self.sleep(&mut trust, is_changed, timeout);
        *self.trust() = trust;
        outcome
    }

    /// Sleeps as [`wait`](Self::wait) does. Reads no clock unless the stream is muted, because in some guests
    /// reading a clock is a slow system call.
    fn sleep(
        &self,
        trust: &mut Trust,
        is_changed: impl Fn() -> bool,
        timeout: Option<Duration>,
    ) -> SleepOutcome {
        if !trust.is_muted() {
            trust.interval = INTERVAL_MIN;
        }
        trust.waker = Waker::Own;
        let mut left = timeout.unwrap_or(Duration::MAX);
        while !left.is_zero() {
            let is_muted = trust.is_muted();
            let at_intervals = is_muted || trust.rings_due > 0;
            let time = left.min(if at_intervals { trust.interval } else { trust.patience });
            let input = (!is_muted).then(|| self.stream.input.as_fd());
            let ready = stream::wait_readable([Some(self.nudge.as_fd()), input], time);
            let Ok([is_nudged, is_rung]) = ready else { return SleepOutcome::Unsupported };
            if is_nudged {
                self.nudge.clear();
                return SleepOutcome::Woken;
            }
            match (is_rung && !is_muted).then(|| stream::drain(self.stream.input.as_fd())) {
                Some(Drained::Ended) => {
                    trust.lose();
                    trust.muted_until = Some(Instant::now() + ENDED);
                }
                Some(Drained::Bytes) => {
                    trust.waker = Waker::Ring;
                    return SleepOutcome::Woken;
                }
                // Another reader may have taken the byte.
                Some(Drained::Nothing) | None => {
                    // An interruption by a signal counts as the end of the interval.
                    left = left.saturating_sub(time);
                    if at_intervals {
                        trust.interval = (trust.interval * 2).min(INTERVAL_MAX);
                    } else {
                        trust.patience = (trust.patience * 2).min(PATIENCE_MAX);
                    }
                    if is_changed() {
                        trust.waker = Waker::Word;
                        trust.lose();
                        return SleepOutcome::Woken;
                    }
                }
            }
        }
        SleepOutcome::TimedOut
    }

    /// Records whether the last sleep was followed by a message. A sleep without one counts only if the peer
    /// ended it, by a byte or a change of the word.
    pub(super) fn slept(&self, found: bool) {
        let mut trust = self.trust();
        if found {
            (trust.empty, trust.muted_for) = (0, MUTED_MIN);
            (trust.patience, trust.interval) = (PATIENCE_MIN, INTERVAL_MIN);
            if trust.waker == Waker::Ring {
                trust.gain();
            }
        } else if trust.waker != Waker::Own {
            trust.empty += 1;
            if trust.empty >= EMPTY_MAX {
                trust.empty = 0;
                trust.muted_until = Some(Instant::now() + trust.muted_for);
                trust.muted_for = (trust.muted_for * 2).min(MUTED_MAX);
            }
        }
    }

    fn trust(&self) -> MutexGuard<'_, Trust> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trust {
    fn new() -> Trust {
        Trust {
            rings_due: 0,
            rings_after_loss: 1,
            rings: 0,
            muted_until: None,
            muted_for: MUTED_MIN,
            patience: PATIENCE_MIN,
            interval: INTERVAL_MIN,
            empty: 0,
            waker: Waker::Own,
        }
    }

    /// Counts a loss, unless the bell is lost already.
    fn lose(&mut self) {
        if self.rings_due == 0 {
            self.rings_due = self.rings_after_loss;
            self.rings_after_loss = (self.rings_after_loss * 2).min(RINGS_MAX);
        }
        self.rings = 0;
    }

    /// Counts a ring with a message.
    fn gain(&mut self) {
        self.rings_due = self.rings_due.saturating_sub(1);
        self.rings = self.rings.saturating_add(1);
        if self.rings >= RINGS_MAX {
            self.rings_after_loss = 1;
        }
    }

    /// Returns `true` while the stream is ignored.
    fn is_muted(&mut self) -> bool {
        self.muted_until.take_if(|until| *until <= Instant::now());
        self.muted_until.is_some()
    }
}
