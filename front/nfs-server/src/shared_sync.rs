//! Group commit: concurrent callers share one sync.
//!
//! A sync covers the changes made before it began. Callers that arrive while one is running need another one,
//! but can all share the next. Sharing is only an optimisation: a caller whose shared sync was not attempted
//! syncs by itself.

use std::future::Future;
use std::sync::{Arc, Mutex};

use tombolo_core::{Error, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::{lock, task};

/// The syncs of one opening, one at a time.
#[derive(Default)]
pub(crate) struct SharedSync(Mutex<State>);

#[derive(Default)]
struct State {
    is_running: bool,
    /// The next sync, if any caller waits for it.
    next: Option<Arc<Promise<Outcome>>>,
}

/// Outcome of a sync, shared by all that waited for it.
#[derive(Clone, Copy)]
enum Outcome {
    Stable,
    /// The sync failed. All that waited for it fail, because the kernel reports a failure only once.
    Failed(fn() -> Error),
    /// The sync was not attempted; each waiter retries.
    NotTried,
}

/// An object of which concurrent callers share a sync.
pub(crate) trait Syncs: Send + Sync + 'static {
    fn shared(&self) -> &SharedSync;

    /// Makes all earlier changes stable.
    fn sync_now(&self) -> impl Future<Output = Result<()>> + Send;
}

/// Makes all earlier changes stable, together with concurrent callers.
pub(crate) async fn sync<S: Syncs>(object: &Arc<S>) -> Result<()> {
    let outcome = match object.shared().wait() {
        Some(promise) => Some(promise.kept().await),
        None => None,
    };
    let _turn = match outcome {
        Some(Outcome::Stable) => return Ok(()),
        Some(Outcome::Failed(failure)) => return Err(failure()),
        Some(Outcome::NotTried) => None,
        None => Some(RunningSync { object: object.clone(), promise: None }),
    };
    object.sync_now().await
}

impl SharedSync {
    /// Returns the promise of the next sync if a sync is running. Otherwise returns `None`, and the caller
    /// must sync by itself; its sync counts as running until its [`RunningSync`] is dropped.
    fn wait(&self) -> Option<Arc<Promise<Outcome>>> {
        let mut state = lock(&self.0);
        if state.is_running {
            return Some(state.next.get_or_insert_default().clone());
        }
        state.is_running = true;
        None
    }
}

/// A running sync. Dropping it starts the next one, even if its caller has given up.
struct RunningSync<S: Syncs> {
    object: Arc<S>,
    /// The promise to those that wait for this sync.
    promise: Option<Arc<Promise<Outcome>>>,
}

impl<S: Syncs> RunningSync<S> {
    async fn run(mut self) {
        let outcome = match self.object.sync_now().await {
            Ok(()) => Outcome::Stable,
            Err(Error::Io { .. }) => Outcome::Failed(|| Error::Io { source: None }),
            Err(Error::NoSpace) => Outcome::Failed(|| Error::NoSpace),
            Err(Error::QuotaExceeded) => Outcome::Failed(|| Error::QuotaExceeded),
            Err(_) => Outcome::NotTried,
        };
        if let Some(promise) = self.promise.take() {
            promise.keep(outcome);
        }
    }
}

impl<S: Syncs> Drop for RunningSync<S> {
    fn drop(&mut self) {
        // Set only if the sync did not complete, as after a panic.
        if let Some(promise) = self.promise.take() {
            promise.keep(Outcome::NotTried);
        }
        let next = {
            let mut state = lock(&self.object.shared().0);
            let next = state.next.take();
            state.is_running = next.is_some();
            next
        };
        if next.is_some() {
            task::spawn(RunningSync { object: self.object.clone(), promise: next }.run());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Syncs completed by the test.
    #[derive(Default)]
    struct Manual {
        shared: SharedSync,
        state: Mutex<(usize, VecDeque<Result<()>>, Option<Waker>)>,
    }

    impl Syncs for Manual {
        fn shared(&self) -> &SharedSync {
            &self.shared
        }

        async fn sync_now(&self) -> Result<()> {
            lock(&self.state).0 += 1;
            poll_fn(|context| {
                let mut state = lock(&self.state);
                state.2 = Some(context.waker().clone());
                state.1.pop_front().map_or(Poll::Pending, Poll::Ready)
            })
            .await
        }
    }

    impl Manual {
        fn end(&self, how: Result<()>) {
            let waker = {
                let mut state = lock(&self.state);
                state.1.push_back(how);
                state.2.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }

        fn count(&self) -> usize {
            lock(&self.state).0
        }
    }

    fn polled<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn waiters_share_the_next_sync_and_its_failure() {
        let syncs = Arc::<Manual>::default();
        let (mut first, mut second, mut third) = (pin!(sync(&syncs)), pin!(sync(&syncs)), pin!(sync(&syncs)));
        for waiting in [&mut first, &mut second, &mut third] {
            assert!(polled(waiting.as_mut()).is_pending());
        }
        syncs.end(Ok(()));
        assert!(matches!(polled(first), Poll::Ready(Ok(()))));
        assert!(polled(second.as_mut()).is_pending(), "the first sync had begun before it came");
        assert_eq!(syncs.count(), 2);
        let mut fourth = pin!(sync(&syncs));
        assert!(polled(fourth.as_mut()).is_pending());
        syncs.end(Err(Error::NoSpace));
        assert!(matches!(polled(second), Poll::Ready(Err(Error::NoSpace))));
        assert!(matches!(polled(third), Poll::Ready(Err(Error::NoSpace))));
        assert!(polled(fourth.as_mut()).is_pending(), "the second sync had begun before it came");
        syncs.end(Ok(()));
        assert!(matches!(polled(fourth), Poll::Ready(Ok(()))));
        assert_eq!(syncs.count(), 3);
    }

    #[test]
    fn abandoned_sync_blocks_no_waiter() {
        let syncs = Arc::<Manual>::default();
        let mut given_up = Box::pin(sync(&syncs));
        assert!(polled(given_up.as_mut()).is_pending());
        let (mut second, mut third) = (pin!(sync(&syncs)), pin!(sync(&syncs)));
        assert!(polled(second.as_mut()).is_pending() && polled(third.as_mut()).is_pending());
        drop(given_up);
        assert_eq!(syncs.count(), 2);
        // Not attempted: each waiter retries.
        syncs.end(Err(Error::WouldBlock));
        assert!(polled(second.as_mut()).is_pending() && polled(third.as_mut()).is_pending());
        assert_eq!(syncs.count(), 4);
        syncs.end(Ok(()));
        syncs.end(Ok(()));
        assert!(
            matches!(polled(second), Poll::Ready(Ok(()))) && matches!(polled(third), Poll::Ready(Ok(())))
        );
    }
}
