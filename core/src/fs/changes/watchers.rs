//! The sessions of an export that are told of changes.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// Sessions that want to be told, of an export whose sessions are `S`. While there are none, a change costs
/// one load.
pub struct Watchers<S> {
    count: AtomicUsize,
    sessions: RwLock<Arc<[Weak<S>]>>,
}

impl<S> Default for Watchers<S> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), sessions: RwLock::new(Arc::new([])) }
    }
}

impl<S> fmt::Debug for Watchers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<S> Watchers<S> {
    /// Whether any session is to be told. To be asked after the change, and before it is answered: a session
    /// that begins to watch later than that believes nothing that it learnt before.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// From when this returns, the session is told until it ends. Its first notice has to be
    /// [`Everything`](super::Notice::Everything).
    pub fn add(&self, session: Weak<S>) {
        self.keep(|sessions| {
            if !sessions.iter().any(|known| known.ptr_eq(&session)) {
                sessions.push(session);
            }
        });
    }

    /// Calls `tell` for each session. It must not add one.
    pub fn tell(&self, mut tell: impl FnMut(&S)) {
        // Outside of the lock: the last hold of a session may be the one that is dropped here.
        let sessions = Arc::clone(&self.sessions.read().unwrap_or_else(PoisonError::into_inner));
        sessions.iter().filter_map(Weak::upgrade).for_each(|session| tell(&session));
    }

    /// A session has ended.
    pub fn ended(&self) {
        self.keep(|_| {});
    }

    /// Keeps those that live, and what is done to them.
    fn keep(&self, change: impl FnOnce(&mut Vec<Weak<S>>)) {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        let mut kept: Vec<_> =
            sessions.iter().filter(|session| session.strong_count() > 0).cloned().collect();
        change(&mut kept);
        *sessions = kept.into();
        self.count.store(sessions.len(), Ordering::SeqCst);
    }
}
