//! Operations of one kind, many under way, results in order.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Futures that go on together and are taken in the order in which they were added.
pub(crate) struct Window<T> {
    flights: VecDeque<Flight<T>>,
}

enum Flight<T> {
    Going(Pin<Box<dyn Future<Output = T> + Send>>),
    Landed(T),
}

impl<T> Window<T> {
    /// Nothing under way.
    pub fn new() -> Self {
        Self { flights: VecDeque::new() }
    }

    /// How many are under way or not taken yet.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Begins one more. It is first polled by the next [`Window::next`].
    pub fn add(&mut self, future: impl Future<Output = T> + Send + 'static) {
        self.flights.push_back(Flight::Going(Box::pin(future)));
    }

    /// The result of the one that was added first; `None` when there is none. All others go on meanwhile.
    pub async fn next(&mut self) -> Option<T> {
        if self.flights.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for flight in &mut self.flights {
                if let Flight::Going(future) = flight
                    && let Poll::Ready(value) = future.as_mut().poll(context)
                {
                    *flight = Flight::Landed(value);
                }
            }
            match self.flights.front() {
                Some(Flight::Going(_)) => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
        match self.flights.pop_front() {
            Some(Flight::Landed(value)) => Some(value),
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
