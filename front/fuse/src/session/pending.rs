//! Pending requests and their interruption by signals.
//!
//! Linux sends one INTERRUPT for a request whose thread received a signal, without the signal's number and
//! without a second INTERRUPT if a later signal is fatal. A signal with a handler ends waits for locks only,
//! as on local file systems. Any other request ends early only if its thread is being killed: no program sees
//! the reply then, and the killed process cannot exit before the reply. A thread of this process polls the
//! requesting thread's state in `/proc`, which does not show the threads of a guest: their requests continue.
//! The polling thread runs only while signalled requests are pending; most are answered before the first
//! poll.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tombolo_core::{Interrupt, lock};
use tombolo_sys::caller;
use tombolo_wire_fuse::Unique;

/// Maximum number of retained interrupts whose request was not pending.
const EARLY_MAX: usize = 64;

/// Interval at which the state of a signalled thread is polled; the first poll follows the signal within
/// about one interval.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Effect of a signal to the waiting thread on its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnSignal {
    /// The request, a wait for a lock, ends early.
    Interrupt,
    /// The request ends early if the signal kills this thread.
    InterruptIfKilled(u32),
    /// The request continues: the thread cannot be inspected.
    Ignore,
}

/// Pending requests by request number.
#[derive(Debug, Default)]
pub(super) struct Pending(Arc<PendingShared>);

#[derive(Debug)]
struct PendingShared {
    table: Mutex<PendingTable>,
    is_killed: fn(u32) -> bool,
}

#[derive(Debug, Default)]
struct PendingTable {
    requests: HashMap<Unique, Request>,
    /// Interrupts that overtook their request on another thread. Request numbers are never reused, so a stale
    /// entry interrupts nothing.
    early: VecDeque<Unique>,
    /// `true` while the polling thread runs.
    is_watched: bool,
}

#[derive(Debug)]
struct Request {
    interrupt: Interrupt,
    on_signal: OnSignal,
    is_signalled: bool,
}

impl Pending {
    /// Adds a request. An INTERRUPT received before its request takes effect at once.
    pub(super) fn add(&self, unique: Unique, interrupt: &Interrupt, on_signal: OnSignal) {
        let overtaken = {
            let mut table = lock(&self.0.table);
            let request = Request { interrupt: interrupt.clone(), on_signal, is_signalled: false };
            table.requests.insert(unique, request);
            let overtaken = table.early.iter().position(|early| *early == unique);
            overtaken.and_then(|index| table.early.remove(index)).is_some()
        };
        if overtaken {
            self.interrupt(unique);
        }
    }

    /// Removes a completed request.
    pub(super) fn remove(&self, unique: Unique) {
        lock(&self.0.table).requests.remove(&unique);
    }

    /// Handles an INTERRUPT: the waiting thread received a signal.
    pub(super) fn interrupt(&self, unique: Unique) {
        let mut table = lock(&self.0.table);
        let Some(request) = table.requests.get_mut(&unique) else {
            if table.early.len() >= EARLY_MAX {
                table.early.pop_front();
            }
            return table.early.push_back(unique);
        };
        match request.on_signal {
            OnSignal::Interrupt => {
                let interrupt = request.interrupt.clone();
                // The table is unlocked first, because the interrupt may continue the request on this thread.
                drop(table);
                interrupt.raise();
            }
            OnSignal::InterruptIfKilled(_) => {
                request.is_signalled = true;
                if !table.is_watched {
                    table.is_watched = self.0.watch();
                }
            }
            OnSignal::Ignore => {}
        }
    }

    /// Interrupts a request if it is pending, because the session ends.
    pub(super) fn interrupt_one(&self, unique: Unique) {
        self.0.raise(unique);
    }

    /// Interrupts all requests, because the session ends.
    pub(super) fn interrupt_all(&self) {
        let all: Vec<_> =
            lock(&self.0.table).requests.values().map(|request| request.interrupt.clone()).collect();
        all.iter().for_each(Interrupt::raise);
    }

    /// Returns the number of pending requests.
    pub(super) fn len(&self) -> usize {
        lock(&self.0.table).requests.len()
    }
}

impl Default for PendingShared {
    fn default() -> Self {
        Self { table: Mutex::default(), is_killed }
    }
}

impl PendingShared {
    fn raise(&self, unique: Unique) {
        let interrupt = lock(&self.table).requests.get(&unique).map(|request| request.interrupt.clone());
        interrupt.iter().for_each(Interrupt::raise);
    }

    /// Starts the polling thread. Returns `false` on failure.
    fn watch(self: &Arc<Self>) -> bool {
        let shared = self.clone();
        let run = move || {
            loop {
                std::thread::sleep(POLL_INTERVAL);
                if !shared.poll_signalled() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name("fuse-signals".into()).spawn(run);
        if let Err(error) = &started {
            tracing::warn!(%error, "cannot start the thread that checks for killed programs");
        }
        started.is_ok()
    }

    /// Interrupts the signalled requests of threads that are being killed. Returns `false` if no signalled
    /// request is pending.
    fn poll_signalled(&self) -> bool {
        let signalled: Vec<(Unique, u32)> = {
            let mut table = lock(&self.table);
            let signalled = table.requests.iter().filter_map(|(unique, request)| match request.on_signal {
                OnSignal::InterruptIfKilled(thread) if request.is_signalled => Some((*unique, thread)),
                _ => None,
            });
            let signalled = signalled.collect::<Vec<_>>();
            table.is_watched = !signalled.is_empty();
            signalled
        };
        for (unique, thread) in &signalled {
            if (self.is_killed)(*thread) {
                // Request numbers are unique: this is the same request, or it has been answered.
                self.raise(*unique);
            }
        }
        !signalled.is_empty()
    }
}

fn is_killed(thread: u32) -> bool {
    caller::is_being_killed(thread).unwrap_or_else(|error| {
        tracing::debug!(thread, %error, "cannot read a thread's state");
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports odd threads as being killed. Only the test polls.
    fn pending() -> Pending {
        let is_killed = |thread| thread % 2 == 1;
        let table = PendingTable { is_watched: true, ..PendingTable::default() };
        Pending(Arc::new(PendingShared { is_killed, table: Mutex::new(table) }))
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_still_reaches_it() {
        let pending = pending();
        let (first, second) = (Interrupt::new(), Interrupt::new());
        pending.interrupt(Unique(2));
        pending.add(Unique(4), &first, OnSignal::Interrupt);
        pending.add(Unique(2), &second, OnSignal::Interrupt);
        assert!(!first.is_raised());
        assert!(second.is_raised());
        pending.interrupt(Unique(4));
        assert!(first.is_raised());
    }

    #[test]
    fn interrupts_of_unknown_requests_do_not_pile_up() {
        let pending = pending();
        (0..10_000).for_each(|number| pending.interrupt(Unique(number)));
        assert!(lock(&pending.0.table).early.len() <= EARLY_MAX);
    }

    #[test]
    fn signals_interrupt_lock_waits_and_killed_threads() {
        let pending = pending();
        let all: Vec<_> = [
            OnSignal::Interrupt,
            OnSignal::InterruptIfKilled(2),
            OnSignal::InterruptIfKilled(3),
            OnSignal::Ignore,
        ]
        .into_iter()
        .zip(0..)
        .map(|(on_signal, number)| {
            let interrupt = Interrupt::new();
            pending.add(Unique(number), &interrupt, on_signal);
            pending.interrupt(Unique(number));
            interrupt
        })
        .collect();
        let raised = || all.iter().map(Interrupt::is_raised).collect::<Vec<_>>();
        assert_eq!(raised(), [true, false, false, false], "a handler may have run");
        assert!(pending.0.poll_signalled());
        assert_eq!(raised(), [true, false, true, false]);
        (0..4).for_each(|number| pending.remove(Unique(number)));
        assert!(
            !pending.0.poll_signalled() && !lock(&pending.0.table).is_watched,
            "nothing is left to look after"
        );
        pending.interrupt_all();
        assert!(!all[1].is_raised());
    }

    #[test]
    fn thread_killed_after_first_signal_is_noticed() {
        static KILLED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let is_killed = |_| KILLED.load(std::sync::atomic::Ordering::SeqCst);
        let pending = Pending(Arc::new(PendingShared { is_killed, ..PendingShared::default() }));
        let interrupt = Interrupt::new();
        pending.add(Unique(2), &interrupt, OnSignal::InterruptIfKilled(1));
        pending.interrupt(Unique(2));
        std::thread::sleep(3 * POLL_INTERVAL);
        assert!(!interrupt.is_raised());
        KILLED.store(true, std::sync::atomic::Ordering::SeqCst);
        let raised = interrupt.raised();
        tombolo_core::Answer::later(async move {
            raised.await;
            Ok(())
        })
        .wait()
        .expect("raised");
    }
}
