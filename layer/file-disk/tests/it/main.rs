//! Tests specific to files as disks; requirements of all disks are in the conformance suite.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use tombolo_allocations::of_this_thread;
use tombolo_back_memory::Memory;
use tombolo_core::block::{Allocation, BlockDevice, BlockSizeError, OpenOptions, Range, Zeroing};
use tombolo_core::fs::{Export, File, Op, PermissionCheck, SetAttr};
use tombolo_core::{Error, Result, Stability, block_on};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::fault::{self, Plan, Rule, What, When};
use tombolo_layer_file_disk::{FileDisk, OpenError};
use tombolo_mem::{Buffer, Source};
use tombolo_test_support::{Act, Scripted, Session, with_session};

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;

const SIZE_BYTES: u64 = 1 << 20;

/// A file system with a directory `d` and in it a file `disk`.
struct Bed {
    session: Session,
    file: File,
}

with_session!(Bed);

impl Bed {
    fn new(export: &dyn Export) -> Self {
        let session = Session::checked(export, PermissionCheck::Caller);
        session.dir("d");
        let bed = Self { file: session.file("d/disk"), session };
        bed.set_size(SIZE_BYTES);
        bed
    }

    /// Changes the file's size behind the disk's back.
    fn set_size(&self, size_bytes: u64) {
        let set = SetAttr { size: Some(size_bytes), ..SetAttr::default() };
        self.fs.setattr(&self.cx, self.file.node, Some(self.file), &set).wait().expect("its size");
    }

    fn opened(&self, path: &str, options: &OpenOptions) -> std::result::Result<Arc<FileDisk>, OpenError> {
        block_on(FileDisk::open(self.fs.clone(), self.cx.clone(), path.as_bytes(), options))
    }

    fn disk(&self) -> Arc<FileDisk> {
        self.opened("d/disk", &OpenOptions::default()).expect("opened")
    }

    fn read_disk(&self, disk: &FileDisk, offset: u64) -> Result<()> {
        let buffer = Buffer::new(4096);
        disk.read(&self.cx, offset, buffer.sink(0..4096)).wait()
    }

    fn write_disk(&self, disk: &FileDisk, offset: u64) -> Result<()> {
        disk.write(&self.cx, offset, Stability::Unstable, Source::from(vec![7; 4096])).wait()
    }
}

fn faulty(op: Op, when: When, error: fn() -> Error) -> impl Export {
    let rules = vec![Rule { op: Some(op), when, what: What::Fail(error) }];
    fault::over(Arc::new(Memory::default()), Plan { rules, seed: 0 })
}

fn failing(op: Op, when: When, error: fn() -> Error) -> Bed {
    Bed::new(&faulty(op, when, error))
}

#[test]
fn truncated_file_fails_only_beyond_its_end() {
    let bed = Bed::new(&Memory::default());
    let disk = bed.disk();
    bed.set_size(SIZE_BYTES / 2);
    bed.read_disk(&disk, 0).expect("still there");
    for offset in [SIZE_BYTES / 2 - 2048, SIZE_BYTES / 2, SIZE_BYTES - 4096] {
        assert!(matches!(bed.read_disk(&disk, offset), Err(Error::Io { .. })), "at {offset}");
    }
    let whole = Range { offset: 0, len_bytes: SIZE_BYTES };
    let extents = disk.extents(&bed.cx, whole, 10).wait().expect("extents");
    assert_eq!(extents.as_slice().iter().map(|extent| extent.len_bytes).sum::<u64>(), SIZE_BYTES);
    bed.set_size(SIZE_BYTES);
    bed.read_disk(&disk, SIZE_BYTES - 4096).expect("whole again");
}

#[test]
fn non_disk_is_refused() {
    let bed = Bed::new(&Memory::default());
    let options = OpenOptions::default();
    assert!(matches!(bed.opened("d/missing", &options), Err(OpenError::Refused(Error::NotFound))));
    assert!(matches!(bed.opened("d", &options), Err(OpenError::NotAFile)));
    assert!(matches!(bed.opened("/", &options), Err(OpenError::Refused(Error::IsDirectory))));
    assert!(matches!(bed.opened("d/../d/disk", &options), Err(OpenError::Refused(_))));
    let thirds = OpenOptions { block_bytes: 1536, ..options };
    assert!(matches!(
        bed.opened("d/disk", &thirds),
        Err(OpenError::BlockSize(BlockSizeError::Size { block_bytes: 1536 }))
    ));
    bed.set_size(0);
    assert!(matches!(bed.opened("/d/disk", &options), Err(OpenError::Empty)));
    bed.set_size((1 << 55) + 1);
    assert!(matches!(bed.opened("/d/disk", &options), Err(OpenError::Size(_))));
}

#[test]
fn file_of_partial_blocks_is_padded_and_grows() {
    let bed = Bed::new(&Memory::default());
    let put = |offset, bytes: &[u8]| bed.write_all(bed.file, offset, bytes);
    for block_bytes in [512_u32, 4096] {
        bed.set_size(0);
        put(0, &[1; 8192]);
        put(8192, b"TAIL");
        let options = OpenOptions { block_bytes, ..OpenOptions::default() };
        let disk = bed.opened("/d//disk", &options).expect("opened");
        let (block, size_bytes) = (block_bytes as usize, 8192 + u64::from(block_bytes));
        assert_eq!(disk.geometry().size_bytes, size_bytes);
        let read = |offset: u64| {
            let mut buffer = Buffer::new((size_bytes - offset) as usize);
            disk.read(&bed.cx, offset, buffer.sink(0..buffer.len())).wait().expect("read");
            buffer.as_slice().expect("ours alone again").to_vec()
        };
        let end = [b"TAIL".to_vec(), vec![0; block - 4]].concat();
        assert!(read(8192) == end && read(0).ends_with(&end));
        let all =
            disk.extents(&bed.cx, Range { offset: 0, len_bytes: size_bytes }, 10).wait().expect("extents");
        assert_eq!(all.as_slice().iter().map(|extent| extent.len_bytes).sum::<u64>(), size_bytes);
        let written = [vec![7; block - 1], vec![8]].concat();
        disk.write(&bed.cx, 8192, Stability::DataSync, Source::from(written.clone()))
            .wait()
            .expect("written");
        assert!(read(8192) == written);
        assert_eq!(bed.attr(bed.file.node).size, size_bytes);
    }
}

#[test]
fn a_file_is_closed_when_its_disk_is_gone() {
    let bed = Bed::new(&Memory::default());
    let (first, other) = (bed.disk(), bed.opened("d/disk", &OpenOptions::default()));
    assert!(matches!(other, Err(OpenError::InUse)));
    drop(first);
    bed.disk();
}

/// Puts a layer over an export that withholds the answers of syncs until the promise is kept.
fn syncs_last(inner: Arc<dyn Export>, gate: &Arc<Promise<()>>) -> Arc<dyn Export> {
    let gate = gate.clone();
    Scripted::over(inner, move |call| match call.op {
        Op::Fsync => Act::Withhold(gate.clone()),
        _ => Act::Pass,
    })
}

#[test]
fn flush_and_stable_zeroes_wait_for_sync() {
    let unmapping = Zeroing { may_unmap: true, stability: Stability::DataSync, ..Zeroing::default() };
    for how in [None, Some(unmapping), Some(Zeroing { may_unmap: false, ..unmapping })] {
        let gate = Arc::<Promise<()>>::default();
        let bed = Bed::new(&*syncs_last(Arc::new(Memory::default()), &gate));
        let disk = bed.disk();
        bed.write_disk(&disk, 0).expect("written");
        let answer = match how {
            None => disk.flush(&bed.cx),
            Some(how) => disk.write_zeroes(&bed.cx, Range { offset: 0, len_bytes: 4096 }, how),
        };
        let mut answer = pin!(answer.resolve());
        let mut context = Context::from_waker(Waker::noop());
        assert!(answer.as_mut().poll(&mut context).is_pending(), "{how:?}: nothing is durable yet");
        gate.keep(());
        block_on(answer).expect("durable");
    }
}

#[test]
fn no_flush_succeeds_after_one_lost_data() {
    let bed = failing(Op::Fsync, When::Nth(1), || Error::Io { source: None });
    let disk = bed.disk();
    bed.write_disk(&disk, 0).expect("written");
    for _ in 0..2 {
        assert!(matches!(disk.flush(&bed.cx).wait(), Err(Error::Io { .. })));
    }
    let bed = failing(Op::Fsync, When::Nth(1), || Error::Disconnected);
    let disk = bed.disk();
    assert!(matches!(disk.flush(&bed.cx).wait(), Err(Error::Disconnected)));
    disk.flush(&bed.cx).wait().expect("connected again, and nothing was lost");
}

#[test]
fn concurrent_flushes_fail_after_first_lost_data() {
    let gate = Arc::<Promise<()>>::default();
    let faulty = faulty(Op::Fsync, When::Nth(1), || Error::Io { source: None });
    let bed = Bed::new(&*syncs_last(Arc::new(faulty), &gate));
    let disk = bed.disk();
    bed.write_disk(&disk, 0).expect("written");
    let [first, second] = [disk.flush(&bed.cx), disk.flush(&bed.cx)];
    gate.keep(());
    assert!(matches!(second.wait(), Err(Error::Io { .. })), "it began before the other one had failed");
    assert!(matches!(first.wait(), Err(Error::Io { .. })));
}

#[test]
fn full_file_system_fails_only_new_allocations() {
    let bed = failing(Op::Write, When::Nth(2), || Error::NoSpace);
    let disk = bed.disk();
    bed.write_disk(&disk, 0).expect("written");
    assert!(matches!(bed.write_disk(&disk, 4096), Err(Error::NoSpace)));
    bed.write_disk(&disk, 4096).expect("there is room again");
}

#[test]
fn zeroes_are_written_without_hole_support() {
    let bed = failing(Op::Allocate, When::Always, || Error::NotSupported);
    let disk = bed.disk();
    bed.write_disk(&disk, 0).expect("written");
    let range = Range { offset: 0, len_bytes: 4096 };
    let fast = Zeroing { only_fast: true, ..Zeroing::default() };
    assert!(matches!(disk.write_zeroes(&bed.cx, range, fast).wait(), Err(Error::NotSupported)));
    disk.write_zeroes(&bed.cx, range, Zeroing::default()).wait().expect("zeroed");
    disk.discard(&bed.cx, range).wait().expect("nothing to be done");
    let bed = failing(Op::Seek, When::Always, || Error::NotSupported);
    let extents = bed.disk().extents(&bed.cx, range, 10).wait().expect("extents");
    assert!(
        matches!(extents.as_slice(), [data] if data.allocation == Allocation::Data && data.len_bytes == 4096)
    );
}

#[test]
fn immediate_answers_do_not_allocate() {
    let bed = Bed::new(&Memory::default());
    let disk = bed.disk();
    bed.write_disk(&disk, 0).expect("written, so that the page is there");
    // The first flush allocates what waiters need.
    disk.flush(&bed.cx).wait().expect("flushed");
    let buffer = Buffer::new(4096);
    let before = of_this_thread();
    for _ in 0..100 {
        for stability in [Stability::Unstable, Stability::DataSync] {
            disk.write(&bed.cx, 0, stability, buffer.source(0..4096)).wait().expect("written");
        }
        disk.read(&bed.cx, 0, buffer.sink(0..4096)).wait().expect("read");
        disk.flush(&bed.cx).wait().expect("flushed");
    }
    assert_eq!(of_this_thread() - before, 0);
}
