//! The sessions of an export that receive change notifications.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// Subscribed sessions of an export whose session type is `S`. [`Watchers::any`] costs one load.
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
    /// Returns `true` if any session is subscribed. Must be called after a change and before its answer: a
    /// session that subscribes after the call discards all state that it cached before subscribing.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Subscribes a session until it ends. The session's first notice must be
    /// [`Everything`](super::Notice::Everything), since it was not notified of earlier changes.
    pub fn add(&self, session: Weak<S>) {
        self.keep(|sessions| {
            if !sessions.iter().any(|known| known.ptr_eq(&session)) {
                sessions.push(session);
            }
        });
    }

    /// Calls `tell` for each session that is subscribed when the call begins.
    pub fn tell(&self, mut tell: impl FnMut(&S)) {
        // The sessions are called outside of the lock, because dropping the last reference to one of them
        // takes the lock, in `ended`.
        let sessions = Arc::clone(&self.sessions.read().unwrap_or_else(PoisonError::into_inner));
        sessions.iter().filter_map(Weak::upgrade).for_each(|session| tell(&session));
    }

    /// Removes sessions that have ended; if none remains, calls `before_none` while [`Watchers::any`] is
    /// still `true`. Each session must call this when it is dropped.
    pub fn ended(&self, before_none: impl FnOnce()) {
        self.keep(|live| {
            if live.is_empty() && self.any() {
                before_none();
            }
        });
    }

    /// Drops ended sessions and applies `change` to the others.
    fn keep(&self, change: impl FnOnce(&mut Vec<Weak<S>>)) {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        let mut live: Vec<_> =
            sessions.iter().filter(|session| session.strong_count() > 0).cloned().collect();
        change(&mut live);
        *sessions = live.into();
        self.count.store(sessions.len(), Ordering::SeqCst);
    }
}
