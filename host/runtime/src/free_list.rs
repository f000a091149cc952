//! Reuse of objects instead of allocation.

use std::sync::Mutex;

use crate::lock;

/// A bounded list of unused objects. An object returned to a full list is dropped.
#[derive(Debug)]
pub struct FreeList<T> {
    objects: Mutex<Vec<T>>,
    max: usize,
}

impl<T> FreeList<T> {
    /// Returns an empty list for `max` objects.
    pub const fn new(max: usize) -> Self {
        Self { objects: Mutex::new(Vec::new()), max }
    }

    /// Takes the object returned last, if there is one.
    #[inline]
    pub fn take(&self) -> Option<T> {
        lock(&self.objects).pop()
    }

    /// Returns an object to the list. If the list is full, the object is dropped, after the lock is released.
    #[inline]
    pub fn give_back(&self, object: T) {
        let mut objects = lock(&self.objects);
        if objects.len() < self.max {
            objects.push(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_list_is_bounded_lifo() {
        let list = FreeList::new(2);
        assert_eq!(list.take(), None);
        (1..=3).for_each(|number| list.give_back(number));
        assert_eq!((list.take(), list.take(), list.take()), (Some(2), Some(1), None));
    }
}
