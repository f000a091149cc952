use super::inflight::InFlight;
use super::notifier::Notifier;
use super::queue::Queue;
use super::ring::{RingAddresses, Rings};
use super::worker::Worker;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What the front end has told us about one queue, and the thread that serves it.
#[derive(Default)]
pub(crate) struct QueueControl {
    pub(crate) queue: Arc<Queue>,
    pub(crate) size: u16,
    pub(crate) addresses: Option<RingAddresses>,
    /// The used ring in the guest's addresses, as the front end wants it logged.
    pub(crate) log_address: Option<u64>,
    /// Where to go on in the available ring.
    pub(crate) next: u16,
    /// What an earlier process has left under way and was not taken yet, the first last.
    pub(crate) again: Vec<u16>,
    pub(crate) kick: Kick,
    pub(crate) error_notifier: Option<Arc<Notifier>>,
    pub(crate) enabled: bool,
    /// Between the first start and GET_VRING_BASE.
    pub(crate) started: bool,
    /// As it was when it came to rest, until it starts again.
    pub(crate) left: Option<Left>,
    /// The guest broke the rules; nothing runs until it starts anew.
    pub(crate) faulty: bool,
    pub(crate) worker: Option<Worker>,
}

/// What a queue must have kept from GET_VRING_BASE to its next start to go on with what was under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    size: u16,
    addresses: Option<RingAddresses>,
    next: u16,
}

/// How the guest kicks.
#[derive(Default)]
pub(crate) enum Kick {
    /// Not told yet: the queue is stopped.
    #[default]
    Unset,
    /// It does not: the queue is polled.
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

    fn now(&self) -> Left {
        Left { size: self.size, addresses: self.addresses, next: self.next }
    }

    /// GET_VRING_BASE was answered.
    pub(crate) fn rest(&mut self) {
        self.queue.rest();
        self.left = Some(self.now());
        self.started = false;
    }

    /// Gives the queue its rings. When it starts as it was left, it goes on with what is under way: a virtual
    /// machine was paused. With other rings or another base it starts from nothing, and its guest waits for
    /// nothing: a reset. When its connection is new, what an earlier process has left under way is found;
    /// what that had taken begins behind what it had handed back.
    pub(crate) fn attached(
        &mut self,
        rings: Arc<Rings>,
        in_flight: Option<Arc<InFlight>>,
        is_first_start: bool,
        event_index: bool,
    ) -> Option<(Arc<Rings>, u64)> {
        if is_first_start {
            let left = self.left.take();
            if left == Some(self.now()) && self.queue.is_as_left(&rings).ok()? {
                if let Some(in_flight) = &in_flight {
                    in_flight.go_on().ok()?;
                }
            } else {
                self.queue.start();
                self.recover(&rings, in_flight.as_deref(), left.is_some())?;
            }
        }
        let run = self.queue.attach(rings.clone(), in_flight, event_index).ok()?;
        Some((rings, run))
    }

    fn recover(&mut self, rings: &Rings, in_flight: Option<&InFlight>, is_reset: bool) -> Option<()> {
        let Some(in_flight) = in_flight else { return Some(()) };
        let (used, available) = (rings.used_index().ok()?, rings.available_index().ok()?);
        self.again = match is_reset {
            true => in_flight.forget(used).ok()?,
            false => in_flight.recover(used, available).ok()?,
        };
        self.next = used.wrapping_add(u16::try_from(self.again.len()).ok()?);
        Some(())
    }

    /// Ends the thread, and remembers where it was.
    pub(crate) fn pause(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        match worker.stop() {
            Some(stopped) => {
                self.next = stopped.next;
                self.again = stopped.again;
                self.faulty |= stopped.faulty;
            }
            None => self.faulty = true,
        }
    }
}
