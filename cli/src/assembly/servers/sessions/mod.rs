//! Sessions added to a running proxy.
//!
//! Each session is as independent as possible: it has a plan like that of a server, with its own origin,
//! options, front ends and subdirectory of the cache. Threads of its own create and end it, so that no
//! session waits for the origin of another, and a panic in one does not affect the others.

mod answers;
mod saved;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tombolo_host_runtime::signals::{self, UserSignal};
use tombolo_host_runtime::{lock, private};
use tombolo_host_service::control::{Answers, Start};

use super::{Places, Serving, Unfinished};
use crate::assembly::options::session::SessionOptions;
use crate::assembly::plan::Plan;
use crate::assembly::plan::cache::CachePlan;
use crate::assembly::plan::write_back::refuse_what_is_kept;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::service::sessions::{SessionState, SessionStatus};
use crate::service::status::{EndpointStatus, Status};
use crate::service::{Counted, DEFAULT_SESSION, Service};
use saved::Saved;

pub use answers::SessionAnswers;

/// All sessions of a proxy, including its own.
pub struct Sessions {
    service: Arc<Service>,
    /// Session of the proxy's command line.
    default: SessionStatus,
    /// Parent of the sessions' cache directories.
    dir: PathBuf,
    /// State directory of the proxy, for sessions without one.
    state: Option<PathBuf>,
    /// `true` if no session can be added: the sandbox is strict, or the proxy ends when unused.
    is_confined: bool,
    inner: Mutex<Inner>,
    /// Signalled when a session's state has changed, and when the proxy begins to end.
    changed: Condvar,
}

struct Inner {
    saved: Saved,
    sessions: BTreeMap<String, Session>,
    /// `true` once the proxy is ending.
    is_closing: bool,
}

struct Session {
    start: Start,
    status: SessionStatus,
    /// `None` before the session runs, and once its end has begun.
    serving: Option<Serving>,
}

/// Running servers of a session, with its status and counters.
type Opened = (Serving, Status, Counted);

/// First and longest delay between attempts to restore a session; the delay doubles each time.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl Sessions {
    /// Reads the record of sessions; [`resume`](Self::resume) restores them. Fails if there are any and the
    /// proxy cannot add sessions. `endpoints` are those of the proxy itself.
    pub fn new(
        plan: &Plan,
        cache: &CachePlan,
        endpoints: Vec<EndpointStatus>,
        service: &Arc<Service>,
    ) -> Result<Arc<Self>, Failure> {
        let saved = Saved::read(&cache.dir)?;
        let is_confined = !plan.takes_sessions();
        if is_confined && let Some(name) = saved.all().keys().next() {
            return Err(has_no_room(&format!("restore session {name}")));
        }
        Ok(Arc::new(Self {
            service: Arc::clone(service),
            default: SessionStatus { endpoints, ..shown(DEFAULT_SESSION, plan, SessionState::Running) },
            dir: cache.dir.join("sessions"),
            state: plan.state.clone(),
            is_confined,
            inner: Mutex::new(Inner { saved, sessions: BTreeMap::new(), is_closing: false }),
            changed: Condvar::new(),
        }))
    }

    /// Handles signals from now on: SIGUSR1 flushes all changes to the origins, SIGUSR2 invalidates all
    /// caches.
    pub fn obey_signals(&self) -> Outcome {
        let service = Arc::downgrade(&self.service);
        let obeyed = signals::on_user_signals(move |signal| {
            let Some(service) = service.upgrade() else { return };
            tracing::info!(invalidates = signal == UserSignal::Two, "flushing all changes on signal");
            service.answer(if signal == UserSignal::One { "flush" } else { "invalidate" });
        });
        obeyed.or_cannot("wait for signals")
    }

    /// Begins to restore the sessions of the previous run; failed attempts are repeated.
    pub fn resume(self: &Arc<Self>) {
        let saved = lock(&self.inner).saved.all().clone();
        for (name, start) in saved {
            let status = SessionStatus {
                name: name.clone(),
                state: SessionState::Starting,
                source: start.command.get(1).cloned().unwrap_or_default(),
                export: format!("/{name}"),
                cache: self.dir.join(&name).display().to_string(),
                ..SessionStatus::default()
            };
            lock(&self.inner)
                .sessions
                .insert(name.clone(), Session { start: start.clone(), status, serving: None });
            self.in_thread(&name, move |sessions, name| sessions.bring_back(name, &start));
        }
    }

    fn bring_back(&self, name: &str, start: &Start) {
        let mut pause = RETRY.0;
        loop {
            let made = self.plan(name, start).and_then(|plan| self.make(name, &plan));
            let Err(failure) = made else { return };
            tracing::warn!(session = name, "{failure}; will be retried");
            if !self.put_state(name, SessionState::Waiting, Some(failure)) {
                return;
            }
            let inner = lock(&self.inner);
            let goes_on =
                |inner: &mut Inner| !inner.is_closing && inner.is(name, start, SessionState::Waiting);
            let waited = self.changed.wait_timeout_while(inner, pause, goes_on);
            let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if !goes_on(&mut inner) {
                return;
            }
            inner.put_state(name, SessionState::Starting, None);
            pause = RETRY.1.min(pause * 2);
        }
    }

    /// Validates the options and begins to create the session.
    fn create(self: &Arc<Self>, name: &str, start: Start) -> Outcome {
        let making = format!("create session {name}");
        if self.is_confined {
            return Err(has_no_room(&making));
        }
        let plan = self.plan(name, &start)?;
        let status = shown(name, &plan, SessionState::Starting);
        if status.export == self.default.export {
            let taken = format!("the proxy already serves {}", status.export);
            return Err(Failure::cannot(making, taken).remedy("choose another name"));
        }
        {
            let mut inner = lock(&self.inner);
            let before = inner.sessions.get(name).map(|session| session.status.state);
            match before {
                _ if inner.is_closing => return Err(Failure::cannot(making, "the proxy is ending")),
                None | Some(SessionState::Failed | SessionState::Ended | SessionState::Kept) => {}
                Some(state) => {
                    return Err(Failure::cannot(
                        making,
                        format!("the name is used by a session that is {state}"),
                    )
                    .remedy(format_args!(
                        "choose another name, or detach it: tombolo session detach {name}"
                    )));
                }
            }
            inner.sessions.insert(name.into(), Session { start: start.clone(), status, serving: None });
        }
        self.in_thread(name, move |sessions, name| {
            let dir = sessions.dir.join(name);
            let is_new = !dir.exists();
            let made = sessions.make(name, &plan).and_then(|()| sessions.save(name, &start));
            if let Err(failure) = made {
                if is_new && refuse_what_is_kept("remove it", &dir, "").is_ok() {
                    // The cache directory of a session that never ran contains nothing worth retaining.
                    let _ = fs::remove_dir_all(&dir);
                    let _ = fs::remove_dir(&sessions.dir);
                }
                tracing::error!(session = name, "{failure}");
                sessions.put_state(name, SessionState::Failed, Some(failure));
            }
        });
        Ok(())
    }

    fn plan(&self, name: &str, start: &Start) -> Result<Plan, Failure> {
        let options = SessionOptions::of_words(&start.command, &start.directory)?;
        if options.name.as_str() != name {
            return Err(Failure::usage(format!("the source is exported as {}, not {name}", options.name)));
        }
        let SessionOptions { name, mut server, cache } = options;
        server.control = None;
        if let [tree] = server.dir.as_mut_slice() {
            tree.name = Some(format!("/{name}").parse().map_err(|error: String| Failure::usage(error))?);
        }
        let mut plan = Plan::of_proxy(server, self.dir.join(name.as_str()), cache)?;
        plan.state = plan.state.or_else(|| self.state.clone());
        Ok(plan)
    }

    /// Opens and serves the session. Its endpoints and counters are shown once all of it is served.
    fn make(&self, name: &str, plan: &Plan) -> Outcome {
        private::directory(&self.dir).or_cannot(format_args!("create directory {}", self.dir.display()))?;
        let open = || -> Result<Opened, Failure> {
            let (mut serving, status, counted) = Serving::open(plan, Places::take(plan)?)?;
            serving.admit(plan)?;
            Ok((serving, status, counted))
        };
        let opened = catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| Err(fault(name)));
        let (serving, status, counted) = opened?;
        let mut inner = lock(&self.inner);
        if inner.is_closing {
            drop(inner);
            drop(serving);
            return Err(Failure::cannot(format_args!("create session {name}"), "the proxy is ending"));
        }
        let Some(session) = inner.sessions.get_mut(name) else { return Ok(()) };
        let endpoints = status.endpoints.clone();
        session.status = SessionStatus { endpoints, ..shown(name, plan, SessionState::Running) };
        session.serving = Some(serving);
        self.service.add(name, status, counted);
        tracing::info!(session = name, source = session.status.source, "session added");
        self.changed.notify_all();
        Ok(())
    }

    /// Records the session for the next start; ends it if that fails.
    fn save(&self, name: &str, start: &Start) -> Outcome {
        let saved = {
            let mut inner = lock(&self.inner);
            // The session may have been detached meanwhile.
            let is_there = inner.sessions.get(name).is_some_and(|session| session.serving.is_some());
            if is_there { inner.saved.put(name, start) } else { Ok(()) }
        };
        if saved.is_err() {
            let serving = lock(&self.inner).sessions.get_mut(name).and_then(|session| session.serving.take());
            self.let_go(name, serving);
        }
        saved
    }

    /// Begins to end a session, or forgets one that does not run and has no unsent changes.
    fn detach(self: &Arc<Self>, name: &str) -> Outcome {
        let ending = format!("end session {name}");
        if name == DEFAULT_SESSION {
            let problem = "it is the proxy's own session";
            let remedy = format!("end the proxy: kill {}", std::process::id());
            return Err(Failure::cannot(ending, problem).remedy(remedy));
        }
        let mut inner = lock(&self.inner);
        if inner.is_closing {
            // `end` has taken the servers of all sessions, and would wait for ever for one that begins to end
            // now.
            return Err(Failure::cannot(ending, "the proxy is ending"));
        }
        let Some(session) = inner.sessions.get_mut(name) else {
            return Err(
                Failure::cannot(ending, "no session has that name").remedy("see tombolo session list")
            );
        };
        match session.status.state {
            SessionState::Starting => Err(Failure::cannot(ending, "it is being created").remedy("try again")),
            SessionState::Ending => Ok(()),
            SessionState::Running => {
                let serving = session.serving.take();
                inner.put_state(name, SessionState::Ending, None);
                drop(inner);
                self.in_thread(name, move |sessions, name| sessions.end_one(name, serving));
                Ok(())
            }
            SessionState::Ended | SessionState::Waiting | SessionState::Failed | SessionState::Kept => {
                let remedy =
                    format!("create it again (tombolo session create {name} …) once its origin is reachable");
                refuse_what_is_kept(&ending, &self.dir.join(name), &remedy)?;
                inner.saved.remove(name)?;
                inner.sessions.remove(name);
                self.changed.notify_all();
                Ok(())
            }
        }
    }

    fn end_one(&self, name: &str, serving: Option<Serving>) {
        let Some(mut serving) = serving else { return };
        let ended = catch_unwind(AssertUnwindSafe(|| serving.end()));
        let ended = ended.unwrap_or_else(|_| Err(Unfinished::Changes(fault(name))));
        self.let_go(name, Some(serving));
        let is_kept = matches!(ended, Err(Unfinished::Changes(_)));
        let forgotten = if is_kept { Ok(()) } else { lock(&self.inner).saved.remove(name) };
        let left = match (ended, forgotten) {
            (Ok(()), Ok(())) => None,
            (Err(Unfinished::Changes(failure)), _) => Some((SessionState::Kept, failure)),
            (Err(Unfinished::Conflicts(failure)), _) | (_, Err(failure)) => {
                Some((SessionState::Ended, failure))
            }
        };
        match left {
            Some((state, failure)) => {
                tracing::error!(session = name, "{failure}");
                self.put_state(name, state, Some(failure));
            }
            None => {
                tracing::info!(session = name, "session ended: all changes are at its origin");
                lock(&self.inner).sessions.remove(name);
            }
        }
        self.changed.notify_all();
    }

    fn let_go(&self, name: &str, serving: Option<Serving>) {
        self.service.remove(name);
        drop(serving);
    }

    /// Ends all added sessions in parallel. Unsent changes are retained for the next start, which restores
    /// all recorded sessions.
    pub fn end(&self) -> Outcome {
        let running: Vec<_> = {
            let mut inner = lock(&self.inner);
            inner.is_closing = true;
            self.changed.notify_all();
            let running = inner.sessions.iter_mut();
            running.filter_map(|(name, session)| Some((name.clone(), session.serving.take()?))).collect()
        };
        let failures: Vec<Failure> = thread::scope(|scope| {
            let ending = running.into_iter().map(|(name, mut serving)| {
                scope.spawn(move || {
                    let ended = serving.end().map_err(Failure::from);
                    self.let_go(&name, Some(serving));
                    ended.map_err(|failure| failure.of_session(&name))
                })
            });
            let ending: Vec<_> = ending.collect();
            ending.into_iter().filter_map(|ended| ended.join().ok()?.err()).collect()
        });
        // Sessions that are ending by request of a tool.
        let is_ending = |inner: &mut Inner| {
            inner.sessions.values().any(|session| session.status.state == SessionState::Ending)
        };
        drop(self.changed.wait_while(lock(&self.inner), is_ending).unwrap_or_else(PoisonError::into_inner));
        failures.iter().for_each(|failure| tracing::error!("{failure}"));
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    fn statuses(&self) -> Vec<SessionStatus> {
        let inner = lock(&self.inner);
        let others = inner.sessions.values().map(|session| session.status.clone());
        std::iter::once(self.default.clone()).chain(others).collect()
    }

    /// Sets the state of a session; returns `false` if there is none of that name.
    fn put_state(&self, name: &str, state: SessionState, failure: Option<Failure>) -> bool {
        let is_there = lock(&self.inner).put_state(name, state, failure);
        self.changed.notify_all();
        is_there
    }

    fn in_thread(self: &Arc<Self>, name: &str, work: impl FnOnce(&Self, &str) + Send + 'static) {
        let (sessions, of) = (Arc::clone(self), name.to_owned());
        let started = thread::Builder::new().name("session".into()).spawn(move || work(&sessions, &of));
        if let Err(error) = started {
            let failure = Failure::cannot(format_args!("start a thread for session {name}"), &error);
            self.put_state(name, SessionState::Failed, Some(failure));
        }
    }
}

impl Inner {
    fn is(&self, name: &str, start: &Start, state: SessionState) -> bool {
        let session = self.sessions.get(name);
        session.is_some_and(|session| session.start == *start && session.status.state == state)
    }

    fn put_state(&mut self, name: &str, state: SessionState, failure: Option<Failure>) -> bool {
        let Some(session) = self.sessions.get_mut(name) else { return false };
        session.status.state = state;
        session.status.failure = failure.map(|failure| failure.to_string());
        if state != SessionState::Running {
            session.status.endpoints.clear();
        }
        true
    }
}

fn has_no_room(doing: &str) -> Failure {
    Failure::cannot(doing, "the proxy's sandbox permits only its own tree")
        .remedy("start another proxy, or this one with --sandbox auto and without --end-when-unused")
}

fn fault(name: &str) -> Failure {
    Failure::cannot(format_args!("continue session {name}"), "internal error; see the log")
}

/// Returns the status of a session from its plan.
fn shown(name: &str, plan: &Plan, state: SessionState) -> SessionStatus {
    let (export, cache) = (plan.exports.first(), plan.cache.as_ref());
    SessionStatus {
        name: name.into(),
        state,
        source: export.map(|export| export.tree.to_string()).unwrap_or_default(),
        export: export.map(|export| export.name.to_string()).unwrap_or_default(),
        cache: cache.map(|cache| cache.dir.display().to_string()).unwrap_or_default(),
        mode: cache.map(|cache| cache.mode().to_owned()).unwrap_or_default(),
        contract: cache.map(CachePlan::contract).unwrap_or_default(),
        ..SessionStatus::default()
    }
}
