//! A split virtqueue: chains are taken from the available ring by the queue's thread ([`AvailableSide`]), and
//! returned on the used ring by any thread ([`Queue`]).

use tombolo_host_runtime::lock;

use super::chain::{Chain, ChainToken};
use super::device::ChainLimits;
use super::dirty_log::QueueLog;
use super::fault::QueueFault;
use super::inflight::InFlight;
use super::memory::GuestMemory;
use super::notifier::Notifier;
use super::ring::{Rings, passes_event};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tombolo_mem::OutOfBounds;

/// Used side of a virtqueue, shared by all holders of its chains.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    used: Mutex<UsedSide>,
    /// Number of chains taken and not returned.
    outstanding: AtomicU32,
    /// `true` while the queue's thread handles a batch, after which it interrupts the guest if needed.
    batching: AtomicBool,
    drained: Condvar,
}

#[derive(Debug, Default)]
struct UsedSide {
    /// Number of the current run, which lasts from a start from scratch to the next, or to the end of the
    /// connection. Chains of earlier runs are dropped when they are returned.
    run: u64,
    rings: Option<Arc<Rings>>,
    in_flight: Option<Arc<InFlight>>,
    log: Option<Arc<QueueLog>>,
    event_index: bool,
    /// Used index, as published to the guest.
    next_used: u16,
    /// Used index when an interrupt was last considered.
    signalled: u16,
    call: Option<Arc<Notifier>>,
    /// `true` while a thread waits on `drained`.
    draining: bool,
    /// `true` from the end of GET_VRING_BASE to the next start: nothing is put on the used ring.
    is_stopped: bool,
    /// Chains returned while the queue is stopped: heads and numbers of bytes written.
    deferred: Vec<(u16, u32)>,
}

/// Available side of a virtqueue, owned by the queue's thread while it runs.
#[derive(Debug)]
pub(crate) struct AvailableSide {
    pub(crate) queue: Arc<Queue>,
    pub(crate) rings: Arc<Rings>,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) limits: ChainLimits,
    pub(crate) event_index: bool,
    pub(crate) run: u64,
    pub(crate) next: u16,
    pub(crate) in_flight: Option<Arc<InFlight>>,
    pub(crate) log: Option<Arc<QueueLog>>,
    /// Heads of the requests left under way by an earlier process, the latest first: `pop` takes the last.
    pub(crate) leftover: Vec<u16>,
}

impl Queue {
    /// Begins a run. The used ring continues at the index that it has in guest memory.
    pub(crate) fn start(&self) {
        let mut used = self.lock();
        used.forget_run();
        self.outstanding.store(0, Ordering::Relaxed);
    }

    /// Stops the queue: chains returned from now on are deferred until it continues, or dropped if it starts
    /// from scratch or the front end disconnects.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
    }

    /// Returns `true` if the queue is stopped, the used index in these rings is that of the stop, and the
    /// guest waits for at least as many chains as are not returned: the requests under way may continue.
    pub(crate) fn is_unchanged(&self, rings: &Rings) -> Result<bool, OutOfBounds> {
        let used = self.lock();
        let (at, available) = (rings.used_index()?, rings.available_index()?);
        let left = self.outstanding.load(Ordering::Acquire) as usize + used.deferred.len();
        Ok(used.is_stopped && at == used.next_used && usize::from(available.wrapping_sub(at)) >= left)
    }

    /// Attaches the rings, puts deferred chains on the used ring, and returns the number of the run. Called
    /// whenever the queue starts or continues, for instance after the guest's memory is replaced.
    pub(crate) fn attach(
        &self,
        rings: Arc<Rings>,
        in_flight: Option<Arc<InFlight>>,
        event_index: bool,
    ) -> Result<u64, QueueFault> {
        let mut used = self.lock();
        if used.rings.is_none() {
            used.next_used = rings.used_index()?;
            used.signalled = used.next_used;
        }
        used.event_index = event_index;
        used.in_flight = in_flight;
        used.rings = Some(rings);
        used.is_stopped = false;
        for (head, written) in std::mem::take(&mut used.deferred) {
            used.push_used(head, written);
        }
        let (run, notifier) = (used.run, used.due_notifier());
        drop(used);
        if let Some(notifier) = notifier {
            notifier.notify();
        }
        Ok(run)
    }

    /// Sets the log for chains returned from now on, and marks the whole used ring as written, because an
    /// earlier process may have died between a write and its mark.
    pub(crate) fn set_log(&self, log: Option<Arc<QueueLog>>) {
        let mut used = self.lock();
        if let Some(log) = &log {
            log.used_ring();
        }
        used.log = log;
    }

    /// Ends the run when the front end has disconnected.
    pub(crate) fn end(&self) {
        self.lock().forget_run();
    }

    /// Replaces the call descriptor. A running queue signals it at once: a completion may just have signalled
    /// the old one, which the guest no longer watches.
    pub(crate) fn set_call(&self, call: Option<Notifier>) {
        let call = call.map(Arc::new);
        let mut used = self.lock();
        used.call.clone_from(&call);
        let running = used.rings.is_some() && !used.is_stopped;
        drop(used);
        if let Some(notifier) = call.filter(|_| running) {
            notifier.notify();
        }
    }

    /// Waits until every chain taken has been returned. Returns `false` on timeout.
    pub(crate) fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut used = self.lock();
        used.draining = true;
        while self.outstanding.load(Ordering::Acquire) > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            used = self.drained.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        used.draining = false;
        self.outstanding.load(Ordering::Acquire) == 0
    }

    /// Puts a chain on the used ring, and interrupts the guest if requested and no batch is under way. A
    /// chain of an earlier run is dropped; while the queue is stopped, its chains are deferred.
    pub(super) fn hand_back(&self, run: u64, head: u16, written: u32) {
        let mut used = self.lock();
        if used.run != run {
            return;
        }
        // Decremented before the guest can see the reply and reuse its descriptors: `AvailableSide::pop`
        // would count the chain of the next request as one too many.
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        if used.is_stopped {
            return used.deferred.push((head, written));
        }
        used.push_used(head, written);
        if used.draining {
            self.drained.notify_all();
        }
        let notifier = if self.batching.load(Ordering::Relaxed) { None } else { used.due_notifier() };
        drop(used);
        if let Some(notifier) = notifier {
            notifier.notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, UsedSide> {
        // No panic leaves the state inconsistent.
        lock(&self.used)
    }
}

impl UsedSide {
    /// Ends the run: its chains are dropped, and the rings detached.
    fn forget_run(&mut self) {
        self.run += 1;
        self.rings = None;
        self.is_stopped = false;
        self.deferred.clear();
    }

    fn push_used(&mut self, head: u16, written: u32) {
        let Some(rings) = &self.rings else { return };
        let next = self.next_used.wrapping_add(1);
        // The buffers are logged before the entry is published: a process killed in between leaves the chain
        // to the next process, whereas no process would log the buffers of a published chain.
        if let Some(log) = &self.log {
            log.chain(&rings.table, head);
        }
        // The rings were checked when attached; an error would be a bug.
        let pushed =
            rings.set_used_entry(self.next_used, head, written).and_then(|()| match &self.in_flight {
                None => rings.set_used_index(next),
                Some(in_flight) => {
                    in_flight.start_return(head)?;
                    rings.set_used_index(next)?;
                    in_flight.finish_return(head, next)
                }
            });
        debug_assert!(pushed.is_ok());
        if let Some(log) = &self.log {
            log.used_ring();
        }
        self.next_used = next;
    }

    /// Returns the call descriptor if the guest wants an interrupt for chains returned since the last call of
    /// this function.
    fn due_notifier(&mut self) -> Option<Arc<Notifier>> {
        let (old, new) = (self.signalled, self.next_used);
        let rings = self.rings.as_ref()?;
        if old == new {
            return None;
        }
        self.signalled = new;
        // The used index must be visible before the driver's event index is read; the driver does the reverse
        // (2.7.7.1, 2.7.10).
        fence(Ordering::SeqCst);
        let wanted = if self.event_index {
            passes_event(rings.used_event().ok()?, new, old)
        } else {
            !rings.interrupts_unwanted().ok()?
        };
        if wanted { self.call.clone() } else { None }
    }
}

impl AvailableSide {
    /// Returns `true` if the guest has handed over chains that were not taken yet, or if an earlier process
    /// has left requests.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.rings.available_index().is_ok_and(|index| index != self.next) || !self.leftover.is_empty()
    }

    /// Takes the next chain, if there is one, and checks it; requests that an earlier process has left are
    /// first.
    #[inline]
    pub(crate) fn pop(&mut self) -> Result<Option<Chain>, QueueFault> {
        if let Some(head) = self.leftover.pop() {
            return self.begin(head).map(Some);
        }
        let size = self.rings.size;
        let index = self.rings.available_index()?;
        let ready = index.wrapping_sub(self.next);
        if ready == 0 {
            return Ok(None);
        }
        if ready > size {
            return Err(QueueFault::AvailableIndex { from: self.next, to: index, size });
        }
        if self.queue.outstanding.load(Ordering::Relaxed) >= u32::from(size) {
            return Err(QueueFault::TooManyOutstanding { size });
        }
        let head = self.rings.available_entry(self.next)?;
        let chain = self.begin(head)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(chain))
    }

    #[inline]
    fn begin(&self, head: u16) -> Result<Chain, QueueFault> {
        let (readable, writable) = self.rings.table.walk(&self.memory, head, self.limits)?;
        if let Some(in_flight) = &self.in_flight {
            // The queue is locked: the guest may reuse a head once it sees the used index, and `hand_back` on
            // another thread would then clear the in-flight flag of the new request.
            let _used = self.queue.lock();
            in_flight.take(head)?;
        }
        self.queue.outstanding.fetch_add(1, Ordering::Relaxed);
        let capacity = u32::try_from(writable.len()).unwrap_or(u32::MAX);
        let token = ChainToken::new(self.queue.clone(), self.run, head, capacity);
        Ok(Chain { readable, writable, token })
    }

    /// Begins a batch: interrupts are deferred until [`end_batch`](Self::end_batch).
    pub(crate) fn begin_batch(&self) {
        self.queue.batching.store(true, Ordering::Relaxed);
    }

    /// Ends a batch with one interrupt for all chains returned meanwhile.
    pub(crate) fn end_batch(&self) {
        self.queue.batching.store(false, Ordering::Relaxed);
        // A thread that returned a chain during the batch did so before this lock was acquired; a later one
        // sees that the batch has ended.
        let notifier = self.queue.lock().due_notifier();
        if let Some(notifier) = notifier {
            notifier.notify();
        }
    }

    /// Requests the guest not to send kicks.
    pub(crate) fn suppress_kicks(&self) -> Result<(), QueueFault> {
        // With an event index the available event keeps its old value, which suppresses kicks.
        if !self.event_index {
            self.rings.want_kicks(false)?;
            self.log_used_ring();
        }
        Ok(())
    }

    /// Requests kicks from now on. Returns `true` if the guest has handed over chains meanwhile, so that the
    /// thread must not sleep.
    pub(crate) fn ask_for_kicks(&self) -> Result<bool, QueueFault> {
        if self.event_index {
            self.rings.set_available_event(self.next)?;
        } else {
            self.rings.want_kicks(true)?;
        }
        self.log_used_ring();
        // The request must be visible before the last check.
        fence(Ordering::SeqCst);
        Ok(self.rings.available_index()? != self.next)
    }

    fn log_used_ring(&self) {
        if let Some(log) = &self.log {
            log.used_ring();
        }
    }

    /// Returns `true` if the queue's memory or its dirty log was truncated.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.memory.is_poisoned() || self.log.as_ref().is_some_and(|log| log.is_poisoned())
    }
}
