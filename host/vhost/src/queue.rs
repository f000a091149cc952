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

/// One virtqueue: the side that hands chains back, shared by all that hold one.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    used: Mutex<UsedSide>,
    /// Chains taken and not handed back.
    outstanding: AtomicU32,
    /// The queue's thread is busy with a batch and will see at its end whether to interrupt the guest.
    batching: AtomicBool,
    drained: Condvar,
}

#[derive(Debug, Default)]
struct UsedSide {
    /// Counts the times the queue was started from nothing; chains of an earlier run are not handed back.
    run: u64,
    rings: Option<Arc<Rings>>,
    in_flight: Option<Arc<InFlight>>,
    log: Option<Arc<QueueLog>>,
    event_index: bool,
    next_used: u16,
    /// The used index when an interrupt was last considered.
    signalled: u16,
    call: Option<Arc<Notifier>>,
    /// A thread waits on `drained`.
    draining: bool,
    /// Between GET_VRING_BASE and the next start: nothing goes on the used ring.
    is_resting: bool,
    /// What came back while the queue rested: heads, and the bytes written for each.
    late: Vec<(u16, u32)>,
}

/// The side that takes chains: owned by the queue's thread while it runs.
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
    /// What an earlier process has left under way, the first last.
    pub(crate) again: Vec<u16>,
}

impl Queue {
    /// Begins a run: chains of earlier ones are forgotten, the used ring goes on where it stands in memory.
    pub(crate) fn start(&self) {
        let mut used = self.lock();
        used.forget_run();
        self.outstanding.store(0, Ordering::Relaxed);
    }

    /// The queue rests: what comes back from now on waits until it goes on, or is dropped when it starts from
    /// nothing.
    pub(crate) fn rest(&self) {
        self.lock().is_resting = true;
    }

    /// Whether these rings are as the queue has left them when it came to rest: the guest waits for all that
    /// was under way then.
    pub(crate) fn is_as_left(&self, rings: &Rings) -> Result<bool, OutOfBounds> {
        let used = self.lock();
        let (at, available) = (rings.used_index()?, rings.available_index()?);
        let left = self.outstanding.load(Ordering::Acquire) as usize + used.late.len();
        Ok(used.is_resting && at == used.next_used && usize::from(available.wrapping_sub(at)) >= left)
    }

    /// Gives the queue its rings; called for each run, when it goes on after a rest, and again when the
    /// guest's memory moves under it.
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
        used.is_resting = false;
        for (head, written) in std::mem::take(&mut used.late) {
            used.put(head, written);
        }
        let (run, notifier) = (used.run, used.due_notifier());
        drop(used);
        if let Some(notifier) = notifier {
            notifier.notify();
        }
        Ok(run)
    }

    /// What is handed back from now on is marked there. So is the used ring as it stands: a process that died
    /// may have owed it.
    pub(crate) fn set_log(&self, log: Option<Arc<QueueLog>>) {
        let mut used = self.lock();
        if let Some(log) = &log {
            log.used_ring();
        }
        used.log = log;
    }

    /// Ends a run: whatever comes back later is dropped.
    pub(crate) fn end(&self) {
        self.lock().forget_run();
    }

    /// Replaces the call descriptor. That of a running queue is signalled at once: a completion may just have
    /// signalled the old one, which the guest does not watch any more.
    pub(crate) fn set_call(&self, call: Option<Notifier>) {
        let call = call.map(Arc::new);
        let mut used = self.lock();
        used.call.clone_from(&call);
        let running = used.rings.is_some() && !used.is_resting;
        drop(used);
        if let Some(notifier) = call.filter(|_| running) {
            notifier.notify();
        }
    }

    /// Waits until every chain taken has been handed back; whether that happened in time.
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

    /// Puts a chain on the used ring, and interrupts the guest if it asked for that and no batch is under
    /// way.
    pub(super) fn hand_back(&self, run: u64, head: u16, written: u32) {
        let mut used = self.lock();
        if used.run != run {
            return;
        }
        // Before the guest can see the answer: it may hand the next chain over at once.
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        if used.is_resting {
            return used.late.push((head, written));
        }
        used.put(head, written);
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
        // Every change leaves the state whole, so a panic elsewhere does not make it wrong.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UsedSide {
    /// Chains of this run are not handed back any more.
    fn forget_run(&mut self) {
        self.run += 1;
        self.rings = None;
        self.is_resting = false;
        self.late.clear();
    }

    /// Puts a chain on the used ring.
    fn put(&mut self, head: u16, written: u32) {
        let Some(rings) = &self.rings else { return };
        let next = self.next_used.wrapping_add(1);
        // First: a process that is killed in between leaves the chain to the next one.
        if let Some(log) = &self.log {
            log.chain(&rings.table, head);
        }
        // The rings were checked when they were attached; an error here has no other cause than a bug.
        let put = rings.set_used_entry(self.next_used, head, written).and_then(|()| match &self.in_flight {
            None => rings.set_used_index(next),
            Some(in_flight) => {
                in_flight.hand_back(head)?;
                rings.set_used_index(next)?;
                in_flight.handed_back(head, next)
            }
        });
        debug_assert!(put.is_ok());
        if let Some(log) = &self.log {
            log.used_ring();
        }
        self.next_used = next;
    }

    /// The call descriptor, if the guest wants an interrupt for what was handed back since the last one.
    fn due_notifier(&mut self) -> Option<Arc<Notifier>> {
        let (old, new) = (self.signalled, self.next_used);
        let rings = self.rings.as_ref()?;
        if old == new {
            return None;
        }
        self.signalled = new;
        // The used index must be visible before we read what the driver wants; it does the same the other way
        // round (2.7.7.1, 2.7.10).
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
    /// Whether the guest has handed over chains that were not taken yet.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.rings.available_index().is_ok_and(|index| index != self.next) || !self.again.is_empty()
    }

    /// Takes the next chain, checked.
    #[inline]
    pub(crate) fn pop(&mut self) -> Result<Option<Chain>, QueueFault> {
        if let Some(head) = self.again.pop() {
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
            // The guest may give a head again when it sees the used index: before `hand_back` has taken the
            // head's mark away.
            let _used = self.queue.lock();
            in_flight.take(head)?;
        }
        self.queue.outstanding.fetch_add(1, Ordering::Relaxed);
        let capacity = u32::try_from(writable.len()).unwrap_or(u32::MAX);
        let token = ChainToken::new(self.queue.clone(), self.run, head, capacity);
        Ok(Chain { readable, writable, token })
    }

    /// Begins a batch: signals are held back until [`end_batch`](Self::end_batch).
    pub(crate) fn begin_batch(&self) {
        self.queue.batching.store(true, Ordering::Relaxed);
    }

    /// Ends a batch: one signal for all that came back meanwhile.
    pub(crate) fn end_batch(&self) {
        self.queue.batching.store(false, Ordering::Relaxed);
        // A thread that handed a chain back during the batch did so before we got this lock; one that does it
        // later sees that the batch has ended.
        let notifier = self.queue.lock().due_notifier();
        if let Some(notifier) = notifier {
            notifier.notify();
        }
    }

    /// Tells the guest that we are looking anyway.
    pub(crate) fn suppress_kicks(&self) -> Result<(), QueueFault> {
        // With an event index the old one stays behind, which suppresses kicks by itself.
        if !self.event_index {
            self.rings.want_kicks(false)?;
            self.log_used_ring();
        }
        Ok(())
    }

    /// Asks the guest to kick from now on; whether it has handed over chains meanwhile, so that the thread
    /// must not sleep.
    pub(crate) fn ask_for_kicks(&self) -> Result<bool, QueueFault> {
        if self.event_index {
            self.rings.set_available_event(self.next)?;
        } else {
            self.rings.want_kicks(true)?;
        }
        self.log_used_ring();
        // Our wish must be visible before we look a last time.
        fence(Ordering::SeqCst);
        Ok(self.rings.available_index()? != self.next)
    }

    fn log_used_ring(&self) {
        if let Some(log) = &self.log {
            log.used_ring();
        }
    }

    /// Whether the memory beneath the queue, or its dirty log, was truncated.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.memory.is_poisoned() || self.log.as_ref().is_some_and(|log| log.is_poisoned())
    }
}
