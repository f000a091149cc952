//! Reachability probes of a silent server.
//!
//! During a network outage the intervals at which TCP retransmits grow, so that a connection, or an attempt
//! to make one, resumes long after the outage has ended. While a server is silent, fresh connections are
//! therefore attempted repeatedly. The first success after failures shows that the network is back: calls
//! are retransmitted over new connections. An immediate success shows that the server is merely slow, and
//! nothing is changed.

use std::time::{Duration, Instant};

use super::connection::{Connection, Phase};
use super::engine::Engine;
use super::state::{ClientState, SILENT};
use super::wire::Socket;
use tombolo_sys::Errno;

/// Time after which a probe without an answer counts as failed. TCP repeats a lost SYN after 1 s (RFC 6298),
/// so a single lost packet is no outage.
const ANSWER: Duration = Duration::from_millis(1500);

/// Interval of probes after one that failed with an error, as for an unreachable host.
const RETRY: Duration = Duration::from_secs(1);

/// Polling interval of a probe.
const LOOK: Duration = Duration::from_millis(50);

/// Interval of probes while they succeed.
const PAUSE: Duration = Duration::from_secs(5);

/// State of the probes during one silence.
#[derive(Default)]
pub(super) struct Probe {
    connecting: Option<(Box<dyn Socket>, Instant)>,
    /// `true` if a probe failed during this silence.
    was_cut: bool,
}

/// Result of a probe.
enum ProbeResult {
    /// No answer so far; the probe continues unless its time is over.
    Nothing,
    /// The server's host responds.
    Reached,
    /// Connecting failed with an error other than ECONNREFUSED.
    Unreachable,
}

impl Engine {
    /// Probes a silent server, and reconnects if it has become reachable again.
    pub(super) fn probe(&mut self, now: Instant) {
        let target = {
            let mut state = self.shared.lock();
            if !state.wants_probe(now) {
                state.probe_at = None;
                self.probe = Probe::default();
                return;
            }
            if state.probe_at.is_some_and(|at| at > now) {
                return;
            }
            state.target
        };
        let outcome = match self.probe.connecting.take() {
            Some((socket, since)) => self.poll_probe(socket, since, now),
            None => match self.shared.wire.probe(&target) {
                Ok(socket) => self.poll_probe(socket, now, now),
                Err(Errno::OPNOTSUPP) => {
                    self.shared.lock().has_no_probes = true;
                    return;
                }
                Err(_) => ProbeResult::Unreachable,
            },
        };
        let wait = match outcome {
            ProbeResult::Nothing if self.probe.connecting.is_some() => LOOK,
            ProbeResult::Nothing => Duration::ZERO,
            ProbeResult::Reached => PAUSE,
            ProbeResult::Unreachable => RETRY,
        };
        self.shared.lock().probe_at = Some(now + wait);
        match outcome {
            ProbeResult::Reached if std::mem::take(&mut self.probe.was_cut) => self.connect_anew(now),
            ProbeResult::Reached => {}
            ProbeResult::Unreachable => self.probe.was_cut = true,
            ProbeResult::Nothing => self.probe.was_cut |= self.probe.connecting.is_none(),
        }
    }

    fn poll_probe(&mut self, socket: Box<dyn Socket>, since: Instant, now: Instant) -> ProbeResult {
        match socket.finish_connecting() {
            // A host that refuses is reachable.
            Ok(()) | Err(Errno::CONNREFUSED) => {
                socket.shut_down();
                ProbeResult::Reached
            }
            Err(Errno::AGAIN) => {
                if now.saturating_duration_since(since) < ANSWER {
                    self.probe.connecting = Some((socket, since));
                }
                ProbeResult::Nothing
            }
            Err(_) => ProbeResult::Unreachable,
        }
    }

    /// Replaces the connections stalled by the outage.
    fn connect_anew(&mut self, now: Instant) {
        tracing::debug!(callee = &*self.shared.label, "network is back after an outage: reconnecting");
        let mut state = self.shared.lock();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let Some(connection) = state.connections.get(index) else { continue };
            let is_silent =
                connection.silent_since().is_some_and(|since| now.saturating_duration_since(since) >= SILENT);
            if !is_silent {
                continue;
            }
            // Without an error, the loss does not count as a failure of the calls.
            state.lose(index, None, now, &mut self.finished);
            *lane = None;
            if let Some(connection) = state.connections.get_mut(index)
                && matches!(connection.phase, Phase::Waiting { .. })
            {
                connection.phase = Phase::Waiting { until: now };
            }
        }
        drop(state);
        self.shared.alarm.raise();
    }
}

impl ClientState {
    /// Returns `true` if probes are useful. A refused connection already shows that the host is reachable.
    fn has_probes(&self) -> bool {
        let is_refused = |connection: &Connection| {
            matches!(connection.phase, Phase::Waiting { .. })
                && connection.last_error == Some(Errno::CONNREFUSED)
        };
        !self.has_no_probes && !self.connections.iter().any(is_refused)
    }

    fn wants_probe(&self, now: Instant) -> bool {
        let silent = self.silent_since().filter(|_| self.has_probes());
        silent.is_some_and(|since| now.saturating_duration_since(since) >= SILENT)
    }

    /// Returns the time of the next probe, or of the next poll of one.
    pub(super) fn probe_deadline(&self) -> Option<Instant> {
        let silent = self.silent_since().filter(|_| self.has_probes())?;
        Some(self.probe_at.unwrap_or(silent + SILENT))
    }
}
