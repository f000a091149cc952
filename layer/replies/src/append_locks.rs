//! Locks that serialize the recorded appends to each file, so that after a crash bytes at its end can be
//! attributed to one of them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tombolo_core::fs::PersistentHandle;
use tombolo_core::lock;

/// The files being appended to, and the wakers of waiting appends.
#[derive(Debug, Default)]
pub(super) struct AppendLocks(Mutex<HashMap<PersistentHandle, Vec<Waker>>>);

/// Lock of a file against other appends; released on drop.
#[derive(Debug)]
pub(super) struct AppendLock {
    append_locks: Arc<AppendLocks>,
    file: PersistentHandle,
}

impl AppendLocks {
    pub fn try_take(self: &Arc<Self>, file: &PersistentHandle) -> Option<AppendLock> {
        let mut taken = lock(&self.0);
        if taken.contains_key(file) {
            return None;
        }
        taken.insert(file.clone(), Vec::new());
        Some(AppendLock { append_locks: self.clone(), file: file.clone() })
    }

    /// Locks the file, waiting until it is free.
    pub fn take(self: Arc<Self>, file: PersistentHandle) -> impl Future<Output = AppendLock> {
        poll_fn(move |context| {
            let mut taken = lock(&self.0);
            if let Some(waiting) = taken.get_mut(&file) {
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                return Poll::Pending;
            }
            taken.insert(file.clone(), Vec::new());
            Poll::Ready(AppendLock { append_locks: self.clone(), file: file.clone() })
        })
    }
}

impl Drop for AppendLock {
    fn drop(&mut self) {
        let waiting = lock(&self.append_locks.0).remove(&self.file).unwrap_or_default();
        // The wakers are called outside the lock, because they may run any code. All waiters are woken,
        // because the first one may have been dropped.
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn a_lock_excludes_others_until_it_is_dropped() {
        let append_locks = Arc::<AppendLocks>::default();
        let file = |byte| PersistentHandle { kind: 1, bytes: [byte].as_slice().into() };
        let first = append_locks.try_take(&file(1)).expect("the file is free");
        assert!(append_locks.try_take(&file(1)).is_none() && append_locks.try_take(&file(2)).is_some());
        let mut next = pin!(append_locks.clone().take(file(1)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(next.as_mut().poll(&mut context).is_pending());
        drop(first);
        let Poll::Ready(second) = next.as_mut().poll(&mut context) else { panic!("the file is free") };
        assert!(append_locks.try_take(&file(1)).is_none());
        drop(second);
        assert!(append_locks.try_take(&file(1)).is_some() && lock(&append_locks.0).is_empty());
    }
}
