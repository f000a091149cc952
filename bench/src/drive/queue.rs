//! Bounded queue between the program and the threads that make its requests, and its buffer pool.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Error;

/// A request with the data to write, or the buffer to read into.
#[derive(Debug, Default)]
pub struct Request {
    pub offset: u64,
    /// Buffer with the length of the request.
    pub data: Vec<u8>,
    /// `true` if the program waits for the data.
    pub wanted: bool,
}

/// Queue of requests, and of finished ones.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    /// Signalled when a request is queued.
    work: Condvar,
    /// Signalled when there is space, or a request has finished.
    news: Condvar,
    /// Maximum number of queued requests.
    length_max: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    unfinished: usize,
    /// Finished requests whose data are wanted, in any order.
    finished: Vec<Request>,
    /// Finished requests with free buffers.
    spare: Vec<Request>,
    error: Option<Error>,
    closed: bool,
}

impl Queue {
    /// Creates a queue for this many requests.
    pub fn new(length_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            news: Condvar::new(),
            length_max: length_max.max(1),
        }
    }

    /// Queues a request; waits while the queue is full.
    pub fn put(&self, request: Request) {
        let mut state = self.lock();
        while state.waiting.len() >= self.length_max && state.error.is_none() {
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.push_back(request);
        state.unfinished += 1;
        drop(state);
        self.work.notify_one();
    }

    /// Takes the next request; `None` once the queue is closed.
    pub fn take(&self) -> Option<Request> {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.waiting.pop_front() {
                drop(state);
                self.news.notify_one();
                return Some(request);
            }
            if state.closed {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records a request that was executed or has failed.
    pub fn finish(&self, request: Request, outcome: Result<(), Error>) {
        let mut state = self.lock();
        state.unfinished -= 1;
        let to = if request.wanted { &mut state.finished } else { &mut state.spare };
        to.push(request);
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        drop(state);
        self.news.notify_one();
    }

    /// Returns a request with a reusable buffer.
    pub fn spare(&self) -> Request {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Returns a request whose data are no longer needed to the pool.
    pub fn give_back(&self, request: Request) {
        self.lock().spare.push(request);
    }

    /// Waits for the request at an offset.
    pub fn wait_for(&self, offset: u64) -> Result<Request, Error> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let at = state.finished.iter().position(|request| request.offset == offset);
            if let Some(at) = at {
                return Ok(state.finished.swap_remove(at));
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn drain(&self) -> Result<(), Error> {
        let mut state = self.lock();
        while state.unfinished > 0 {
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Closes the queue: threads that wait for work end.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn requests_finish_and_are_found_by_offset() {
        let queue = Arc::new(Queue::new(2));
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || {
                    while let Some(request) = queue.take() {
                        queue.finish(request, Ok(()));
                    }
                })
            })
            .collect();
        for offset in 0..100 {
            queue.put(Request { offset, data: Vec::new(), wanted: true });
        }
        queue.drain().unwrap();
        assert_eq!(queue.wait_for(42).unwrap().offset, 42);
        queue.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }

    #[test]
    fn a_request_that_failed_ends_the_wait() {
        let queue = Queue::new(1);
        queue.put(Request::default());
        let request = queue.take().unwrap();
        queue.finish(request, Err(Error::Absent("no luck".to_owned())));
        assert!(queue.drain().unwrap_err().to_string().contains("no luck"));
    }
}
