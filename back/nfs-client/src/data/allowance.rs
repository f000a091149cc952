//! Limit of the written bytes that a mount may retain.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use tombolo_core::lock;

/// Overhead charged for each piece, so that a writer of single bytes is limited too.
const OVERHEAD_BYTES: usize = 512;

/// Retained bytes of all files of a mount, and the writers that wait for memory.
#[derive(Debug)]
pub(super) struct Allowance {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    /// Retained bytes that the server has received as unstable, and that await a COMMIT.
    uncommitted_bytes: AtomicUsize,
    /// Number of writers that wait for memory.
    stuck: AtomicUsize,
    waiters: Mutex<Vec<Waker>>,
}

/// Guard of a writer that waits for memory.
pub(super) struct Stuck<'a>(&'a Allowance);

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.stuck.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Allowance {
    /// Creates an allowance of this size, in bytes; a single longer piece is admitted too.
    pub(super) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes: limit_bytes.max(1),
            used_bytes: AtomicUsize::new(0),
            uncommitted_bytes: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
            waiters: Mutex::default(),
        })
    }

    /// Takes memory for a piece of `len_bytes`. Returns `None` if the limit would be exceeded, unless nothing
    /// else is retained: a piece longer than the limit could otherwise never be written.
    pub(super) fn take(self: &Arc<Self>, len_bytes: usize) -> Option<Charge> {
        let bytes = len_bytes.saturating_add(OVERHEAD_BYTES);
        let claim = |used| self.with(used, len_bytes);
        self.used_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).ok()?;
        Some(Charge { allowance: self.clone(), bytes })
    }

    /// Waits for memory for a piece of `len_bytes`. A waiter checks again when [`wake`](Self::wake) finds a
    /// quarter of the limit free. The caller must retry [`take`](Self::take), because others wait too.
    pub(super) async fn wait_for(&self, len_bytes: usize) {
        let _stuck = self.stuck();
        poll_fn(|context| {
            if self.has_memory(len_bytes) {
                return Poll::Ready(());
            }
            lock(&self.waiters).push(context.waker().clone());
            // Checked again: memory freed before this waker was registered has not woken this waiter.
            if self.has_memory(len_bytes) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Wakes the waiters if a quarter of the limit is free. Call it without a lock: a woken task may run at
    /// once on this thread.
    pub(super) fn wake(&self) {
        if self.stuck.load(Ordering::SeqCst) == 0 || !self.has_quarter() {
            return;
        }
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Returns the number of retained bytes, including the overhead charged for each piece.
    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::SeqCst)
    }

    /// Updates the mount's count of uncommitted bytes after a file's count has changed.
    pub(super) fn count_uncommitted(&self, before_bytes: usize, after_bytes: usize) {
        match after_bytes.checked_sub(before_bytes) {
            Some(more) => self.uncommitted_bytes.fetch_add(more, Ordering::SeqCst),
            None => self.uncommitted_bytes.fetch_sub(before_bytes - after_bytes, Ordering::SeqCst),
        };
    }

    /// Counts a writer that waits for memory while the result lives.
    pub(super) fn stuck(&self) -> Stuck<'_> {
        self.stuck.fetch_add(1, Ordering::SeqCst);
        Stuck(self)
    }

    /// Returns `true` if uncommitted data should get a COMMIT: they use half of the limit, or a writer waits
    /// for memory. A writer may wait earlier, because small pieces use far more memory than their bytes.
    pub(super) fn is_scarce(&self) -> bool {
        self.stuck.load(Ordering::SeqCst) > 0
            || self.uncommitted_bytes.load(Ordering::SeqCst) >= self.limit_bytes / 2
    }

    /// Returns the usage with one more piece, if that is allowed.
    fn with(&self, used_bytes: usize, len_bytes: usize) -> Option<usize> {
        let sum = used_bytes.saturating_add(len_bytes).saturating_add(OVERHEAD_BYTES);
        (used_bytes == 0 || sum <= self.limit_bytes).then_some(sum)
    }

    fn has_memory(&self, len_bytes: usize) -> bool {
        self.with(self.used_bytes(), len_bytes).is_some()
    }

    fn has_quarter(&self) -> bool {
        self.used_bytes() <= self.limit_bytes / 4 * 3
    }
}

/// Memory taken from the allowance, returned on drop. The drop wakes no waiter: see [`Allowance::wake`].
#[derive(Debug)]
pub(super) struct Charge {
    allowance: Arc<Allowance>,
    bytes: usize,
}

impl Charge {
    /// Adds memory that is allocated already, beyond the request; succeeds above the limit too.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.allowance.used_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.bytes += bytes;
    }

    pub(super) fn absorb(&mut self, mut other: Charge) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.allowance.used_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn sole_user_may_exceed_allowance_and_others_wait() {
        let allowance = Allowance::new(4096);
        let long = allowance.take(1 << 20).expect("alone");
        assert!(allowance.take(1).is_none());
        drop(long);
        let first = allowance.take(1000).expect("within the budget");
        assert!(allowance.take(4096).is_none());
        let mut second = allowance.take(1000).expect("within the limit");
        second.absorb(first);
        second.grow(5000);
        assert_eq!(allowance.used_bytes(), 7000 + 2 * OVERHEAD_BYTES);
        drop(second);
        assert_eq!(allowance.used_bytes(), 0);
    }

    #[test]
    fn waiters_are_woken_once_a_quarter_is_free() {
        let allowance = Allowance::new(40_000);
        let charges: Vec<_> = (0..3).map(|_| allowance.take(12_000).expect("within the budget")).collect();
        let woken = Arc::new(AtomicUsize::new(0));
        let (waiter, counter) = (allowance.clone(), woken.clone());
        tombolo_host_runtime::task::spawn(async move {
            waiter.wait_for(12_000).await;
            counter.fetch_add(1, Ordering::SeqCst);
        });
        allowance.wake();
        assert_eq!(woken.load(Ordering::SeqCst), 0);
        let mut charges = charges.into_iter();
        drop(charges.next());
        allowance.wake();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }
}
