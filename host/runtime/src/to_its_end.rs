//! Work that completes even if its answer is abandoned.

use std::future::Future;
use std::sync::{Arc, Mutex};

use tombolo_core::{Answer, Error, Result};

use crate::promise::Promise;
use crate::{lock, task};

/// Completes work even if the answer is dropped, so that an abandoned request never leaves a change half
/// done. The answer is `Done` if the work is ready at once, except within a task, where the work is polled
/// only after that task. Work that panics fails with [`Error::Io`], and the panic propagates to the thread
/// that polled it.
pub fn to_its_end<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Answer<T> {
    let outcome = Arc::new(Outcome { ended: Arc::default(), result: Mutex::default() });
    let ending = Ending(outcome.clone());
    task::spawn(async move {
        let result = work.await;
        *lock(&ending.0.result) = Some(result);
    });
    let ready = lock(&outcome.result).take();
    match ready {
        Some(result) => Answer::Done(result),
        None => Answer::later(async move {
            outcome.ended.clone().kept().await;
            let result = lock(&outcome.result).take();
            result.unwrap_or(Err(Error::Io { source: None }))
        }),
    }
}

struct Outcome<T> {
    ended: Arc<Promise<()>>,
    result: Mutex<Option<Result<T>>>,
}

/// A guard that reports the end of the work, also after a panic.
struct Ending<T>(Arc<Outcome<T>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        self.0.ended.keep(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_whose_answer_is_dropped_is_done() {
        let (go_on, done) = (Arc::new(Promise::default()), Arc::new(Promise::default()));
        let (kept, told) = (go_on.clone().kept(), done.clone());
        drop(to_its_end(async move {
            kept.await;
            told.keep(());
            Ok(())
        }));
        go_on.keep(());
        tombolo_core::block_on(done.kept());
    }

    #[test]
    fn ready_work_is_answered_at_once() {
        assert!(matches!(to_its_end(async { Ok(7) }), Answer::Done(Ok(7))));
    }

    #[test]
    fn pending_work_is_answered_at_its_end() {
        let promise = Arc::new(Promise::default());
        let kept = promise.clone().kept();
        let answer = to_its_end(async move { Ok(kept.await) });
        promise.keep(7);
        assert_eq!(answer.wait().expect("ended"), 7);
    }
}
