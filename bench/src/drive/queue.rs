//! What stands between the program and the threads that make its requests: a queue of limited length, and a
//! pool of buffers.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Error;

/// Data on its way: of a WRITE, what is written; of a READ, where it is put.
#[derive(Debug, Default)]
pub struct Request {
    pub offset: u64,
    /// Of as many bytes as are to be moved.
    pub data: Vec<u8>,
    /// Whether the program waits for the data.
    pub wanted: bool,
}

/// Requests to be made, and requests that were made.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    /// There is something to do.
    work: Condvar,
    /// There is room, or something was done.
    news: Condvar,
    /// How many requests may wait for a thread.
    length_max: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    unfinished: usize,
    /// Requests that were made and whose data is wanted, in any order.
    finished: Vec<Request>,
    /// Requests that were made and whose buffers are free.
    spare: Vec<Request>,
    error: Option<Error>,
    closed: bool,
}

impl Queue {
    /// In which so many requests can wait.
    pub fn new(length_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            news: Condvar::new(),
            length_max: length_max.max(1),
        }
    }

    /// Puts a request in; waits while there is no room.
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

    /// The next request to be made; `None` when there will be no more.
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

    /// A request was made, or could not be.
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

    /// A request whose buffer can be used again.
    pub fn spare(&self) -> Request {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// The data of a request is wanted no more.
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

    /// Threads that wait for work end.
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
    fn all_requests_are_made_and_found_by_their_offset() {
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
