//! Fence between a client's links: a session begins when no request of the previous one is running.
//!
//! Thus a request sent over a lost link cannot take effect after requests of the next link, and idempotent
//! requests, above all positional writes, need no record of having been executed
//! (docs/decisions/links-sessions.md).

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tombolo_core::{ClientId, lock};
use tombolo_host_links::EndReason;
use tombolo_host_links::server::LinkCutter;

/// The session of each client at each export.
#[derive(Debug, Default)]
pub(crate) struct ReconnectFence {
    sessions: Mutex<HashMap<SessionKey, Arc<Mutex<SessionStage>>>>,
    /// Signalled when a session has ended.
    session_ended: Condvar,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SessionKey {
    client: ClientId,
    export: Box<str>,
}

/// State of a session, as seen by the next session of its client.
#[derive(Debug, Default)]
enum SessionStage {
    /// The session has no link yet.
    #[default]
    Opened,
    Linked(LinkCutter),
    /// The client's next session is waiting for the end of this one.
    Superseded,
}

/// The only session of a client at an export, until dropped.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    fence: Arc<ReconnectFence>,
    key: SessionKey,
    stage: Arc<Mutex<SessionStage>>,
}

impl ReconnectFence {
    /// Admits the next session of `client`. The previous session loses its link, and its end is awaited;
    /// returns `None` if that takes longer than `timeout`. Of several waiting sessions one is admitted; the
    /// others then end that one in the same way.
    pub(crate) fn enter(
        self: &Arc<Self>,
        export: &str,
        client: ClientId,
        timeout: Duration,
    ) -> Option<SessionGuard> {
        let key = SessionKey { client, export: export.into() };
        let until = Instant::now() + timeout;
        let mut sessions = lock(&self.sessions);
        loop {
            let Some(previous) = sessions.get(&key).cloned() else {
                let stage = Arc::<Mutex<SessionStage>>::default();
                sessions.insert(key.clone(), stage.clone());
                return Some(SessionGuard { fence: self.clone(), key, stage });
            };
            // The table is unlocked first, because the session may be dropped together with its link.
            drop(sessions);
            supersede(&previous);
            sessions = lock(&self.sessions);
            // The entry may by now belong to another session.
            while sessions.get(&key).is_some_and(|stage| Arc::ptr_eq(stage, &previous)) {
                let remaining = until.saturating_duration_since(Instant::now());
                if remaining.is_zero() {
                    return None;
                }
                let waited = self.session_ended.wait_timeout(sessions, remaining);
                sessions = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Ends the session's link, now or as soon as it exists.
fn supersede(stage: &Mutex<SessionStage>) {
    let stage = std::mem::replace(&mut *lock(stage), SessionStage::Superseded);
    if let SessionStage::Linked(cutter) = stage {
        // The client has left that link, even if the server has not noticed yet.
        cutter.cut(EndReason::Left);
    }
}

impl SessionGuard {
    /// Returns the client's id, a part of its request keys.
    pub(crate) fn client_id(&self) -> ClientId {
        self.key.client
    }

    /// Registers the session's link. Cuts it at once if the client's next session is already waiting.
    pub(crate) fn begun(&self, cutter: LinkCutter) {
        let mut stage = lock(&self.stage);
        if let SessionStage::Superseded = *stage {
            drop(stage);
            cutter.cut(EndReason::Left);
        } else {
            *stage = SessionStage::Linked(cutter);
        }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        lock(&self.fence.sessions).remove(&self.key);
        self.fence.session_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    fn client(incarnation: u8) -> ClientId {
        ClientId([incarnation; 24])
    }

    #[test]
    fn a_client_has_one_session_of_each_export() {
        let fence = Arc::<ReconnectFence>::default();
        let first = fence.enter("a", client(1), Duration::ZERO).expect("it has no session");
        assert!(fence.enter("a", client(1), Duration::ZERO).is_none());
        let others =
            [fence.enter("b", client(1), Duration::ZERO), fence.enter("a", client(2), Duration::ZERO)];
        assert!(others.iter().all(Option::is_some));
        drop(first);
        drop(fence.enter("a", client(1), Duration::ZERO).expect("the former has left"));
        drop(others);
        assert!(lock(&fence.sessions).is_empty(), "former sessions are forgotten");
    }

    #[test]
    fn a_waiting_session_enters_when_the_former_has_ended() {
        let fence = Arc::<ReconnectFence>::default();
        let previous = fence.enter("a", client(1), LONG).expect("it has no session");
        let (told, heard) = mpsc::channel();
        thread::scope(|scope| {
            let waiting = [1, 2].map(|_| {
                let (fence, told) = (fence.clone(), told.clone());
                scope.spawn(move || {
                    let guard = fence.enter("a", client(1), LONG);
                    told.send(()).expect("the test listens");
                    // The other waiter waits for the end of this session.
                    drop(guard.expect("the former has left"));
                })
            });
            while !matches!(*lock(&previous.stage), SessionStage::Superseded) {
                thread::yield_now();
            }
            assert!(heard.try_recv().is_err());
            drop(previous);
            waiting.into_iter().for_each(|waiting| waiting.join().expect("it got in"));
        });
        assert_eq!(heard.try_iter().count(), 2);
    }
}
