//! Whether a server that is silent can be reached. After a cut of the line TCP tries again at intervals that
//! have grown with the cut, and no attempt to connect that began in it ends sooner. So while a server is
//! silent another connection is tried again and again, each time from the start. The first one that is made
//! after some that were not shows that the line is back: calls are sent again over connections that are new.
//! One that is made at once shows that the server takes its time, and nothing is changed.

use std::time::{Duration, Instant};

use super::connection::{Connection, Phase};
use super::engine::Engine;
use super::state::{SILENT, State};
use super::wire::Socket;
use tombolo_sys::Errno;

/// A line on which no connection is made in this time is cut, or so long that its connections are left alone.
/// TCP tries again after 1 s, so that one lost packet is no cut.
const ANSWER: Duration = Duration::from_millis(1500);

/// Between two probes where the network says at once that the host cannot be reached.
const RETRY: Duration = Duration::from_secs(1);

/// Between two looks at a connection that is being made.
const LOOK: Duration = Duration::from_millis(50);

/// Between two probes while they tell of no cut.
const PAUSE: Duration = Duration::from_secs(5);

/// What is known of a silence.
#[derive(Default)]
pub(super) struct Probe {
    connecting: Option<(Box<dyn Socket>, Instant)>,
    /// A probe was not answered in this silence.
    was_cut: bool,
}

/// What a probe has come to.
enum Found {
    Nothing,
    /// The server's host answers.
    Reached,
    Unreachable,
}

impl Engine {
    /// Looks whether a server that is silent can be reached, and has calls sent again if it could not be and
    /// can now.
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
        let found = match self.probe.connecting.take() {
            Some((socket, since)) => self.look_at(socket, since, now),
            None => match self.shared.wire.probe(&target) {
                Ok(socket) => self.look_at(socket, now, now),
                Err(Errno::OPNOTSUPP) => {
                    self.shared.lock().has_no_probes = true;
                    return;
                }
                Err(_) => Found::Unreachable,
            },
        };
        let wait = match found {
            Found::Nothing if self.probe.connecting.is_some() => LOOK,
            Found::Nothing => Duration::ZERO,
            Found::Reached => PAUSE,
            Found::Unreachable => RETRY,
        };
        self.shared.lock().probe_at = Some(now + wait);
        match found {
            Found::Reached if std::mem::take(&mut self.probe.was_cut) => self.connect_anew(now),
            Found::Reached => {}
            Found::Unreachable => self.probe.was_cut = true,
            Found::Nothing => self.probe.was_cut |= self.probe.connecting.is_none(),
        }
    }

    fn look_at(&mut self, socket: Box<dyn Socket>, since: Instant, now: Instant) -> Found {
        match socket.finish_connecting() {
            // A host that refuses is there.
            Ok(()) | Err(Errno::CONNREFUSED) => {
                socket.shut_down();
                Found::Reached
            }
            Err(Errno::AGAIN) => {
                if now.saturating_duration_since(since) < ANSWER {
                    self.probe.connecting = Some((socket, since));
                }
                Found::Nothing
            }
            Err(_) => Found::Unreachable,
        }
    }

    /// Replaces the connections that waited for the line.
    fn connect_anew(&mut self, now: Instant) {
        tracing::debug!(callee = &*self.shared.label, "the line was cut and is back");
        let mut state = self.shared.lock();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let Some(connection) = state.connections.get(index) else { continue };
            let is_silent =
                connection.silent_since().is_some_and(|since| now.saturating_duration_since(since) >= SILENT);
            if !is_silent {
                continue;
            }
            // Nothing is said against the server.
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

impl State {
    /// Whether something is learnt from probes. Where a connection was refused it is known that the host can
    /// be reached.
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

    /// When the next probe is due, or a look at one.
    pub(super) fn probe_deadline(&self) -> Option<Instant> {
        let silent = self.silent_since().filter(|_| self.has_probes())?;
        Some(self.probe_at.unwrap_or(silent + SILENT))
    }
}
