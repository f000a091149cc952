//! Fence between a client's links: a session begins when no request of the previous one is running.
//!
//! Thus a request sent over a lost link cannot take effect after requests of the next link, and idempotent
//! requests, above all positional writes, need no record of having been executed
//! (docs/decisions/links-sessions.md).

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_core::ClientId;
use tombolo_host_links::End;
use tombolo_host_links::server::LinkCutter;

/// The session of each client at each export.
#[derive(Debug, Default)]
pub(crate) struct ReconnectFence {
    inside: Mutex<HashMap<Whose, Arc<Mutex<Stage>>>>,
    /// Signalled when a session has ended.
    left: Condvar,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Whose {
    client: ClientId,
    export: Box<str>,
}

/// State of a session.
#[derive(Debug, Default)]
enum Stage {
    /// No link yet.
    #[default]
    Opened,
    Linked(LinkCutter),
    /// The client's next session is waiting for its end.
    Unwanted,
}

/// The only session of a client at an export, until dropped.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    fence: Arc<ReconnectFence>,
    whose: Whose,
    stage: Arc<Mutex<Stage>>,
}

impl ReconnectFence {
    /// Admits the next session of `client`. The previous one loses its link and is waited for; `None` if that
    /// takes longer than `timeout`. Of several waiters one is admitted, and the others wait for its end.
    pub(crate) fn enter(
        self: &Arc<Self>,
        export: &str,
        client: ClientId,
        timeout: Duration,
    ) -> Option<SessionGuard> {
        let whose = Whose { client, export: export.into() };
        let until = Instant::now() + timeout;
        let mut inside = lock(&self.inside);
        loop {
            let Some(former) = inside.get(&whose).cloned() else {
                let stage = Arc::<Mutex<Stage>>::default();
                inside.insert(whose.clone(), stage.clone());
                return Some(SessionGuard { fence: self.clone(), whose, stage });
            };
            // Unlocked: the session may be dropped together with its link.
            drop(inside);
            unwanted(&former);
            inside = lock(&self.inside);
            // The entry may by now belong to another session.
            while inside.get(&whose).is_some_and(|stage| Arc::ptr_eq(stage, &former)) {
                let patience = until.saturating_duration_since(Instant::now());
                if patience.is_zero() {
                    return None;
                }
                let waited = self.left.wait_timeout(inside, patience);
                inside = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Ends the session's link, now or as soon as it exists.
fn unwanted(stage: &Mutex<Stage>) {
    let stage = std::mem::replace(&mut *lock(stage), Stage::Unwanted);
    if let Stage::Linked(cutter) = stage {
        // The client has left that link, even if the server has not noticed yet.
        cutter.cut(End::Left);
    }
}

impl SessionGuard {
    /// Returns the client.
    pub(crate) fn client_id(&self) -> ClientId {
        self.whose.client
    }

    /// Registers the session's link.
    pub(crate) fn begun(&self, cutter: LinkCutter) {
        let mut stage = lock(&self.stage);
        if let Stage::Unwanted = *stage {
            drop(stage);
            cutter.cut(End::Left);
        } else {
            *stage = Stage::Linked(cutter);
        }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        lock(&self.fence.inside).remove(&self.whose);
        self.fence.left.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert!(lock(&fence.inside).is_empty(), "former sessions are forgotten");
    }

    #[test]
    fn a_waiting_session_enters_when_the_former_has_ended() {
        let fence = Arc::<ReconnectFence>::default();
        let former = fence.enter("a", client(1), LONG).expect("it has no session");
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
            while !matches!(*lock(&former.stage), Stage::Unwanted) {
                thread::yield_now();
            }
            assert!(heard.try_recv().is_err());
            drop(former);
            waiting.into_iter().for_each(|waiting| waiting.join().expect("it got in"));
        });
        assert_eq!(heard.try_iter().count(), 2);
    }
}
