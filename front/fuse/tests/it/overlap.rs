//! Concurrency: many requests of a mount are under way at a time.

use crate::common::Mounted;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tombolo_back_memory::Memory;
use tombolo_core::Answer;
use tombolo_core::fs::Export;
use tombolo_core::fs::Op;
use tombolo_front_fuse::dev::Options;
use tombolo_layer_basic::around::{Call, Payload};
use tombolo_layer_basic::{Around, Layered, delay};
use tombolo_wire_fuse::flags;

/// Counter of concurrent operations of each kind.
#[derive(Default)]
struct Overlap {
    reads: Gauge,
    writes: Gauge,
}

#[derive(Default)]
struct Gauge {
    now: AtomicU64,
    most: AtomicU64,
    bytes_most: AtomicU64,
}

impl Gauge {
    /// Returns the maximum number of concurrent operations and of bytes since the last call.
    fn most(&self) -> (u64, u64) {
        (self.most.swap(0, Ordering::SeqCst), self.bytes_most.swap(0, Ordering::SeqCst))
    }
}

impl Overlap {
    fn gauge(&self, op: Op) -> Option<&Gauge> {
        match op {
            Op::Read => Some(&self.reads),
            Op::Write => Some(&self.writes),
            _ => None,
        }
    }
}

struct Counting(Arc<Overlap>);

impl Around for Counting {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if let Some(gauge) = self.0.gauge(call.op) {
            gauge.most.fetch_max(gauge.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        let overlap = self.0.clone();
        inner().map(move |done| {
            if let Some(gauge) = overlap.gauge(call.op) {
                gauge.now.fetch_sub(1, Ordering::SeqCst);
                gauge.bytes_most.fetch_max(done.transferred_bytes(), Ordering::SeqCst);
            }
            done
        })
    }
}

const TIME: Duration = Duration::from_millis(5);
const O_DIRECT: i32 = OFlags::DIRECT.bits() as i32;
const _: () = assert!(flags::O_DIRECT == OFlags::DIRECT.bits());

/// Mounts a memory file system that answers after 5 ms, with a counter of its concurrent operations.
fn mounted(read_ahead_bytes: Option<u32>) -> (Mounted, Arc<Overlap>) {
    let overlap = Arc::new(Overlap::default());
    let slow = delay::over(Arc::new(Memory::default()), TIME).expect("a thread");
    let counted = Layered::<dyn Export, _>::new(Arc::new(slow), Arc::new(Counting(overlap.clone())));
    let options = Options { threads: 2, read_ahead_bytes, ..Options::default() };
    (Mounted::new(&counted, &options), overlap)
}

const MIB: usize = 1 << 20;
const PROGRAMS: u64 = 40;

#[test]
fn many_programs_write_and_read_at_a_time() {
    let (mounted, overlap) = mounted(None);
    let name = |number: u64| mounted.at(number.to_string());
    let files: Vec<_> = (0..PROGRAMS).map(|number| File::create(name(number)).expect("created")).collect();
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || file.write_all_at(&vec![7; MIB], 0).expect("written"));
        }
    });
    let (most, bytes) = overlap.writes.most();
    assert!(most >= PROGRAMS / 2, "{most} writes at a time");
    assert!(bytes > (MIB - 4096) as u64, "{bytes} bytes are not as many as there may be");
    let open =
        |number| OpenOptions::new().read(true).custom_flags(O_DIRECT).open(name(number)).expect("open");
    let files: Vec<_> = (0..PROGRAMS).map(open).collect();
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || file.read_exact_at(&mut vec![0; MIB], 0).expect("read"));
        }
    });
    let (most, _) = overlap.reads.most();
    assert!(most >= PROGRAMS / 2, "{most} reads at a time");
}

#[test]
fn one_reader_has_many_reads_under_way() {
    let (mounted, overlap) = mounted(Some(4 << 20));
    let path = mounted.at("file");
    fs::write(&path, vec![7; 32 * MIB]).expect("written");
    let direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path).expect("open");
    direct.read_exact_at(&mut vec![0; 32 * MIB], 0).expect("read");
    let (most, _) = overlap.reads.most();
    assert!(most >= 8, "{most} parts of a read at a time");
    let mut file = File::open(&path).expect("open");
    let mut piece = vec![0; 128 << 10];
    while file.read(&mut piece).expect("read") > 0 {}
    let (most, bytes) = overlap.reads.most();
    assert!(most >= 3, "{most} reads ahead of a program at a time");
    assert_eq!(bytes, MIB as u64, "as large as they may be");
}
