//! What rings and doorbells are made of: cache lines and words that one side writes and the other reads.
//!
//! In production both lie in a [`Region`](tombolo_mem::Region). The tests have others, so that the very same
//! code runs on memory whose every interleaving is tried.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_mem::{Lines, LinesMut, Word, WordMut};
use tombolo_sys::futex::{self, Woken};

/// Lines that are read: the slots of a peer's ring. Line numbers wrap at [`count`](Self::count), a power of
/// two.
pub trait Cells {
    /// How many lines there are.
    fn count(&self) -> usize;

    /// The word (0 to 7) of a line, as eight bytes that were stored there, in the host's byte order.
    fn load(&self, line: usize, word: usize, order: Ordering) -> u64;

    /// Begins to fetch a line that is going to be read: a hint.
    #[inline(always)]
    fn fetch(&self, _line: usize) {}

    /// Where the line lies, if it is memory that a processor can watch.
    fn address(&self, _line: usize) -> Option<*const u8> {
        None
    }
}

/// Lines that only we write.
pub trait CellsMut {
    /// How many lines there are.
    fn count(&self) -> usize;

    /// Stores the word (0 to 7) of a line, in the host's byte order.
    fn store(&self, line: usize, word: usize, value: u64, order: Ordering);

    /// Adds to the word (0 to 7) of a line in one step, and wraps.
    fn add(&self, line: usize, word: usize, n: u64, order: Ordering);

    /// Begins to take a line that is going to be stored to away from other processors: a hint.
    #[inline(always)]
    fn claim(&self, _line: usize) {}
}

/// A word that is read, and slept on.
pub trait DoorbellWord {
    /// Its value.
    fn load(&self, order: Ordering) -> u32;

    /// Sleeps while its value is `seen`, until it is [woken](DoorbellWordMut::wake), for no longer than
    /// `timeout`. May return for no reason.
    fn wait(&self, seen: u32, timeout: Option<Duration>) -> Nap;

    /// Wakes one that sleeps on it.
    fn wake(&self);

    /// Keeps every load and store of this thread before it from passing one after it.
    fn fence();

    /// Lets other threads run that wait for this processor.
    fn yield_now() {
        std::thread::yield_now();
    }
}

/// A word that only we write.
pub trait DoorbellWordMut: DoorbellWord {
    /// Sets its value.
    fn store(&self, value: u32, order: Ordering);

    /// Adds one, and wraps.
    fn bump(&self);
}

/// How a sleep on a word ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nap {
    /// The peer or another thread may have woken us.
    Over,
    /// The time was up.
    TimedOut,
    /// No thread can sleep there: the memory lost its file, or the system forbids it.
    Impossible,
}

impl Cells for Lines {
    #[inline]
    fn count(&self) -> usize {
        Lines::count(self)
    }

    #[inline(always)]
    fn load(&self, line: usize, word: usize, order: Ordering) -> u64 {
        Lines::load(self, line, word, order)
    }

    #[inline(always)]
    fn fetch(&self, line: usize) {
        Lines::fetch(self, line);
    }

    fn address(&self, line: usize) -> Option<*const u8> {
        Some(Lines::address(self, line))
    }
}

impl CellsMut for LinesMut {
    #[inline]
    fn count(&self) -> usize {
        Lines::count(self)
    }

    #[inline(always)]
    fn store(&self, line: usize, word: usize, value: u64, order: Ordering) {
        LinesMut::store(self, line, word, value, order);
    }

    #[inline(always)]
    fn add(&self, line: usize, word: usize, n: u64, order: Ordering) {
        LinesMut::add(self, line, word, n, order);
    }

    #[inline(always)]
    fn claim(&self, line: usize) {
        LinesMut::claim(self, line);
    }
}

impl DoorbellWord for Word {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        Word::load(self, order)
    }

    fn wait(&self, seen: u32, timeout: Option<Duration>) -> Nap {
        match futex::wait(self, seen, timeout) {
            Ok(Woken::Maybe | Woken::Changed) => Nap::Over,
            Ok(Woken::TimedOut) => Nap::TimedOut,
            Err(_) => Nap::Impossible,
        }
    }

    fn wake(&self) {
        // Fails only if the word's file was truncated: then no thread can sleep there.
        let _ = futex::wake(self);
    }

    #[inline]
    fn fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl DoorbellWord for WordMut {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        Word::load(self, order)
    }

    fn wait(&self, seen: u32, timeout: Option<Duration>) -> Nap {
        DoorbellWord::wait(&**self, seen, timeout)
    }

    fn wake(&self) {
        DoorbellWord::wake(&**self);
    }

    #[inline]
    fn fence() {
        <Word as DoorbellWord>::fence();
    }
}

impl DoorbellWordMut for WordMut {
    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        WordMut::store(self, value, order);
    }

    fn bump(&self) {
        WordMut::add(self, 1, Ordering::Release);
    }
}
