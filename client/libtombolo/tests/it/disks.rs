//! Copies of disks: over existing data, interrupted at any moment, and their durable progress.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use libtombolo::block_on;
use libtombolo::disk::{Copy, Ended, Fault, Step, Watched, compare, unreadable};
use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, SessionId, Stability};
use tombolo_mem::{Buffer, Sink, Source};

use crate::common::noise;

const MIB: usize = 1 << 20;
const SIZE: usize = 24 * MIB;

/// A disk that tracks what survives a power loss, completes writes in any order, and fails where told to.
struct Spied {
    now: MemoryDisk,
    /// Its bytes at the last flush.
    stable: Mutex<Vec<u8>>,
    /// Writes from this offset on fail.
    full_at: AtomicU64,
    /// Number of flushes before `lost_at`, where one flush fails once and loses what was not durable.
    flushes: AtomicU64,
    lost_at: u64,
    /// Unreadable bytes.
    bad: Option<Range>,
    requests: AtomicU64,
    zeroed: AtomicU64,
    lowest_read: AtomicU64,
}

impl Spied {
    fn holding(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self::new(bytes))
    }

    fn new(bytes: &[u8]) -> Self {
        let now = MemoryDisk::new(bytes.len() as u64).expect("memory");
        for (index, piece) in bytes.chunks(MIB).enumerate() {
            if piece.iter().any(|byte| *byte != 0) {
                put(&now, (index * MIB) as u64, piece);
            }
        }
        Self {
            now,
            stable: Mutex::new(bytes.to_vec()),
            full_at: AtomicU64::new(u64::MAX),
            flushes: AtomicU64::new(0),
            lost_at: u64::MAX,
            bad: None,
            requests: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
            lowest_read: AtomicU64::new(u64::MAX),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let size_bytes = self.now.geometry().size_bytes as usize;
        let mut buffer = Buffer::new(size_bytes);
        self.now.read(&cx(), 0, buffer.sink(0..size_bytes)).wait().expect("read");
        buffer.as_slice().expect("ours").to_vec()
    }

    fn stable(&self) -> Vec<u8> {
        self.stable.lock().expect("stable").clone()
    }

    /// Delays an answer by a number of polls that varies by request.
    fn later<T: Send + 'static>(&self, done: Answer<T>) -> Answer<T> {
        let mut turns = self.requests.fetch_add(1, Ordering::Relaxed) * 7 % 5;
        Answer::later(async move {
            poll_fn(|context| {
                turns = turns.saturating_sub(1);
                context.waker().wake_by_ref();
                if turns == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            done.resolve().await
        })
    }
}

fn cx() -> Ctx {
    Ctx::root(SessionId(0))
}

fn put(disk: &dyn BlockDevice, offset: u64, bytes: &[u8]) {
    disk.write(&cx(), offset, Stability::Unstable, Source::from(bytes.to_vec())).wait().expect("write");
}

impl BlockDevice for Spied {
    fn profile(&self) -> Profile {
        self.now.profile()
    }

    fn geometry(&self) -> Geometry {
        self.now.geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.lowest_read.fetch_min(offset, Ordering::Relaxed);
        let end = offset + into.len() as u64;
        if self.bad.is_some_and(|bad| offset < bad.end() && bad.offset < end) {
            return Answer::err(Error::io("bad block"));
        }
        self.later(self.now.read(cx, offset, into))
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        if offset + from.len() as u64 > self.full_at.load(Ordering::Relaxed) {
            return Answer::err(Error::NoSpace);
        }
        self.later(self.now.write(cx, offset, stability, from))
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        if self.flushes.fetch_add(1, Ordering::Relaxed) == self.lost_at {
            put(&self.now, 0, &self.stable());
            return Answer::err(Error::io("the server was restarted meanwhile"));
        }
        *self.stable.lock().expect("stable") = self.bytes();
        self.later(Answer::ok(()))
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.now.discard(cx, range)
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.zeroed.fetch_add(range.len_bytes, Ordering::Relaxed);
        self.later(self.now.write_zeroes(cx, range, how))
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.now.extents(cx, range, count_max)
    }
}

/// Returns data with holes, written zeroes, and an incomplete last piece.
fn content() -> Vec<u8> {
    let mut bytes = noise(SIZE + 4096 + 512, 5);
    bytes[2 * MIB..9 * MIB].fill(0);
    bytes[10 * MIB + 4096..10 * MIB + 3 * 4096].fill(0);
    bytes[11 * MIB + 512..11 * MIB + 1024].fill(0);
    bytes[13 * MIB..13 * MIB + 65536].fill(0);
    bytes
}

fn copy_of(from: &Arc<Spied>, to: &Arc<Spied>) -> Copy {
    Copy {
        from: from.clone(),
        to: to.clone(),
        start: 0,
        is_blank: false,
        durable_every_bytes: 2 * MIB as u64,
        stop: Arc::new(AtomicBool::new(false)),
        watched: Watched::default(),
    }
}

#[test]
fn copy_resumes_from_reported_durable_position_over_any_data() {
    let bytes = content();
    let (from, to) = (Spied::holding(&bytes), Spied::holding(&vec![0xaa; bytes.len()]));
    let mut left = Vec::new();
    let ended = block_on(copy_of(&from, &to).run(|durable| {
        let stable = to.stable();
        assert_eq!(&stable[..durable as usize], &bytes[..durable as usize], "not durable at {durable}");
        left.push((durable, stable));
        Ok(())
    }));
    assert!(matches!(ended, Ok(Ended::Complete)), "{ended:?}");
    assert!(to.stable() == bytes && left.len() > 2, "{}", left.len());

    // A power loss at each of these moments loses all other writes.
    for (start, stable) in left {
        let (from, to) = (Spied::holding(&bytes), Spied::holding(&stable));
        let ended = block_on(Copy { start, ..copy_of(&from, &to) }.run(|_| Ok(())));
        assert!(matches!(ended, Ok(Ended::Complete)), "{ended:?}");
        assert!(to.bytes() == bytes, "after {start}");
        assert!(from.lowest_read.load(Ordering::Relaxed) >= start - start % 4096, "copied again");
    }
}

#[test]
fn zeroes_are_skipped_on_blank_disks_and_written_elsewhere() {
    let bytes = content();
    let from = Spied::holding(&bytes);
    let blank = Spied::holding(&vec![0; bytes.len()]);
    let copy = Copy { is_blank: true, ..copy_of(&from, &blank) };
    let watched = copy.watched.clone();
    block_on(copy.run(|_| Ok(()))).expect("copied");
    assert!(blank.bytes() == bytes && blank.zeroed.load(Ordering::Relaxed) == 0);
    let tally = watched.tally();
    assert_eq!(tally.zero_bytes, (7 * MIB + 2 * 4096 + 65536) as u64);
    assert_eq!(
        (tally.done_bytes, tally.data_bytes + tally.zero_bytes),
        (bytes.len() as u64, tally.done_bytes)
    );
    let stop = AtomicBool::new(false);
    let compared = |one: &Arc<Spied>, other: &Arc<Spied>| {
        block_on(compare(one.clone(), other.clone(), &stop, Watched::default())).expect("compared")
    };
    assert_eq!(compared(&from, &blank), None);

    let old = Spied::holding(&vec![0xaa; bytes.len()]);
    block_on(copy_of(&from, &old).run(|_| Ok(()))).expect("copied");
    assert!(old.bytes() == bytes, "old data remain");
    // Within a hole of one disk, and within data.
    put(&old.now, 5 * MIB as u64, &[0; 512]);
    assert_eq!(compared(&from, &old), None);
    put(&old.now, 9 * MIB as u64 - 512, &[&[0; 500][..], &[1; 12]].concat());
    assert_eq!(compared(&from, &old), Some(9 * MIB as u64 - 12));
    assert_eq!(compared(&old, &from), Some(9 * MIB as u64 - 12));
}

#[test]
fn failed_or_stopped_disk_copy_retains_its_progress() {
    let bytes = content();
    let (from, to) = (Spied::holding(&bytes), Spied::holding(&vec![0; bytes.len()]));
    to.full_at.store(12 * MIB as u64 + 7, Ordering::Relaxed);
    let mut durable = 0;
    let ended = block_on(Copy { is_blank: true, ..copy_of(&from, &to) }.run(|place| {
        durable = place;
        Ok(())
    }));
    let Err(Fault { step: Step::Write, offset, error: Error::NoSpace }) = ended else { panic!("{ended:?}") };
    assert_eq!((offset, durable), (12 * MIB as u64, 12 * MIB as u64));
    to.full_at.store(u64::MAX, Ordering::Relaxed);
    block_on(Copy { start: durable, ..copy_of(&from, &to) }.run(|_| Ok(()))).expect("copied");
    assert!(to.stable() == bytes);

    let copy = copy_of(&from, &to);
    copy.stop.store(true, Ordering::Relaxed);
    assert!(matches!(block_on(copy.run(|_| Ok(()))), Ok(Ended::Stopped)));
}

#[test]
fn failed_flush_reports_nothing_as_durable() {
    let bytes = content();
    let from = Spied::holding(&bytes);
    let to = Arc::new(Spied { lost_at: 1, ..Spied::new(&vec![0xaa; bytes.len()]) });
    let mut durable = 0;
    let ended = block_on(copy_of(&from, &to).run(|place| {
        durable = place;
        Ok(())
    }));
    assert!(matches!(ended, Err(Fault { step: Step::Flush, .. })), "{ended:?}");
    assert!(durable > 0 && to.stable()[..durable as usize] == bytes[..durable as usize]);
    assert!(durable < bytes.len() as u64, "the flush that failed was not the last");
    block_on(Copy { start: durable, ..copy_of(&from, &to) }.run(|_| Ok(()))).expect("copied");
    assert!(to.stable() == bytes, "after {durable}");
}

#[test]
fn unreadable_blocks_are_reported() {
    let bad = Range { offset: 11 * MIB as u64 + 4096, len_bytes: 2 * 4096 };
    let disk = Arc::new(Spied { bad: Some(bad), ..Spied::new(&content()) });
    let stop = AtomicBool::new(false);
    let found = block_on(unreadable(disk, 10, &stop, Watched::default())).expect("read");
    assert_eq!((found.count, found.bytes), (1, 2 * 4096));
    assert_eq!(found.ranges[0].0, bad);
}
