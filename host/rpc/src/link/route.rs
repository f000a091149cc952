//! The route to one server: a link, and another one when it is lost.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use super::bulk_space::BulkSpace;
use tombolo_host_links::client::Line;
use tombolo_host_runtime::lock;

/// Makes links to one export of one server, on which ONC RPC is spoken.
pub trait Dial: Send + Sync {
    /// A link, over which nothing was sent yet. It may block for some seconds. All links of one `Dial` must
    /// be asked for as the same client ([`Incarnation`](tombolo_shm::link::Incarnation)), for by that the
    /// server tells a call that comes again from a new one.
    ///
    /// # Errors
    /// There is none now; there may be one later.
    fn dial(&self) -> Result<Dialed, DialError>;
}

/// Why there is no link.
pub type DialError = Box<dyn Error + Send + Sync>;

/// A link, over which nothing was sent yet.
pub struct Dialed {
    /// The link.
    pub line: Line,
    /// What must live as long as the link: the socket whose end is its end, say.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// How long to wait before a link is asked for again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The route to one server. When its link is lost, a thread reconnects until it succeeds or the route is
/// dropped.
pub struct Route {
    dial: Arc<dyn Dial>,
    label: Arc<str>,
    state: Mutex<RouteState>,
}

struct RouteState {
    /// None while there is no link.
    live: Option<Arc<Live>>,
    /// A thread asks for one.
    is_searching: bool,
    /// The waiters for one.
    waiters: Vec<Waker>,
    /// Why the last attempt to make one has failed.
    why: Arc<str>,
    /// How many links there have been.
    links: u64,
}

/// A link in use.
pub(crate) struct Live {
    pub(super) line: Line,
    pub(super) room: BulkSpace,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Route {
    /// A route over links that `dial` makes, the first of them at once. `label` says in errors and logs where
    /// it leads.
    ///
    /// # Errors
    /// There is no link.
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

    /// Where it leads.
    #[must_use]
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// How many links there have been.
    #[must_use]
    pub fn links(&self) -> u64 {
        lock(&self.state).links
    }

    /// So much data of a call or a reply fits in the bulk memory of the present link beside that of others; a
    /// power of two.
    #[must_use]
    pub fn data_bytes_max(&self) -> u32 {
        let state = lock(&self.state);
        let quarter = state.live.as_ref().map_or(0, |live| {
            let line = &live.line;
            line.out_area().capacity_bytes().min(line.in_area().capacity_bytes()) / 4
        });
        // Any link can carry a page.
        let most = u32::try_from(quarter).unwrap_or(u32::MAX).max(4096);
        1 << most.ilog2()
    }

    /// The present link. None while there is none; then the waiter, if there is one, is woken when that has
    /// changed, and another link is asked for if there was no thread for that when the last one was lost.
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

    /// Why there is no link.
    pub(crate) fn why(&self) -> Arc<str> {
        lock(&self.state).why.clone()
    }

    /// A call has found that this link is lost. Another one is asked for, unless that is so already.
    pub(crate) fn lost(self: &Arc<Self>, lost: &Arc<Live>) {
        let was_live = {
            let mut state = lock(&self.state);
            let is_it = state.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, lost));
            state.is_searching |= is_it;
            if is_it { state.live.take() } else { None }
        };
        lost.room.changed();
        if was_live.is_some() {
            let why = lost.line.end().map(|end| end.to_string()).unwrap_or_default();
            tracing::warn!(server = &*self.label, why, "link lost: reconnecting");
            lock(&self.state).why = why.into();
            self.dial_again();
        }
    }

    /// Begins the search that was just noted.
    fn dial_again(self: &Arc<Self>) {
        let (route, dial) = (Arc::downgrade(self), self.dial.clone());
        let search = move || search(&route, &*dial);
        if let Err(error) = thread::Builder::new().name("link-again".into()).spawn(search) {
            tracing::error!(server = &*self.label, %error, "cannot start the reconnect thread");
            self.fail(&error);
            // The next waiter tries again.
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

/// Asks for a link until there is one. It does not keep the route.
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
        Arc::new(Self { line, room: BulkSpace::default(), _keep: keep })
    }

    /// Has the waiter woken when there may be bulk memory, or the link is lost. Look again after this.
    pub(crate) fn wait_for_room(&self, waiter: &Waker) {
        self.room.wait(waiter);
    }

    /// Bulk memory may have been given back.
    pub(crate) fn gave_back(&self) {
        self.room.changed();
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({})", self.label)
    }
}

/// An error with its sources, in one line.
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
    fn a_waiter_on_a_route_without_a_search_starts_one() {
        let (asked, asks) = channel();
        // As when there was no thread for it.
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
