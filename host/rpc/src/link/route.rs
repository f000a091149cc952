//! Route of a client to one server: a link, and the thread that replaces it when it is lost.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use tombolo_core::{Wakers, lock};
use tombolo_host_links::client::Line;

/// A factory of ONC RPC links to one export of one server.
pub trait Dial: Send + Sync {
    /// Connects a new link. May block for some seconds. All links of one `Dial` must be made as the same
    /// client ([`Incarnation`](tombolo_shm::link::Incarnation)): the server recognises retransmitted calls by
    /// the incarnation.
    ///
    /// # Errors
    /// No link can be made now; a later attempt may succeed.
    fn dial(&self) -> Result<Dialed, DialError>;
}

/// Reason why no link could be made.
pub type DialError = Box<dyn Error + Send + Sync>;

/// A new link, over which nothing has been sent yet.
pub struct Dialed {
    /// The client's end of the link.
    pub line: Line,
    /// Resources that must live as long as the link, such as its control socket.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Initial and maximum delay between attempts to reconnect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Route to one server. When its link is lost, a thread reconnects until it succeeds or the route is dropped.
pub struct Route {
    dial: Arc<dyn Dial>,
    label: Arc<str>,
    state: Mutex<RouteState>,
}

struct RouteState {
    /// Current link; `None` while there is none.
    live: Option<Arc<Live>>,
    /// `true` while a thread is reconnecting.
    is_searching: bool,
    /// Waiters for a link.
    waiters: Vec<Waker>,
    /// Reason why there is no link: the end of the last one, or the error of the last attempt.
    why: Arc<str>,
    /// Number of links made so far.
    links: u64,
}

/// A link in use.
pub(crate) struct Live {
    pub(super) line: Line,
    /// Waiters for bulk memory.
    space: Wakers,
    /// Lock held while a call takes the two spans that it needs in bulk memory, so that no other holder of
    /// the lock finds only one of them taken.
    pub(super) pair: Mutex<()>,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Route {
    /// Connects the first link of a route. `label` names the server in errors and logs.
    ///
    /// # Errors
    /// The link could not be made.
    pub fn start(dial: impl Dial + 'static, label: impl Into<Arc<str>>) -> Result<Arc<Self>, DialError> {
        let first = Live::new(dial.dial()?);
        let state = RouteState {
            live: Some(first),
            is_searching: false,
            waiters: Vec::new(),
            why: "".into(),
            links: 1,
        };
        Ok(Arc::new(Self { dial: Arc::new(dial), label: label.into(), state: Mutex::new(state) }))
    }

    /// Returns the name of the server for logs.
    #[must_use]
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// Returns the number of links made so far.
    #[must_use]
    pub fn links(&self) -> u64 {
        lock(&self.state).links
    }

    /// Returns the maximum length of one call's or reply's data, in bytes: the largest power of two within a
    /// quarter of the current link's bulk memory (of its smaller side), at least 4096; 4096 without a link.
    #[must_use]
    pub fn data_bytes_max(&self) -> u32 {
        let state = lock(&self.state);
        let quarter = state.live.as_ref().map_or(0, |live| {
            let line = &live.line;
            line.out_area().capacity_bytes().min(line.in_area().capacity_bytes()) / 4
        });
        // Every link can carry a page.
        let most = u32::try_from(quarter).unwrap_or(u32::MAX).max(4096);
        1 << most.ilog2()
    }

    /// Returns the current link. If there is none and a waiter is given, the waiter is woken once there is
    /// one, and a reconnect is started unless one is in progress.
    pub(crate) fn live(self: &Arc<Self>, waiter: Option<&Waker>) -> Option<Arc<Live>> {
        let mut state = lock(&self.state);
        if let (None, Some(waiter)) = (&state.live, waiter) {
            if !state.waiters.iter().any(|waker| waker.will_wake(waiter)) {
                state.waiters.push(waiter.clone());
            }
            let is_searched = std::mem::replace(&mut state.is_searching, true);
            drop(state);
            if !is_searched {
                self.dial_again();
            }
            return None;
        }
        state.live.clone()
    }

    /// Returns the reason why there is no link; empty before the first loss.
    pub(crate) fn why(&self) -> Arc<str> {
        lock(&self.state).why.clone()
    }

    /// Handles the loss of a link: wakes the waiters for memory of the link and, if it is the current one,
    /// starts to reconnect.
    pub(crate) fn lost(self: &Arc<Self>, lost: &Arc<Live>) {
        let was_live = {
            let mut state = lock(&self.state);
            let is_it = state.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, lost));
            state.is_searching |= is_it;
            if is_it { state.live.take() } else { None }
        };
        lost.memory_returned();
        if was_live.is_some() {
            let why = lost.line.end().map(|end| end.to_string()).unwrap_or_default();
            tracing::warn!(server = &*self.label, why, "link lost: reconnecting");
            lock(&self.state).why = why.into();
            self.dial_again();
        }
    }

    /// Starts the reconnect thread; `is_searching` must already be set.
    fn dial_again(self: &Arc<Self>) {
        let (route, dial) = (Arc::downgrade(self), self.dial.clone());
        let search = move || search(&route, &*dial);
        if let Err(error) = thread::Builder::new().name("link-again".into()).spawn(search) {
            tracing::error!(server = &*self.label, %error, "cannot start the reconnect thread");
            self.fail(&error);
            // The next waiter retries.
            lock(&self.state).is_searching = false;
        }
    }

    fn fail(&self, why: &dyn Error) {
        let text = full(why);
        tracing::debug!(server = &*self.label, why = text, "reconnect failed");
        lock(&self.state).why = text.into();
    }

    fn found(&self, dialed: Dialed) {
        let waiters = {
            let mut state = lock(&self.state);
            (state.live, state.is_searching) = (Some(Live::new(dialed)), false);
            state.links += 1;
            std::mem::take(&mut state.waiters)
        };
        tracing::warn!(server = &*self.label, "link reconnected");
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// Reconnects until it succeeds or the route is dropped.
fn search(route: &Weak<Route>, dial: &dyn Dial) {
    let mut pause = PAUSE.0;
    while route.strong_count() > 0 {
        let outcome = dial.dial();
        let Some(route) = route.upgrade() else { return };
        match outcome {
            Ok(dialed) => return route.found(dialed),
            Err(error) => route.fail(&*error),
        }
        drop(route);
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE.1);
    }
}

impl Live {
    fn new(Dialed { line, keep }: Dialed) -> Arc<Self> {
        Arc::new(Self { line, space: Wakers::default(), pair: Mutex::default(), _keep: keep })
    }

    /// Registers a waiter, to be woken when bulk memory is returned or the link is lost. The caller must
    /// check again afterwards.
    pub(crate) fn wait_for_memory(&self, waiter: &Waker) {
        self.space.add(waiter);
    }

    /// Wakes waiters after bulk memory was returned or the link was lost.
    pub(crate) fn memory_returned(&self) {
        self.space.changed();
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({})", self.label)
    }
}

/// Formats an error and its sources on one line.
fn full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    struct CallMessage(Sender<()>);

    impl Dial for CallMessage {
        fn dial(&self) -> Result<Dialed, DialError> {
            let _ = self.0.send(());
            Err("the server is down".into())
        }
    }

    #[test]
    fn waiter_restarts_missing_reconnect_thread() {
        let (asked, asks) = channel();
        // State after the reconnect thread could not be started.
        let state =
            RouteState { live: None, is_searching: false, waiters: Vec::new(), why: "".into(), links: 1 };
        let route = Arc::new(Route {
            dial: Arc::new(CallMessage(asked)),
            label: "".into(),
            state: Mutex::new(state),
        });
        assert!(route.live(Some(Waker::noop())).is_none());
        asks.recv_timeout(Duration::from_secs(20)).expect("a link is asked for");
        assert!(lock(&route.state).is_searching, "by one thread");
    }
}
