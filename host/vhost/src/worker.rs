//! Thread of a running virtqueue: passes its chains to the device in batches, polls, and sleeps.

use super::device::{Device, QueueIndex};
use super::fault::QueueFault;
use super::notifier::{Notifier, Waiter, Waker};
use super::queue::AvailableSide;
use super::server::GuestId;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tombolo_host_runtime::polling::SpinWindow;

#[derive(Debug)]
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: JoinHandle<Stopped>,
}

#[derive(Debug)]
pub(crate) struct Stopped {
    /// Next position of the available ring.
    pub(crate) next: u16,
    /// Requests left by an earlier process and not taken yet; none unless a fault ended the thread.
    pub(crate) leftover: Vec<u16>,
    /// `true` if a fault ended the thread.
    pub(crate) faulty: bool,
}

/// Queue and parameters of a worker.
pub(crate) struct Job {
    pub(crate) guest: GuestId,
    pub(crate) index: QueueIndex,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) side: AvailableSide,
    pub(crate) waiter: Waiter,
    /// Signalled when a fault stops the queue.
    pub(crate) error_notifier: Option<Arc<Notifier>>,
    pub(crate) spin_max: Duration,
}

impl Worker {
    pub(crate) fn start(job: Job, waker: Waker) -> io::Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        // Thread names are truncated to 15 bytes.
        let name = format!("{}-{}", job.device.name(), job.index);
        let thread = thread::Builder::new().name(name).spawn(move || job.run(&stopping))?;
        Ok(Worker { stop, waker, thread })
    }

    /// Stops the thread after its current request and those left by an earlier process. Returns its final
    /// state, or `None` if it panicked.
    pub(crate) fn stop(self) -> Option<Stopped> {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.join().ok()
    }
}

/// Maximum number of chains per batch, after which the guest is interrupted if it wants that.
const BATCH_MAX: usize = 32;

/// Batching delay of non-urgent queues in milliseconds. The only such queue is that of virtio-fs for FORGET:
/// if it is full, Linux's driver retries after 1 ms, and no program waits.
const GATHER_MS: u32 = 2;

/// Polling interval of a queue whose guest cannot kick, in milliseconds.
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
        Stopped { next: self.side.next, leftover: self.side.leftover, faulty: outcome.is_err() }
    }

    fn serve(&mut self, stop: &AtomicBool) -> Result<(), QueueFault> {
        let urgent = self.device.is_urgent(self.index);
        let mut spinner = SpinWindow::new(if urgent { self.spin_max } else { Duration::ZERO });
        let timeout_ms = self.waiter.must_poll().then_some(POLL_MS);
        self.side.suppress_kicks()?;
        // Requests left by an earlier process count as taken, so they are handled even if the queue stops at
        // once.
        while !stop.load(Ordering::Acquire) || !self.side.leftover.is_empty() {
            if self.drain(stop)? {
                // More chains may follow soon without a kick.
                if !urgent && !self.side.has_work() {
                    self.sleep(Some(GATHER_MS));
                }
                continue;
            }
            if spinner.spin(|| self.side.has_work() || stop.load(Ordering::Relaxed)) {
                continue;
            }
            if self.side.ask_for_kicks()? {
                continue;
            }
            let asleep = Instant::now();
            self.sleep(timeout_ms);
            spinner.slept(asleep.elapsed());
            self.side.suppress_kicks()?;
        }
        self.side.ask_for_kicks().map(|_| ())
    }

    fn sleep(&self, timeout_ms: Option<u32>) {
        // Waiting on our own epoll fails only for lack of memory; retry soon.
        if self.waiter.wait(timeout_ms).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Passes available chains to the device, up to a batch. Returns `true` if there were any.
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
        let outcome = self.handle_batch(stop);
        // Called even if a fault follows the handled chains.
        let handled = AssertUnwindSafe(|| self.device.batch_handled(self.index));
        catch_unwind(handled).map_err(|_| QueueFault::Device)?;
        outcome
    }

    fn handle_batch(&mut self, stop: &AtomicBool) -> Result<(), QueueFault> {
        for _ in 0..BATCH_MAX {
            let Some(chain) = self.side.pop()? else { break };
            let handle = AssertUnwindSafe(|| self.device.handle(self.index, chain));
            // A panic of a device must not stop the guest's queue without a log line.
            catch_unwind(handle).map_err(|_| QueueFault::Device)?;
            if stop.load(Ordering::Relaxed) && self.side.leftover.is_empty() {
                break;
            }
        }
        Ok(())
    }
}
