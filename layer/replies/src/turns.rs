//! One at a time for each file.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tombolo_core::fs::PersistentHandle;

/// The files that are somebody's turn now, and who waits for the next.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<PersistentHandle, Vec<Waker>>>);

/// Somebody's turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    file: PersistentHandle,
}

impl Turns {
    /// A turn, if nobody else has it.
    pub fn try_take(self: &Arc<Self>, file: &PersistentHandle) -> Option<Turn> {
        let mut taken = self.taken();
        if taken.contains_key(file) {
            return None;
        }
        taken.insert(file.clone(), Vec::new());
        Some(Turn { turns: self.clone(), file: file.clone() })
    }

    /// A turn, once nobody else has it.
    pub fn take(self: Arc<Self>, file: PersistentHandle) -> impl Future<Output = Turn> {
        poll_fn(move |context| {
            let mut taken = self.taken();
            if let Some(waiting) = taken.get_mut(&file) {
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                return Poll::Pending;
            }
            taken.insert(file.clone(), Vec::new());
            Poll::Ready(Turn { turns: self.clone(), file: file.clone() })
        })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<PersistentHandle, Vec<Waker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let waiting = self.turns.taken().remove(&self.file).unwrap_or_default();
        // Outside of the lock: a waker may run anything. All of them: one that does not care any more would keep the rest waiting.
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn one_has_the_turn_and_the_next_gets_it() {
        let turns = Arc::<Turns>::default();
        let file = |byte| PersistentHandle { kind: 1, bytes: [byte].as_slice().into() };
        let first = turns.try_take(&file(1)).expect("nobody has it");
        assert!(turns.try_take(&file(1)).is_none() && turns.try_take(&file(2)).is_some());
        let mut next = pin!(turns.clone().take(file(1)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(next.as_mut().poll(&mut context).is_pending());
        drop(first);
        let Poll::Ready(second) = next.as_mut().poll(&mut context) else { panic!("nobody has it") };
        assert!(turns.try_take(&file(1)).is_none());
        drop(second);
        assert!(turns.try_take(&file(1)).is_some() && turns.taken().is_empty());
    }
}
