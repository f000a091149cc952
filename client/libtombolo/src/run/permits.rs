//! A bound on what is under way.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A number of permits that tasks take and give back. Who waits is served in order, so one that wants many is not starved by
/// those that want few.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    total: usize,
    free: usize,
    waiting: VecDeque<Arc<Mutex<Ticket>>>,
}

#[derive(Debug)]
struct Ticket {
    count: usize,
    /// The permits were taken on its behalf.
    granted: bool,
    /// Nobody waits for it any more.
    left: bool,
    waker: Option<Waker>,
}

impl Permits {
    /// All of them free.
    pub fn new(total: usize) -> Self {
        let total = total.max(1);
        Self(Arc::new(Mutex::new(State { total, free: total, waiting: VecDeque::new() })))
    }

    /// Takes so many once they are free and nobody waits before; more than there are counts as all of them.
    pub fn take(&self, count: usize) -> Take {
        Take { permits: self.clone(), count, ticket: None }
    }

    /// Takes one if it is free now and nobody waits for it.
    pub fn try_take(&self) -> Option<Permit> {
        let mut state = self.lock();
        if state.free == 0 || !state.waiting.is_empty() {
            return None;
        }
        state.free -= 1;
        Some(Permit { permits: self.clone(), count: 1 })
    }

    fn give_back(&self, count: usize) {
        let mut wake: Vec<Waker> = Vec::new();
        {
            let mut state = self.lock();
            state.free += count;
            while let Some(first) = state.waiting.front().cloned() {
                let mut ticket = lock(&first);
                if !ticket.left {
                    if ticket.count > state.free {
                        break;
                    }
                    state.free -= ticket.count;
                    ticket.granted = true;
                    wake.extend(ticket.waker.take());
                }
                state.waiting.pop_front();
            }
        }
        wake.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`Permits::take`].
pub(crate) struct Take {
    permits: Permits,
    count: usize,
    ticket: Option<Arc<Mutex<Ticket>>>,
}

impl Future for Take {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut state = lock(&this.permits.0);
        let count = this.count.min(state.total);
        let permit = || Permit { permits: this.permits.clone(), count };
        if let Some(ticket) = &this.ticket {
            let mut ticket = lock(ticket);
            if ticket.granted {
                drop(ticket);
                this.ticket = None;
                return Poll::Ready(permit());
            }
            ticket.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        if state.waiting.is_empty() && state.free >= count {
            state.free -= count;
            return Poll::Ready(permit());
        }
        let waker = Some(context.waker().clone());
        let ticket = Arc::new(Mutex::new(Ticket { count, granted: false, left: false, waker }));
        state.waiting.push_back(ticket.clone());
        this.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let granted = {
            // In the order of `poll`: first the state, then the ticket.
            let _state = self.permits.lock();
            let mut ticket = lock(&ticket);
            ticket.left = true;
            if ticket.granted { ticket.count } else { 0 }
        };
        self.permits.give_back(granted);
    }
}

/// Permits, given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Permits,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.give_back(self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::block_on;
    use std::pin::pin;

    fn is_pending(future: Pin<&mut Take>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn one_that_wants_many_is_served_in_its_turn() {
        let permits = Permits::new(4);
        let first = block_on(permits.take(3));
        let mut many = pin!(permits.take(4));
        assert!(is_pending(many.as_mut()));
        assert!(permits.try_take().is_none(), "nobody passes the one that waits");
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
    fn who_leaves_the_line_takes_nothing_along() {
        let permits = Permits::new(1);
        let held = block_on(permits.take(1));
        let mut leaver = Box::pin(permits.take(1));
        let mut granted = Box::pin(permits.take(1));
        assert!(is_pending(leaver.as_mut()) && is_pending(granted.as_mut()));
        drop(leaver);
        drop(held);
        drop(granted);
        assert!(permits.try_take().is_some());
        assert!(!is_pending(pin!(permits.take(9)).as_mut()), "more than there are counts as all");
    }
}
