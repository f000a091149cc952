//! Memory access of rings and doorbells: cache lines and words that one side writes and the other reads.
//!
//! In production, lines and words are in a [`Region`](tombolo_mem::Region). Tests substitute other
//! implementations, so that a model checker explores all interleavings of the same code.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_mem::{Lines, LinesMut, Word, WordMut};
use tombolo_sys::futex::{self, Woken};

/// Readable lines, such as the slots of a peer's ring. Line numbers wrap at [`count`](Self::count), a power
/// of two.
pub trait Cells {
    /// Returns the number of lines.
    fn count(&self) -> usize;

    /// Loads a word (0 to 7) of a line, in the host's byte order.
    fn load(&self, line: usize, word: usize, order: Ordering) -> u64;

    /// Prefetches a line that will be read. This is a hint, and may do nothing.
    #[inline(always)]
    fn fetch(&self, _line: usize) {}

    /// Returns the address of a line, if it is memory that a processor can monitor.
    fn address(&self, _line: usize) -> Option<*const u8> {
        None
    }
}

/// Lines that only this side writes.
pub trait CellsMut {
    /// Returns the number of lines.
    fn count(&self) -> usize;

    /// Stores a word (0 to 7) of a line, in the host's byte order.
    fn store(&self, line: usize, word: usize, value: u64, order: Ordering);

    /// Adds to a word (0 to 7) of a line atomically, wrapping.
    fn add(&self, line: usize, word: usize, n: u64, order: Ordering);

    /// Prefetches a line for writing. This is a hint, and may do nothing.
    #[inline(always)]
    fn claim(&self, _line: usize) {}
}

/// A word that can be read and waited on.
pub trait DoorbellWord {
    /// Loads the value.
    fn load(&self, order: Ordering) -> u32;

    /// Sleeps while the value is `expected`, until [woken](Self::wake), for at most `timeout`. It
    /// may return earlier without a reason.
    fn wait(&self, expected: u32, timeout: Option<Duration>) -> SleepOutcome;

    /// Wakes a thread that sleeps on the word, if there is one.
    fn wake(&self);

    /// Records whether the message that a sleeper waits for had arrived when the sleep ended.
    fn slept(&self, _found: bool) {}

    /// Orders every earlier load and store of this thread before every later one (a full fence).
    fn fence();

    /// Yields the processor to other threads; a model checker runs another thread.
    fn yield_now() {
        std::thread::yield_now();
    }
}

/// A word that only this side writes, and on which the peer or a thread of this process sleeps.
pub trait DoorbellWordMut: DoorbellWord {
    /// Sets the value.
    fn store(&self, value: u32, order: Ordering);

    /// Increments the value, wrapping.
    fn bump(&self);
}

/// The outcome of a sleep on a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepOutcome {
    /// Possibly woken by the peer or another thread.
    Woken,
    /// The timeout expired.
    TimedOut,
    /// Sleeping is not possible: the memory's file was truncated, or the system forbids the call.
    Unsupported,
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

    fn wait(&self, expected: u32, timeout: Option<Duration>) -> SleepOutcome {
        match futex::wait(self, expected, timeout) {
            Ok(Woken::Maybe | Woken::Changed) => SleepOutcome::Woken,
            Ok(Woken::TimedOut) => SleepOutcome::TimedOut,
            Err(_) => SleepOutcome::Unsupported,
        }
    }

    fn wake(&self) {
        // The call fails only if no thread can sleep on the word, because its file was truncated or the
        // system forbids futexes.
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

    fn wait(&self, expected: u32, timeout: Option<Duration>) -> SleepOutcome {
        DoorbellWord::wait(&**self, expected, timeout)
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
