//! Allocation of the journal's slots.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tombolo_core::lock;

/// Allocator of slot numbers, with waiters in order of arrival.
#[derive(Debug)]
pub struct Slots(Mutex<SlotsState>);

#[derive(Debug)]
struct SlotsState {
    free: Vec<u32>,
    /// Wakers of the waiters, in order of arrival.
    waiting: BTreeMap<u64, Waker>,
    arrivals: u64,
}

impl SlotsState {
    /// Returns the wakers of the waiters that a free slot is available for.
    fn next(&self) -> Vec<Waker> {
        self.waiting.values().take(self.free.len()).cloned().collect()
    }
}

impl Slots {
    /// Creates the numbers below `count`, all free.
    pub fn new(count: u32) -> Self {
        Self(Mutex::new(SlotsState {
            free: (0..count).rev().collect(),
            waiting: BTreeMap::new(),
            arrivals: 0,
        }))
    }

    /// Takes a free number that no waiter is entitled to.
    pub fn take(&self) -> Option<u32> {
        let mut state = lock(&self.0);
        if state.free.len() > state.waiting.len() { state.free.pop() } else { None }
    }

    /// Frees a number, and wakes the waiters that may take it.
    pub fn give_back(&self, number: u32) {
        let mut state = lock(&self.0);
        state.free.push(number);
        let next = state.next();
        drop(state);
        // The waker is called outside of the lock, because it may run any code.
        next.into_iter().for_each(Waker::wake);
    }

    /// Reserves a slot, if one is free that no waiter is entitled to. It is freed on drop unless used.
    pub fn reserve(self: &Arc<Self>) -> Option<Reserved> {
        self.take().map(|number| Reserved { slots: self.clone(), number: Some(number) })
    }

    /// Reserves a slot, waiting until one is free.
    pub fn wait(self: &Arc<Self>) -> FreeSlot {
        FreeSlot { slots: self.clone(), ticket: None }
    }
}

/// A reserved, empty slot, freed on drop unless its number was taken out.
#[derive(Debug)]
pub struct Reserved {
    slots: Arc<Slots>,
    number: Option<u32>,
}

impl Reserved {
    /// Returns the slot's number, which the caller uses, and frees by [`Slots::give_back`].
    pub fn into_number(mut self) -> Option<u32> {
        self.number.take()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.number.take().into_iter().for_each(|number| self.slots.give_back(number));
    }
}

/// Future of [`Slots::wait`]. Waiters get free slots in the order of their first polls.
#[derive(Debug)]
pub struct FreeSlot {
    slots: Arc<Slots>,
    /// Position in the queue; `None` before the first poll, and once a slot is reserved.
    ticket: Option<u64>,
}

impl Future for FreeSlot {
    type Output = Reserved;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reserved> {
        let slots = self.slots.clone();
        let mut state = lock(&slots.0);
        let ticket = *self.ticket.get_or_insert_with(|| {
            state.arrivals += 1;
            state.arrivals
        });
        let before = state.waiting.range(..ticket).take(state.free.len()).count();
        if before == state.free.len() {
            let earlier = state.waiting.insert(ticket, context.waker().clone());
            drop(state);
            drop(earlier);
            return Poll::Pending;
        }
        let (number, earlier) = (state.free.pop(), state.waiting.remove(&ticket));
        drop(state);
        drop(earlier);
        self.ticket = None;
        Poll::Ready(Reserved { slots, number })
    }
}

impl Drop for FreeSlot {
    /// Passes a slot available for this waiter to the next one.
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = lock(&self.slots.0);
        let earlier = state.waiting.remove(&ticket);
        let next = state.next();
        drop(state);
        drop(earlier);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    #[test]
    fn freed_slot_goes_to_next_waiter() {
        let slots = Arc::new(Slots::new(1));
        let mut context = Context::from_waker(Waker::noop());
        let first = slots.reserve().expect("a slot");
        let mut next = pin!(slots.wait());
        assert!(slots.reserve().is_none() && next.as_mut().poll(&mut context).is_pending());
        drop(first);
        let Poll::Ready(second) = next.as_mut().poll(&mut context) else { panic!("a slot is free") };
        assert!(slots.reserve().is_none());
        slots.give_back(second.into_number().expect("its number"));
        assert!(slots.reserve().is_some());
    }
    #[test]
    fn slots_go_to_waiters_in_order() {
        #[derive(Default)]
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let slots = Arc::new(Slots::new(1));
        let taken = slots.take().expect("a slot");
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(woken.clone());
        let mut gives_up = Box::pin(slots.wait());
        let mut next = pin!(slots.wait());
        assert!(gives_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        slots.give_back(taken);
        assert!(slots.reserve().is_none(), "it is for one that waits");
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "for the first one");
        assert!(!woken.0.load(Ordering::Relaxed));
        drop(gives_up);
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
}
