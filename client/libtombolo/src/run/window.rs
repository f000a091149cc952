//! Concurrent operations of one kind, with results in order.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Concurrent futures whose results are returned in the order of addition.
pub(crate) struct Window<T> {
    slots: VecDeque<Slot<T>>,
}

enum Slot<T> {
    Going(Pin<Box<dyn Future<Output = T> + Send>>),
    Done(T),
}

impl<T> Window<T> {
    pub fn new() -> Self {
        Self { slots: VecDeque::new() }
    }

    /// Returns the number of operations whose results were not taken yet.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds an operation. It is first polled by the next [`Window::next`].
    pub fn add(&mut self, future: impl Future<Output = T> + Send + 'static) {
        self.slots.push_back(Slot::Going(Box::pin(future)));
    }

    /// Waits for the oldest operation, while all progress; returns its result, or `None` if there is none.
    pub async fn next(&mut self) -> Option<T> {
        if self.slots.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for slot in &mut self.slots {
                if let Slot::Going(future) = slot
                    && let Poll::Ready(value) = future.as_mut().poll(context)
                {
                    *slot = Slot::Done(value);
                }
            }
            match self.slots.front() {
                Some(Slot::Going(_)) => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
        match self.slots.pop_front() {
            Some(Slot::Done(value)) => Some(value),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::block_on;
    use std::sync::{Arc, Mutex};

    #[test]
    fn all_go_on_while_the_first_is_awaited() {
        let began = Arc::new(Mutex::new(Vec::new()));
        let mut window = Window::new();
        for number in 0..3 {
            let began = began.clone();
            let mut left = 3 - number;
            window.add(poll_fn(move |context| {
                began.lock().unwrap().push(number);
                left -= 1;
                context.waker().wake_by_ref();
                if left <= 0 { Poll::Ready(number) } else { Poll::Pending }
            }));
        }
        assert_eq!(block_on(window.next()), Some(0));
        assert_eq!(began.lock().unwrap()[..3], [0, 1, 2]);
        assert_eq!((block_on(window.next()), block_on(window.next())), (Some(1), Some(2)));
        assert_eq!(block_on(window.next()), None);
    }
}
