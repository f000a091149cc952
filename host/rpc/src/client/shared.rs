//! State shared by callers and the engine.

use std::sync::{Arc, Mutex, MutexGuard};

use tombolo_core::lock;

use super::counters::Counters;
use super::finished::Finished;
use super::sending::Job;
use super::state::ClientState;
use super::wire::Wire;
use crate::alarm::Alarm;
use tombolo_host_runtime::rate_limit::RateLimit;

/// Wire, counters, alarm and locked state of one client.
pub(super) struct SharedClient {
    pub(super) wire: Arc<dyn Wire>,
    pub(super) counters: Counters,
    pub(super) alarm: Alarm,
    pub(super) label: Arc<str>,
    /// `true` over UDP.
    pub(super) datagrams: bool,
    /// Rate limit of log messages about faulty connections.
    pub(super) faults: RateLimit,
    state: Mutex<ClientState>,
}

impl SharedClient {
    pub(super) fn new(wire: Arc<dyn Wire>, state: ClientState, alarm: Alarm) -> Arc<Self> {
        let (label, datagrams) = (state.callee(0).label, state.datagrams());
        let (counters, state) = (Counters::default(), Mutex::new(state));
        Arc::new(Self { wire, counters, alarm, label, datagrams, faults: RateLimit::default(), state })
    }

    /// Returns the callee for log messages, such as `HOST:PORT` or `USER@HOST`: the label up to `:/`.
    pub(super) fn host(&self) -> &str {
        self.label.split_once(":/").map_or(&*self.label, |(host, _)| host)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientState> {
        lock(&self.state)
    }

    /// Sends what is queued for this connection, unless another thread is sending.
    pub(super) fn pump(&self, index: usize, finished: &mut Finished) {
        let now = self.wire.now();
        let job = self.lock().begin_sending(index, now);
        self.send(job, finished);
    }

    /// Sends a batch, and batches queued for the same connection meanwhile.
    pub(super) fn send(&self, mut job: Option<Job>, finished: &mut Finished) {
        while let Some(mut sending) = job {
            let index = sending.index;
            let (bytes, progress) = sending.batch.send(&*sending.socket, self.datagrams);
            self.counters.sends.increment();
            self.counters.sent_bytes.add_len(bytes);
            let now = self.wire.now();
            let mut state = self.lock();
            let generation = state.connections.get(index).map(|connection| connection.generation);
            job = state.after_sending(sending, progress, now, finished);
            let lost = generation != state.connections.get(index).map(|connection| connection.generation);
            drop(state);
            if lost {
                // Only the engine reconnects.
                self.alarm.raise();
            }
        }
    }
}
