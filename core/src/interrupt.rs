//! Cancellation of operations by their callers.

use crate::{Error, Result, lock};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// A cancellation request to an operation. A front end raises it if the answer is no longer needed, if the
/// operation waits for a lock and its caller received a signal, or if it refuses the request with an error of
/// its own. In any other case the program would receive an unexpected EINTR.
///
/// An operation may end early while it is queued, waits for a lock or an unresponsive server, or is delayed;
/// a mutation that has begun may not. In both cases the answer still arrives, and only then may the request's
/// buffers be reused.
///
/// A front end may have one per request slot and [`renew`](Interrupt::renew) it for every request, so that an
/// operation that is done at once allocates none. The default value can never be raised.
#[derive(Clone, Default, Debug)]
pub struct Interrupt(Option<Arc<InterruptState>>);

#[derive(Default, Debug)]
struct InterruptState {
    raised: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    /// `true` once either of the other fields has changed; most requests change neither.
    is_used: AtomicBool,
}

impl InterruptState {
    /// Returns `true` if the interrupt was not used and has no other reference, so that it can be reused.
    fn is_fresh(self: &Arc<Self>) -> bool {
        let is_alone = Arc::strong_count(self) == 1;
        // This fence synchronises with the drops of the other references.
        fence(Ordering::Acquire);
        is_alone && !self.is_used.load(Ordering::Relaxed)
    }
}

impl Interrupt {
    /// Returns an interrupt that can be raised.
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// Resets the interrupt for the next request. Allocates only if an earlier request still references it,
    /// or if it is the default value.
    pub fn renew(&mut self) {
        // Without this check `get_mut` costs a locked instruction per request.
        if self.0.as_ref().is_some_and(InterruptState::is_fresh) {
            return;
        }
        match self.0.as_mut().and_then(Arc::get_mut) {
            Some(state) => {
                *state.raised.get_mut() = false;
                state.wakers.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
                *state.is_used.get_mut() = false;
            }
            None => *self = Self::new(),
        }
    }

    /// Requests cancellation, and wakes all waiters in [`Interrupt::raised`]. No effect on the default value.
    pub fn raise(&self) {
        let Some(state) = &self.0 else { return };
        let wakers = {
            let mut wakers = lock(&state.wakers);
            state.is_used.store(true, Ordering::Relaxed);
            state.raised.store(true, Ordering::Release);
            std::mem::take(&mut *wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for `work`. Fails with [`Error::Interrupted`] if the interrupt is raised before.
    pub async fn unless_raised<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let (mut work, mut raised) = (pin!(work), pin!(self.raised()));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => raised.as_mut().poll(context).map(|()| Err(Error::Interrupted)),
        })
        .await
    }

    /// Returns `true` once [`Interrupt::raise`] was called.
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.raised.load(Ordering::Acquire))
    }

    /// Returns `true` if this interrupt can be raised: the default value cannot.
    #[inline]
    pub fn can_be_raised(&self) -> bool {
        self.0.is_some()
    }

    /// Returns a future that is ready once the interrupt is raised, and never for the default value.
    pub fn raised(&self) -> Raised {
        Raised(self.clone())
    }
}

/// The future returned by [`Interrupt::raised`].
#[derive(Debug)]
pub struct Raised(Interrupt);

impl Future for Raised {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(state) = &self.0.0 else { return Poll::Pending };
        let mut wakers = lock(&state.wakers);
        if state.raised.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.is_used.store(true, Ordering::Relaxed);
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::Answer;

    #[test]
    fn raise_wakes_a_waiter_on_another_thread() {
        let interrupt = Interrupt::new();
        let raised = interrupt.raised();
        let waiter = std::thread::spawn(move || {
            Answer::later(async move {
                raised.await;
                Ok(())
            })
            .wait()
        });
        interrupt.raise();
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn renewing_does_not_reach_into_the_earlier_request() {
        let mut slot = Interrupt::new();
        let earlier = slot.clone();
        earlier.raise();
        slot.renew();
        assert!(earlier.is_raised());
        assert!(!slot.is_raised());
        assert!(slot.can_be_raised() && !Interrupt::default().can_be_raised());
    }

    #[test]
    fn renewing_clears_raised_flag_and_waiters() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let mut slot = Interrupt::new();
        for _ in 0..2 {
            let waker = Waker::from(count.clone());
            assert!(Pin::new(&mut slot.raised()).poll(&mut Context::from_waker(&waker)).is_pending());
            // The waiter is gone: raising the next request must not wake it.
            slot.renew();
            slot.raise();
            assert!(slot.is_raised());
            slot.renew();
            assert!(!slot.is_raised());
        }
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
    }
}
