use std::sync::{Mutex, MutexGuard, PoisonError};

/// The numbers of slots that are free.
#[derive(Debug)]
pub struct Slots(Mutex<Vec<u32>>);

impl Slots {
    /// All numbers below `count`, each of them free.
    pub fn new(count: u32) -> Self {
        Self(Mutex::new((0..count).rev().collect()))
    }

    /// A free number, which is the caller's from now on.
    pub fn take(&self) -> Option<u32> {
        self.free().pop()
    }

    /// Frees a number that was taken.
    pub fn give_back(&self, number: u32) {
        self.free().push(number);
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
