//! Disks as files: contents and attributes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{BlockDevice, Range, Zeroing};
use tombolo_core::fs::{
    AllocateMode, Cookie, DirBudget, File, Mode, Op, OpenFlags, PermissionCheck, SyncScope, Whence, Write,
};
use tombolo_core::{Answer, Ctx, Error, Identity, Stability};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_disk_files::DiskFiles;
use tombolo_mem::{Buffer, Source};
use tombolo_test_support::{Act, Scripted, Session, name, until};

const SIZE_BYTES: u64 = 64 << 10;

fn files(disks: Vec<(&str, Arc<dyn BlockDevice>)>) -> DiskFiles {
    let disks = disks.into_iter().map(|(text, disk)| (name(text).to_owned(), disk));
    DiskFiles::new(disks, Identity { uid: 7, gid: 8, groups: None })
}

fn attached(files: &DiskFiles) -> Session {
    Session::checked(files, PermissionCheck::Caller)
}

fn attach(disks: Vec<(&str, Arc<dyn BlockDevice>)>) -> Session {
    attached(&files(disks))
}

fn bed() -> (Session, File) {
    let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(SIZE_BYTES).expect("a disk"));
    let session = attach(vec![("memory", disk)]);
    let file = session.writer("memory");
    (session, file)
}

#[test]
fn directory_lists_each_disk_as_file() {
    let small: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(4096).expect("a disk"));
    let fixed: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::read_only(8192).expect("a disk"));
    let session = attach(vec![("a", small), ("b", fixed)]);
    // Three entries fit on a page.
    let budget = DirBudget { size_bytes: 76, entry_bytes: 24, align: 1, plus: true };
    let root = session.open_dir("").expect("open");
    let page = session.readdir(root, Cookie::START, budget).expect("a page");
    let names: Vec<_> = page.iter().map(|entry| (entry.name.to_vec(), entry.cookie)).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(!page.is_end());
    let rest = session.readdir(root, names[2].1, budget).expect("a page");
    assert_eq!(rest.iter().map(|entry| entry.name.to_vec()).collect::<Vec<_>>(), [b"b"]);
    assert!(rest.is_end());
    let shown = |text| {
        let attr = session.attr(text);
        (attr.size, attr.mode, attr.uid, attr.gid)
    };
    assert_eq!(shown("a"), (4096, Mode::new(0o600), 7, 8));
    assert_eq!(shown("b"), (8192, Mode::new(0o400), 7, 8));
    assert!(matches!(session.lookup("c"), Err(Error::NotFound)));
    assert!(matches!(session.open("b", OpenFlags::WRITE), Err(Error::ReadOnly)));
}

#[test]
fn unaligned_reads_and_writes_affect_only_their_bytes() {
    let (session, file) = bed();
    let mut model = vec![0; SIZE_BYTES as usize];
    for (at, len) in [(0, 4096), (511, 2), (100, 7), (1000, 3000), (512, 512), (SIZE_BYTES as usize - 3, 3)] {
        let bytes: Vec<u8> = (0..len).map(|i| (at + i * 7) as u8 | 1).collect();
        assert_eq!(session.write(file, at as u64, &bytes).expect("written"), len);
        model[at..at + len].copy_from_slice(&bytes);
    }
    for (at, len) in [(0, SIZE_BYTES as usize), (1, 1), (513, 2000)] {
        assert_eq!(session.read(file, at as u64, len).expect("read"), model[at..at + len], "{at} {len}");
    }
    assert_eq!(
        session.read_eof(file, SIZE_BYTES - 10, 100).expect("read"),
        (model[model.len() - 10..].to_vec(), true)
    );
    assert_eq!(session.read_eof(file, SIZE_BYTES, 100).expect("read"), (vec![], true));
    // The part before the end is written.
    assert_eq!(session.write(file, SIZE_BYTES - 5, b"0123456789").expect("the first of them"), 5);
    assert!(matches!(session.write(file, SIZE_BYTES, b"x"), Err(Error::NoSpace)));
    session.fs.fsync(&session.cx, file, SyncScope::Data).wait().expect("durable");
}

#[test]
fn length_names_and_times_never_change() {
    let (session, file) = bed();
    let before = session.attr(file.node);
    session.write(file, 0, b"data").expect("written");
    assert_eq!(session.attr(file.node), before);
    session.truncate(file.node, SIZE_BYTES).expect("it has this length");
    assert!(matches!(session.truncate(file.node, 0), Err(Error::NotPermitted)));
    let truncated = session.open(file.node, OpenFlags::WRITE | OpenFlags::TRUNCATE);
    assert!(matches!(truncated, Err(Error::NotPermitted)));
    assert!(matches!(session.unlink("memory"), Err(Error::NotPermitted)));
    assert_eq!(session.read(file, 0, 4).expect("read"), b"data");
}

#[test]
fn disk_file_holes_are_punched_and_found() {
    let (session, file) = bed();
    let ranges = session.ranges();
    session.write(file, 0, &[7; 16384]).expect("written");
    let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    ranges.allocate(&session.cx, file, 4000, 5000, punch).wait().expect("a hole");
    let mut model = vec![7; 16384];
    model[4000..9000].fill(0);
    assert_eq!(session.read(file, 0, 16384).expect("read"), model);
    let seek = |offset, whence| ranges.seek(&session.cx, file, offset, whence).wait().ok();
    assert_eq!(seek(0, Whence::Hole), Some(4096));
    assert_eq!(seek(5000, Whence::Hole), Some(5000), "inside of it");
    assert_eq!(seek(4096, Whence::Data), Some(8192));
    assert_eq!((seek(16384, Whence::Data), seek(SIZE_BYTES - 1, Whence::Hole)), (None, Some(SIZE_BYTES - 1)));
    // Allocation is granted within the file, but not beyond its end.
    ranges.allocate(&session.cx, file, 0, SIZE_BYTES, AllocateMode::empty()).wait().expect("it is there");
    let longer = ranges.allocate(&session.cx, file, 0, SIZE_BYTES + 1, AllocateMode::empty()).wait();
    assert!(matches!(longer, Err(Error::FileTooLarge)));
    assert_eq!(session.read(file, 9000, 100).expect("read"), [7; 100]);
}

#[test]
fn concurrent_partial_block_writes_are_preserved() {
    let (is_read, go_on) = (Arc::<AtomicBool>::default(), Arc::<Promise<()>>::default());
    let (reached, held) = (is_read.clone(), go_on.clone());
    let disk = Arc::new(MemoryDisk::new(SIZE_BYTES).expect("a disk"));
    let first_waits = Scripted::over_disk(disk, move |call| {
        match call.op == Op::Read && !reached.swap(true, Ordering::SeqCst) {
            true => Act::Withhold(held.clone()),
            false => Act::Pass,
        }
    });
    let session = attach(vec![("memory", first_waits)]);
    let file = session.writer("memory");
    thread::scope(|scope| {
        let part = scope.spawn(|| session.write(file, 10, b"part").expect("written"));
        until("it has read the block", || is_read.load(Ordering::SeqCst));
        let buffer = Buffer::new(512);
        buffer.sink(0..512).write_at(0, &[1; 512]);
        let whole = session.fs.write(&session.cx, file, &Write::default(), buffer.source(0..512));
        let is_early = whole.is_done();
        go_on.keep(());
        part.join().expect("no panic");
        whole.wait().expect("written");
        assert!(!is_early, "it waits for its turn");
    });
    assert_eq!(session.read(file, 0, 512).expect("read"), [1; 512], "the later one has the last word");
}

/// A disk whose next change fails, and which zeroes only whole blocks.
struct Failing(MemoryDisk, AtomicBool);

impl BlockDevice for Failing {
    tombolo_core::forward_disk!(to self.0; profile geometry read flush discard extents);

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        if self.1.swap(false, Ordering::Relaxed) {
            return Answer::err(Error::NoSpace);
        }
        self.0.write(cx, offset, stability, from)
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        if self.geometry().check(range.offset, range.len_bytes).is_err() {
            return Answer::err(Error::InvalidArgument);
        }
        if self.1.swap(false, Ordering::Relaxed) {
            return Answer::err(Error::NoSpace);
        }
        self.0.write_zeroes(cx, range, how)
    }
}

#[test]
fn no_sync_succeeds_after_a_failed_write() {
    for (offset, len) in [(0, 4096), (10, 4)] {
        let disk = Arc::new(Failing(MemoryDisk::new(SIZE_BYTES).expect("a disk"), AtomicBool::new(false)));
        let files = files(vec![("memory", disk.clone())]);
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        files.when_failed(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let session = attached(&files);
        let file = session.writer("memory");
        let flush = || session.fs.fsync(&session.cx, file, SyncScope::Data).wait();
        // Data beyond the end was not accepted, so nothing is lost.
        assert!(session.write(file, SIZE_BYTES, b"x").is_err());
        flush().expect("all that was written is there");
        assert_eq!(told.load(Ordering::Relaxed), 0);
        disk.1.store(true, Ordering::Relaxed);
        assert!(session.write(file, offset, &vec![1; len]).is_err());
        assert_eq!(told.load(Ordering::Relaxed), 1);
        // A kernel that has reported the error syncs again and again, and writes further data.
        session.write(file, 8192, &[2; 4096]).expect("written");
        assert!(
            flush().is_err() && flush().is_err() && session.fs.syncfs(&session.cx).wait().is_err(),
            "{offset}"
        );
    }
}

#[test]
fn part_of_block_is_zeroed_by_write_alone() {
    let disk = Arc::new(Failing(MemoryDisk::new(SIZE_BYTES).expect("a disk"), AtomicBool::new(false)));
    let session = attach(vec![("memory", disk)]);
    let file = session.writer("memory");
    session.write(file, 0, &[7; 512]).expect("written");
    let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    session.ranges().allocate(&session.cx, file, 10, 20, punch).wait().expect("zeroed");
    let mut model = [7; 512];
    model[10..30].fill(0);
    assert_eq!(session.read(file, 0, 512).expect("read"), model);
}

#[test]
fn failure_to_free_is_recorded_only_if_it_tears() {
    // Whole blocks lose nothing but the range; a partial block has other data, too.
    for (offset, is_recorded) in [(0, false), (10, true)] {
        let disk = Arc::new(Failing(MemoryDisk::new(SIZE_BYTES).expect("a disk"), AtomicBool::new(true)));
        let files = files(vec![("memory", disk)]);
        let session = attached(&files);
        let file = session.writer("memory");
        let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
        session.ranges().allocate(&session.cx, file, offset, 4096, punch).wait().expect_err("full");
        assert_eq!(files.has_failed(), is_recorded, "{offset}");
    }
}
