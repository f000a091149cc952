//! State that the implementations of disks share: current size and write protection ([`Bounds`]), and failed
//! flushes ([`FlushLoss`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_mem::Sink;

use super::geometry::padded;
use super::{Geometry, Range, SizeWatch, Sizes};
use crate::{Error, Result, lock};

/// The sizes of a disk that may be resized while in use, and its write protection. Usable from any thread.
pub struct Bounds {
    /// The initial sizes. [`Geometry::size_bytes`] in them is not updated: the next field is the current
    /// length.
    geometry: Geometry,
    size_bytes: AtomicU64,
    read_only: bool,
    sizes: Sizes,
}

impl Bounds {
    /// Returns the bounds of a disk with these initial sizes.
    pub fn new(geometry: Geometry, read_only: bool) -> Self {
        let size_bytes = AtomicU64::new(geometry.size_bytes);
        Self { geometry, size_bytes, read_only, sizes: Sizes::default() }
    }

    /// Returns the current sizes of the disk.
    pub fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes(), ..self.geometry }
    }

    /// Returns the current length, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Returns `true` if the disk refuses all changes.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Fails with [`Error::InvalidArgument`] for a range that is not entirely inside the disk.
    pub fn check(&self, range: Range) -> Result<()> {
        let is_inside = range.checked_end().is_some_and(|end| end <= self.size_bytes());
        if is_inside { Ok(()) } else { Err(Error::InvalidArgument) }
    }

    /// Checks a range that is to be changed: also fails with [`Error::ReadOnly`] on a read-only disk.
    pub fn check_change(&self, range: Range) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { self.check(range) }
    }

    /// Fails with [`Error::InvalidArgument`] for a length of zero or with a partial block, and with
    /// [`Error::ReadOnly`] if the disk is read-only.
    pub fn check_new_size(&self, size_bytes: u64) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(self.geometry.block_bytes)) {
            return Err(Error::InvalidArgument);
        }
        Ok(())
    }

    /// Returns the length of a disk stored in `size_bytes` bytes of a file. The part of the last block that
    /// is missing from the file reads as zeroes.
    pub fn padded(&self, size_bytes: u64) -> u64 {
        padded(size_bytes, self.geometry.block_bytes)
    }

    /// Zero-fills `into`, the part at `offset` that a read of the disk's file left unfilled because the file
    /// ended, if it is padding: beyond the file's `size_bytes`, and not beyond the disk's last block. Returns
    /// `false` otherwise: the file was truncated, or has grown since the read.
    pub fn pad(&self, size_bytes: u64, offset: u64, into: &Sink) -> bool {
        // A file that has grown since the read may have data at `offset`: only the padding is zero-filled.
        let is_padding =
            offset >= size_bytes && offset.saturating_add(into.len() as u64) <= self.padded(size_bytes);
        is_padding && into.zero(0, into.len()) == into.len()
    }

    /// Records the present length, and notifies the watchers if it has changed.
    pub fn resized(&self, size_bytes: u64) {
        if self.size_bytes.swap(size_bytes, Ordering::AcqRel) != size_bytes {
            self.sizes.changed(size_bytes);
        }
    }

    /// Notifies `watch` of each new size from now on ([`Resize::watch`](super::Resize::watch)).
    pub fn watch(&self, watch: &Arc<SizeWatch>) {
        self.sizes.watch(watch);
    }
}

/// A latch for failed flushes. Data lost by a failed flush stay lost: fsync(2) and most file systems report
/// the failure once only, and the next flush would succeed and wrongly claim durability.
#[derive(Default)]
pub struct FlushLoss {
    occurred: AtomicBool,
    flushing: Mutex<()>,
}

impl FlushLoss {
    /// Returns `true` if a flush has ever failed, so that data may be lost.
    pub fn has_occurred(&self) -> bool {
        self.occurred.load(Ordering::Acquire)
    }

    /// Fails with [`Error::Io`] if an earlier flush has failed.
    pub fn check(&self) -> Result<()> {
        match self.has_occurred() {
            true => Err(Error::io("an earlier flush failed: data written before it may be lost")),
            false => Ok(()),
        }
    }

    /// Runs `flush`, or fails if a flush has failed before. Only one flush runs at a time: a second one in
    /// parallel with a failing one could succeed before the failure is recorded.
    pub fn guard(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let _alone = lock(&self.flushing);
        self.check()?;
        flush().inspect_err(|_| self.occurred())
    }

    /// Records a failed flush. A flush that cannot run in [`guard`](Self::guard), because it is a future,
    /// must call this when it fails.
    pub fn occurred(&self) {
        self.occurred.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn bounds(read_only: bool) -> Bounds {
        Bounds::new(Geometry::of_file(1 << 20).in_blocks(4096).expect("a size"), read_only)
    }

    #[test]
    fn a_range_is_checked_against_the_present_size() {
        let bounds = bounds(false);
        let last = Range { offset: (1 << 20) - 4096, len_bytes: 4096 };
        bounds.check(last).expect("inside");
        bounds.resized((1 << 20) - 4096);
        assert!(matches!(bounds.check(last), Err(Error::InvalidArgument)));
        let no_number = Range { offset: u64::MAX, len_bytes: 4096 };
        assert!(matches!(bounds.check_change(no_number), Err(Error::InvalidArgument)));
    }

    #[test]
    fn a_read_only_disk_is_neither_changed_nor_resized() {
        let bounds = bounds(true);
        assert!(matches!(bounds.check_change(Range { offset: 0, len_bytes: 4096 }), Err(Error::ReadOnly)));
        assert!(matches!(bounds.check_new_size(4096), Err(Error::ReadOnly)));
    }

    #[test]
    fn flush_concurrent_with_failing_one_fails() {
        let loss = FlushLoss::default();
        thread::scope(|scope| {
            let (began, begins) = mpsc::channel();
            let loss = &loss;
            let failed = loss.guard(|| {
                let other = scope.spawn(move || {
                    loss.guard(|| {
                        began.send(()).expect("a receiver");
                        Ok(())
                    })
                });
                let is_beside = begins.recv_timeout(Duration::from_millis(50)).is_ok();
                assert!(!is_beside && !other.is_finished(), "it waits");
                Err(Error::io("lost"))
            });
            failed.expect_err("it has");
            begins.recv().expect_err("the other has not begun");
        });
        loss.guard(|| Ok(())).expect_err("lost is lost");
    }

    #[test]
    fn resize_requires_whole_blocks_and_notifies_once() {
        let bounds = bounds(false);
        for size_bytes in [0, 4095, 512] {
            assert!(matches!(bounds.check_new_size(size_bytes), Err(Error::InvalidArgument)));
        }
        assert_eq!((bounds.padded(8191), bounds.padded(8192)), (8192, 8192));
        let notified = Arc::new(Mutex::new(Vec::new()));
        let watch: Arc<SizeWatch> = Arc::new({
            let notified = notified.clone();
            move |size_bytes| notified.lock().expect("a lock").push(size_bytes)
        });
        bounds.watch(&watch);
        bounds.resized(8192);
        bounds.resized(8192);
        assert_eq!(*notified.lock().expect("a lock"), [8192]);
    }
}
