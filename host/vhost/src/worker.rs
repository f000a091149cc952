use super::device::{Device, QueueIndex};
use super::fault::QueueFault;
use super::notifier::{Notifier, Waiter, Waker};
use super::queue::AvailableSide;
use super::server::GuestId;
use std::hint;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The thread of one running virtqueue.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: JoinHandle<Stopped>,
}

/// How a worker came to rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped {
    /// The first position of the available ring that was not taken.
    pub(crate) next: u16,
    /// Whether the guest's fault ended it.
    pub(crate) faulty: bool,
}

/// What a worker serves.
pub(crate) struct Job {
    pub(crate) guest: GuestId,
    pub(crate) index: QueueIndex,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) side: AvailableSide,
    pub(crate) waiter: Waiter,
    /// Signalled when the queue stops by a fault.
    pub(crate) error_notifier: Option<Arc<Notifier>>,
    /// The longest time to poll for more work before sleeping.
    pub(crate) spin_max: Duration,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(job: Job, waker: Waker) -> io::Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        // Thread names are cut at 15 bytes.
        let name = format!("{}-{}", job.device.name(), job.index);
        let thread = thread::Builder::new().name(name).spawn(move || job.run(&seen))?;
        Ok(Worker { stop, waker, thread })
    }

    /// Waits for the request under way, takes no more, and ends the thread.
    pub(crate) fn stop(self) -> Option<Stopped> {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.join().ok()
    }
}

/// This many chains at most before the guest is told of those that are done.
const BATCH_MAX: usize = 32;

/// How often to poll a queue whose guest has no way to kick.
const POLL_MS: u32 = 1;

impl Job {
    fn run(mut self, stop: &AtomicBool) -> Stopped {
        let outcome = self.serve(stop);
        if let Err(fault) = &outcome {
            let (device, guest, queue) = (self.device.name(), self.guest, self.index);
            tracing::warn!(device, %guest, %queue, %fault, "queue stopped");
            if let Some(notifier) = &self.error_notifier {
                notifier.notify();
            }
        }
        Stopped { next: self.side.next, faulty: outcome.is_err() }
    }

    fn serve(&mut self, stop: &AtomicBool) -> Result<(), QueueFault> {
        let mut spinner = Spinner::new(self.spin_max);
        let timeout_ms = self.waiter.must_poll().then_some(POLL_MS);
        self.side.suppress_kicks()?;
        while !stop.load(Ordering::Acquire) {
            if self.drain(stop)? || spinner.spin(|| self.side.has_work() || stop.load(Ordering::Relaxed)) {
                continue;
            }
            if self.side.ask_for_kicks()? {
                continue;
            }
            let asleep = Instant::now();
            // Waiting on our own epoll fails only when the process is out of memory; then look again soon.
            if self.waiter.wait(timeout_ms).is_err() {
                thread::sleep(Duration::from_millis(1));
            }
            spinner.slept(asleep.elapsed());
            self.side.suppress_kicks()?;
        }
        self.side.ask_for_kicks().map(|_| ())
    }

    /// Hands what the guest has ready to the device, up to a batch; whether there was anything.
    fn drain(&mut self, stop: &AtomicBool) -> Result<bool, QueueFault> {
        if !self.side.has_work() {
            return Ok(false);
        }
        self.side.begin_batch();
        let outcome = self.batch(stop);
        self.side.end_batch();
        outcome?;
        if self.side.is_poisoned() {
            return Err(QueueFault::MemoryGone);
        }
        Ok(true)
    }

    fn batch(&mut self, stop: &AtomicBool) -> Result<(), QueueFault> {
        for _ in 0..BATCH_MAX {
            let Some(chain) = self.side.pop()? else { break };
            let handle = AssertUnwindSafe(|| self.device.handle(self.index, chain));
            // A bug in a device must not leave the guest with a queue that is silently dead.
            catch_unwind(handle).map_err(|_| QueueFault::Device)?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }
}

/// Looks for work for a while before the thread sleeps, when that has lately been worth it: a wake-up costs more than
/// many short waits, and a guest that waits for one answer at a time comes back within microseconds.
///
/// A look in vain is not repeated soon. Either the guest is idle, or it waits for the very core that we look from, and
/// then looking only keeps it away; yielding would hand the core to whoever else wants it, for milliseconds.
#[derive(Debug)]
struct Spinner {
    max: Duration,
    open: bool,
    /// Short sleeps until looking is tried again, and how many there were the last time.
    countdown: u32,
    patience: u32,
}

impl Spinner {
    const PATIENCE_MIN: u32 = 16;
    const PATIENCE_MAX: u32 = 1024;

    fn new(max: Duration) -> Spinner {
        Spinner { max, open: !max.is_zero(), countdown: 0, patience: Spinner::PATIENCE_MIN }
    }

    /// Whether work turned up.
    fn spin(&mut self, found: impl Fn() -> bool) -> bool {
        /// Looks between two looks at the clock.
        const LOOKS: u32 = 32;
        if !self.open {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if found() {
                    self.patience = Spinner::PATIENCE_MIN;
                    return true;
                }
                hint::spin_loop();
            }
            if start.elapsed() >= self.max {
                return false;
            }
        }
    }

    /// Called after each sleep: what it says about the next one.
    fn slept(&mut self, time: Duration) {
        let short = time <= self.max;
        if self.open {
            self.open = false;
            // An idle guest may come back any time. One that had work as soon as we slept is best left alone.
            self.countdown = if short { self.patience } else { 1 };
            self.patience =
                if short { (self.patience * 2).min(Spinner::PATIENCE_MAX) } else { self.patience };
        } else if short {
            self.countdown = self.countdown.saturating_sub(1);
            self.open = self.countdown == 0 && !self.max.is_zero();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_secs(1);

    #[test]
    fn an_idle_queue_does_not_poll_and_a_busy_one_does_again() {
        let mut spinner = Spinner::new(MAX);
        let start = Instant::now();
        assert!(!spinner.spin(|| false));
        assert!(start.elapsed() >= MAX);
        for _ in 0..5 {
            spinner.slept(LONG);
            assert!(!spinner.spin(|| true), "does not even look");
        }
        spinner.slept(SHORT);
        assert!(spinner.spin(|| true));
    }

    #[test]
    fn polling_in_vain_is_tried_ever_more_rarely() {
        let mut spinner = Spinner::new(MAX);
        for pause in [16, 32, 64, 128, 256, 512, 1024, 1024] {
            assert!(!spinner.spin(|| false));
            spinner.slept(SHORT);
            for _ in 0..pause {
                assert!(!spinner.spin(|| true));
                spinner.slept(SHORT);
            }
        }
        assert!(spinner.spin(|| true));
        assert!(!spinner.spin(|| false));
        spinner.slept(SHORT);
        assert_eq!(spinner.countdown, 16, "one success forgives");
    }

    #[test]
    fn a_queue_told_not_to_poll_never_does() {
        let mut spinner = Spinner::new(Duration::ZERO);
        for _ in 0..2000 {
            assert!(!spinner.spin(|| true));
            spinner.slept(Duration::ZERO);
        }
    }
}
