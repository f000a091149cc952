//! The wish of a caller that an operation end early.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Tells an operation that its caller would rather have it end: the answer is not wanted any more, or it waits for a lock and the
/// caller got a signal. A front end raises it for nothing else: no other call may say EINTR to a program that goes on.
///
/// What may end early: a job that waits in a queue, a wait for a lock or for a silent server, a delay. What may not: a mutation that has
/// begun. Either way the answer still comes, and only then are the buffers of the request free.
///
/// A front end keeps one per request slot and [`renew`](Interrupt::renew)s it for every request, so that the inline path
/// allocates nothing. The default value can never be raised.
#[derive(Clone, Default, Debug)]
pub struct Interrupt(Option<Arc<State>>);

#[derive(Default, Debug)]
struct State {
    raised: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Interrupt {
    /// One that can be raised.
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// Makes this one fresh for the next request. It allocates only when an earlier request still holds it.
    pub fn renew(&mut self) {
        match self.0.as_mut().and_then(Arc::get_mut) {
            Some(state) => {
                *state.raised.get_mut() = false;
                state.wakers.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
            }
            None => *self = Self::new(),
        }
    }

    /// Asks the operation to end. Wakes all waiters in [`Interrupt::raised`].
    pub fn raise(&self) {
        let Some(state) = &self.0 else { return };
        let wakers = {
            let mut wakers = state.wakers.lock().unwrap_or_else(PoisonError::into_inner);
            state.raised.store(true, Ordering::Release);
            std::mem::take(&mut *wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// True once [`Interrupt::raise`] was called.
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.raised.load(Ordering::Acquire))
    }

    /// Whether it can ever be raised: the default value cannot.
    #[inline]
    pub fn can_be_raised(&self) -> bool {
        self.0.is_some()
    }

    /// A future that is ready once this is raised. It never is for the default value.
    pub fn raised(&self) -> Raised {
        Raised(self.clone())
    }
}

/// See [`Interrupt::raised`].
#[derive(Debug)]
pub struct Raised(Interrupt);

impl Future for Raised {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(state) = &self.0.0 else { return Poll::Pending };
        let mut wakers = state.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if state.raised.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
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
}
