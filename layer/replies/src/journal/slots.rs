use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The numbers of slots that are free.
#[derive(Debug)]
pub struct Slots(Mutex<State>);

#[derive(Debug)]
struct State {
    free: Vec<u32>,
    waiting: VecDeque<Waker>,
}

impl Slots {
    /// All numbers below `count`, each of them free.
    pub fn new(count: u32) -> Self {
        Self(Mutex::new(State { free: (0..count).rev().collect(), waiting: VecDeque::new() }))
    }

    /// A free number, which is the caller's from now on.
    pub fn take(&self) -> Option<u32> {
        self.state().free.pop()
    }

    /// Frees a number that was taken.
    pub fn give_back(&self, number: u32) {
        self.state().free.push(number);
        self.wake_next();
    }

    /// A slot for something that gives it back if it comes to nothing.
    pub fn reserve(self: &Arc<Self>) -> Option<Reserved> {
        self.take().map(|number| Reserved { slots: self.clone(), number: Some(number) })
    }

    /// The same, once there is one.
    pub fn wait(self: &Arc<Self>) -> FreeSlot {
        FreeSlot { slots: self.clone(), is_over: false }
    }

    fn wake_next(&self) {
        let next = self.state().waiting.pop_front();
        // Outside of the lock: a waker may run anything.
        next.into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that is not free, and has nothing in it yet.
#[derive(Debug)]
pub struct Reserved {
    slots: Arc<Slots>,
    number: Option<u32>,
}

impl Reserved {
    /// Its number, for what is put there.
    pub fn into_number(mut self) -> Option<u32> {
        self.number.take()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.number.take().into_iter().for_each(|number| self.slots.give_back(number));
    }
}

/// See [`Slots::wait`].
#[derive(Debug)]
pub struct FreeSlot {
    slots: Arc<Slots>,
    is_over: bool,
}

impl Future for FreeSlot {
    type Output = Reserved;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reserved> {
        let mut state = self.slots.state();
        let Some(number) = state.free.pop() else {
            if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waiting.push_back(context.waker().clone());
            }
            return Poll::Pending;
        };
        drop(state);
        self.is_over = true;
        Poll::Ready(Reserved { slots: self.slots.clone(), number: Some(number) })
    }
}

impl Drop for FreeSlot {
    /// It may have been woken for a slot that it does not take.
    fn drop(&mut self) {
        if !self.is_over && !self.slots.state().free.is_empty() {
            self.slots.wake_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[test]
    fn a_slot_that_is_given_back_is_the_next_one_s_that_waits() {
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
}
