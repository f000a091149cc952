//! The result of an operation, available at once or later.

use std::future::Future;
use std::pin::Pin;

use crate::{Error, Result, block_on};

/// The remainder of an operation that could not be finished at once. The future is independent of any
/// runtime: any thread may poll it, and its waker may be called from any thread.
///
/// Dropping the future abandons the *answer*: a mutation that has begun may still take effect, and a waiting
/// lock request is withdrawn. To stop the work itself, raise the [`Interrupt`](crate::Interrupt) in the
/// request's [`Ctx`](crate::Ctx) and wait for the answer: memory passed in (a `Sink` or a `Source`) is in use
/// until then.
pub type Later<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// The return value of the operations of the waist.
///
/// `Done` is the common case, and itself allocates nothing. A pending operation allocates its future, and
/// each combinator applied to it another one (measured through four layers:
/// `docs/decisions/waist-answers.md`).
#[must_use = "an operation's failure is lost unless its answer is read"]
pub enum Answer<T> {
    /// The operation has finished, successfully or not.
    Done(Result<T>),
    /// The operation is pending; the future has its result.
    Later(Later<T>),
}

impl<T> Answer<T> {
    /// Returns a successful answer.
    #[inline]
    pub fn ok(value: T) -> Self {
        Self::Done(Ok(value))
    }

    /// Returns a failed answer.
    #[inline]
    pub fn err(error: impl Into<Error>) -> Self {
        Self::Done(Err(error.into()))
    }

    /// Returns a pending answer with the result of `future`, which is polled only when the answer is awaited.
    pub fn later(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self::Later(Box::pin(future))
    }

    /// Returns `true` if the answer is available already.
    #[inline]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// Transforms the value of a successful answer.
    #[inline]
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Answer<U>
    where
        T: 'static,
    {
        match self {
            Self::Done(result) => Answer::Done(result.map(change)),
            Self::Later(later) => Answer::later(async move { later.await.map(change) }),
        }
    }

    /// Transforms the result, successful or not, once it is available.
    #[inline]
    pub fn map_result<U>(self, change: impl FnOnce(Result<T>) -> Result<U> + Send + 'static) -> Answer<U>
    where
        T: 'static,
    {
        match self {
            Self::Done(result) => Answer::Done(change(result)),
            Self::Later(later) => Answer::later(async move { change(later.await) }),
        }
    }

    /// Starts another operation once this one has succeeded.
    #[inline]
    pub fn then<U>(self, next: impl FnOnce(T) -> Answer<U> + Send + 'static) -> Answer<U>
    where
        T: Send + 'static,
        U: Send + 'static,
    {
        match self {
            Self::Done(Ok(value)) => next(value),
            Self::Done(Err(error)) => Answer::Done(Err(error)),
            Self::Later(later) => Answer::later(async move {
                let next = match later.await {
                    Ok(value) => next(value),
                    Err(error) => return Err(error),
                };
                next.resolve().await
            }),
        }
    }

    /// Converts the answer to a future, for async callers.
    pub async fn resolve(self) -> Result<T> {
        match self {
            Self::Done(result) => result,
            Self::Later(later) => later.await,
        }
    }

    /// Blocks the calling thread until the answer is available. Not for a thread that serves a queue: the
    /// queue's other requests, on which the answer may depend, would wait too.
    pub fn wait(self) -> Result<T> {
        match self {
            Self::Done(result) => result,
            Self::Later(later) => block_on(later),
        }
    }
}

impl<T> From<Result<T>> for Answer<T> {
    #[inline]
    fn from(result: Result<T>) -> Self {
        Self::Done(result)
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(result) => f.debug_tuple("Done").field(result).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// Evaluates to the value of a result, or returns its error from the function as an immediate answer.
#[macro_export]
macro_rules! or_answer {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return $crate::Answer::err(error),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an answer that pends once and is woken by another thread.
    fn slow(value: u32) -> Answer<u32> {
        Answer::later(async move { Ok(crate::block_on::tests::slow(value).await) })
    }

    #[test]
    fn done_stays_done_through_combinators() {
        let answer = Answer::ok(2).map(|n| n + 1).then(|n| Answer::ok(n * 2));
        assert!(answer.is_done());
        assert_eq!(answer.wait().unwrap(), 6);
    }

    #[test]
    fn later_answers_wake_across_threads_and_chain() {
        let answer = slow(2).then(|n| slow(n + 1)).map(|n| n * 2);
        assert!(!answer.is_done());
        assert_eq!(answer.wait().unwrap(), 6);
    }

    #[test]
    fn then_is_not_called_after_a_failure() {
        let answer: Answer<u32> =
            Answer::<u32>::err(Error::NotFound).then(|_| panic!("called after a failure"));
        assert!(matches!(answer.wait(), Err(Error::NotFound)));
        let answer: Answer<u32> =
            slow(1).then(|_| Answer::<u32>::err(Error::Stale)).then(|_| panic!("called after a failure"));
        assert!(matches!(answer.wait(), Err(Error::Stale)));
    }
}
