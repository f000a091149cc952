use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Numbers that are free, taken and given back by any thread without a lock.
///
/// The stack's head carries a count of its changes, so that a thread that was held up sees that the stack is another one.
#[derive(Debug)]
pub struct Slots {
    /// Changes in the upper half; in the lower one the top's number plus one, 0 for none.
    head: AtomicU64,
    /// Of each number: the one below it, in the same form.
    below: Box<[AtomicU32]>,
}

impl Slots {
    /// All numbers below `count`, each of them free.
    pub fn new(count: u32) -> Self {
        let slots = Self { head: AtomicU64::new(0), below: (0..count).map(|_| AtomicU32::new(0)).collect() };
        (0..count).rev().for_each(|number| slots.give_back(number));
        slots
    }

    /// A free number, which is the caller's from now on.
    pub fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let number = (head as u32).checked_sub(1)?;
            let below = self.below.get(number as usize)?.load(Ordering::Relaxed);
            match self.replace(head, below) {
                Ok(()) => return Some(number),
                Err(now) => head = now,
            }
        }
    }

    /// Frees a number that was taken.
    pub fn give_back(&self, number: u32) {
        let Some(below) = self.below.get(number as usize) else { return };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            below.store(head as u32, Ordering::Relaxed);
            match self.replace(head, number + 1) {
                Ok(()) => return,
                Err(now) => head = now,
            }
        }
    }

    fn replace(&self, head: u64, top: u32) -> Result<(), u64> {
        let next = ((head >> 32).wrapping_add(1) << 32) | u64::from(top);
        self.head.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn each_number_is_taken_once_and_comes_back() {
        let slots = Slots::new(3);
        let mut taken: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2]);
        slots.give_back(1);
        assert_eq!((slots.take(), slots.take()), (Some(1), None));
        assert_eq!(Slots::new(0).take(), None);
    }

    #[test]
    fn no_two_threads_have_the_same_number() {
        let slots = Arc::new(Slots::new(8));
        let held: Arc<[AtomicBool; 8]> = Arc::default();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (slots, held) = (slots.clone(), held.clone());
                std::thread::spawn(move || {
                    for _ in 0..50_000 {
                        let Some(number) = slots.take() else { continue };
                        assert!(!held[number as usize].swap(true, Ordering::SeqCst));
                        held[number as usize].store(false, Ordering::SeqCst);
                        slots.give_back(number);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(std::iter::from_fn(|| slots.take()).count(), 8);
    }
}
