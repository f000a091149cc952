//! A disk that simulates power failures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{BlockDevice, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, SessionId, Stability};
use tombolo_mem::{Buffer, Source};

/// A disk that keeps flushed sectors, and any subset of the others.
pub struct LossyDisk {
    now: MemoryDisk,
    durable: MemoryDisk,
    /// Ranges changed since the last flush.
    changed: Mutex<Vec<Range>>,
    /// Number of flushes before one fails.
    flushes_left: AtomicU32,
}

fn copy(from: &MemoryDisk, to: &MemoryDisk, range: Range) {
    let (cx, len) = (Ctx::root(SessionId(1)), range.len_bytes as usize);
    let buffer = Buffer::new(len);
    from.read(&cx, range.offset, buffer.sink(0..len)).wait().expect("read");
    to.write(&cx, range.offset, Stability::Unstable, buffer.source(0..len)).wait().expect("written");
}

impl LossyDisk {
    pub fn new(size_bytes: u64) -> Self {
        let disk = || MemoryDisk::new(size_bytes).expect("a disk");
        Self { now: disk(), durable: disk(), changed: Mutex::default(), flushes_left: u32::MAX.into() }
    }

    /// Makes the power fail during a flush, after this number of complete ones.
    pub fn fails_after(&self, flushes: u32) {
        self.flushes_left.store(flushes, Ordering::Relaxed);
    }

    /// Simulates a power failure: any subset of the sectors changed since the last flush is lost.
    pub fn lose_power(&self, rng: &mut fastrand::Rng) {
        self.fails_after(u32::MAX);
        let keeps = rng.u8(0..=4);
        for range in self.changed.lock().expect("the changes").drain(..) {
            for offset in (range.offset..range.end()).step_by(512) {
                let sector = Range { offset, len_bytes: 512 };
                match rng.u8(0..4) < keeps {
                    true => copy(&self.now, &self.durable, sector),
                    false => copy(&self.durable, &self.now, sector),
                }
            }
        }
    }

    fn changes(&self, offset: u64, len_bytes: u64) {
        self.changed.lock().expect("the changes").push(Range { offset, len_bytes });
    }
}

impl BlockDevice for LossyDisk {
    tombolo_core::forward_disk!(to self.now; geometry read extents);

    fn profile(&self) -> Profile {
        Profile { has_cache: true, ..self.now.profile() }
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.changes(offset, from.len() as u64);
        self.now.write(cx, offset, stability, from)
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        let one_less = |left: u32| left.checked_sub(1);
        if self.flushes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Answer::err(Error::io("the power is gone"));
        }
        for range in self.changed.lock().expect("the changes").drain(..) {
            copy(&self.now, &self.durable, range);
        }
        Answer::ok(())
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.changes(range.offset, range.len_bytes);
        self.now.discard(cx, range)
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.changes(range.offset, range.len_bytes);
        self.now.write_zeroes(cx, range, how)
    }
}
