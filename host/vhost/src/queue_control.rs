//! Parameters and state of one queue of a connection, as the front end sets them.

use super::inflight::InFlight;
use super::notifier::Notifier;
use super::queue::Queue;
use super::ring::{RingAddresses, Rings};
use super::worker::Worker;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A queue's parameters from the front end, and the thread that serves it.
#[derive(Default)]
pub(crate) struct QueueControl {
    pub(crate) queue: Arc<Queue>,
    pub(crate) size: u16,
    pub(crate) addresses: Option<RingAddresses>,
    /// Guest address of the used ring for logging, as given by the front end.
    pub(crate) log_address: Option<u64>,
    /// Next index in the available ring.
    pub(crate) next: u16,
    /// Requests left under way by an earlier process and not taken yet, the latest first.
    pub(crate) leftover: Vec<u16>,
    pub(crate) kick: Kick,
    pub(crate) error_notifier: Option<Arc<Notifier>>,
    pub(crate) enabled: bool,
    /// `true` from the first start to GET_VRING_BASE or the end of the connection, also while the queue's
    /// thread is paused.
    pub(crate) started: bool,
    /// Parameters when the queue stopped, until it starts again.
    pub(crate) stopped_at: Option<StopState>,
    /// `true` after a fault, such as a protocol violation, until GET_VRING_BASE.
    pub(crate) faulty: bool,
    pub(crate) worker: Option<Worker>,
}

/// Parameters that must be unchanged from GET_VRING_BASE to the next start for requests under way to
/// continue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopState {
    size: u16,
    addresses: Option<RingAddresses>,
    next: u16,
}

/// Kick mechanism of the guest.
#[derive(Default)]
pub(crate) enum Kick {
    /// SET_VRING_KICK has not arrived since the queue was stopped, so it does not run.
    #[default]
    Unset,
    /// The front end gave no kick descriptor: the queue is polled.
    Never,
    Descriptor(OwnedFd),
}

impl QueueControl {
    pub(crate) fn is_ready(&self) -> bool {
        self.enabled && !self.faulty && self.size > 0
    }

    pub(crate) fn is_about_to_start(&self) -> bool {
        self.is_ready() && !self.started && self.addresses.is_some() && !matches!(self.kick, Kick::Unset)
    }

    fn stop_state(&self) -> StopState {
        StopState { size: self.size, addresses: self.addresses, next: self.next }
    }

    /// Stops the queue after GET_VRING_BASE, and records its parameters, which decide whether its requests
    /// continue at the next start.
    pub(crate) fn stop(&mut self) {
        self.queue.stop();
        self.stopped_at = Some(self.stop_state());
        self.started = false;
    }

    /// Attaches the rings. A paused queue (`is_first_start` is `false`) only gets its rings. A queue that
    /// starts with the parameters with which it stopped continues with its requests under way, because the
    /// virtual machine was paused. A queue with other rings or another base starts from scratch, because
    /// the guest was reset and waits for no request. On a new connection, requests that an earlier process
    /// left in the in-flight area are recovered, and new ones follow them. Returns the rings and the number
    /// of the run, or `None` if the rings or the in-flight area are not accessible.
    pub(crate) fn attach(
        &mut self,
        rings: Arc<Rings>,
        in_flight: Option<Arc<InFlight>>,
        is_first_start: bool,
        event_index: bool,
    ) -> Option<(Arc<Rings>, u64)> {
        if is_first_start {
            let stopped_at = self.stopped_at.take();
            if stopped_at == Some(self.stop_state()) && self.queue.is_unchanged(&rings).ok()? {
                if let Some(in_flight) = &in_flight {
                    in_flight.resume().ok()?;
                }
            } else {
                self.queue.start();
                self.recover(&rings, in_flight.as_deref(), stopped_at.is_some())?;
            }
        }
        let run = self.queue.attach(rings.clone(), in_flight, event_index).ok()?;
        Some((rings, run))
    }

    /// Recovers requests left under way, or clears their records if the guest `is_reset`.
    fn recover(&mut self, rings: &Rings, in_flight: Option<&InFlight>, is_reset: bool) -> Option<()> {
        let Some(in_flight) = in_flight else { return Some(()) };
        let (used, available) = (rings.used_index().ok()?, rings.available_index().ok()?);
        self.leftover = match is_reset {
            true => in_flight.clear(used).ok()?,
            false => in_flight.recover(used, available).ok()?,
        };
        self.next = used.wrapping_add(u16::try_from(self.leftover.len()).ok()?);
        Some(())
    }

    /// Stops the thread and records its position.
    pub(crate) fn pause(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        match worker.stop() {
            Some(stopped) => {
                self.next = stopped.next;
                self.leftover = stopped.leftover;
                self.faulty |= stopped.faulty;
            }
            None => self.faulty = true,
        }
    }
}
