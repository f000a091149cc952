//! Objects that are used again instead of allocated anew.

use std::sync::Mutex;

use crate::lock;

/// A bounded list of objects that are not in use. One that is given back to a full list is dropped.
#[derive(Debug)]
pub struct FreeList<T> {
    objects: Mutex<Vec<T>>,
    max: usize,
}

impl<T> FreeList<T> {
    /// An empty list for `max` objects.
    pub const fn new(max: usize) -> Self {
        Self { objects: Mutex::new(Vec::new()), max }
    }

    /// The object that was given back last, if there is one.
    #[inline]
    pub fn take(&self) -> Option<T> {
        lock(&self.objects).pop()
    }

    /// Gives an object back. It is dropped after the lock is released if the list is full.
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
    fn the_object_returned_last_is_taken_first_and_a_full_list_drops() {
        let list = FreeList::new(2);
        assert_eq!(list.take(), None);
        (1..=3).for_each(|number| list.give_back(number));
        assert_eq!((list.take(), list.take(), list.take()), (Some(2), Some(1), None));
    }
}
