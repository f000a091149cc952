//! A semaphore for tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_lock::Mutex;
use event_listener::Event;

/// A number of permits. Only one task at a time collects permits, so that a task that needs many is not
/// starved by tasks that need few.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    total: usize,
    free: AtomicUsize,
    freed: Event,
    /// Locked by the one task that waits for permits; all other tasks wait for this lock.
    front: Mutex<()>,
}

impl Permits {
    /// Creates `total` permits, at least one, all free.
    pub fn new(total: usize) -> Self {
        let total = total.max(1);
        let free = AtomicUsize::new(total);
        Self(Arc::new(Shared { total, free, freed: Event::new(), front: Mutex::new(()) }))
    }

    /// Waits for `count` permits and takes them; a count above the total is reduced to it.
    pub async fn take(&self, count: usize) -> Permit {
        let count = count.min(self.0.total);
        let _front = self.0.front.lock().await;
        loop {
            if let Some(permit) = self.take_free(count) {
                return permit;
            }
            let freed = self.0.freed.listen();
            // Permits may have been returned before the listener was registered.
            if let Some(permit) = self.take_free(count) {
                return permit;
            }
            freed.await;
        }
    }

    /// Takes a permit if one is free now and no task is waiting.
    pub fn try_take(&self) -> Option<Permit> {
        let _front = self.0.front.try_lock()?;
        self.take_free(1)
    }

    fn take_free(&self, count: usize) -> Option<Permit> {
        let take = |free: usize| free.checked_sub(count);
        self.0.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(Permit { permits: self.clone(), count })
    }
}

#[derive(Debug)]
pub(crate) struct Permit {
    permits: Permits,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let shared = &self.permits.0;
        shared.free.fetch_add(self.count, Ordering::AcqRel);
        shared.freed.notify(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::block_on;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn is_pending(future: Pin<&mut impl Future<Output = Permit>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn task_that_needs_many_permits_is_not_starved() {
        let permits = Permits::new(4);
        let first = block_on(permits.take(3));
        let mut many = pin!(permits.take(4));
        assert!(is_pending(many.as_mut()));
        assert!(permits.try_take().is_none(), "nothing overtakes the one that waits");
        let mut few = pin!(permits.take(1));
        assert!(is_pending(few.as_mut()));
        drop(first);
        let Poll::Ready(all) = many.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("not served")
        };
        assert!(is_pending(few.as_mut()));
        drop(all);
        assert!(!is_pending(few.as_mut()));
    }

    #[test]
    fn a_task_that_gives_up_takes_nothing_along() {
        let permits = Permits::new(1);
        let held = block_on(permits.take(1));
        let mut leaver = Box::pin(permits.take(1));
        let mut granted = Box::pin(permits.take(1));
        assert!(is_pending(leaver.as_mut()) && is_pending(granted.as_mut()));
        drop(leaver);
        drop(held);
        drop(granted);
        assert!(permits.try_take().is_some());
        assert!(!is_pending(pin!(permits.take(9)).as_mut()), "more than the total counts as the total");
    }
}
