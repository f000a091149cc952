//! Disks as files: contents and attributes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::fs::{
    AllocateMode, Client, Cookie, DirBudget, DirPage, Export, File, FileSystem, Mode, Name, NodeId,
    OpenFlags, PermissionCheck, SetAttr, SyncScope, Whence, Write,
};
use tombolo_core::{Answer, Ctx, Error, Identity, SessionId, Stability};
use tombolo_layer_disk_files::DiskFiles;
use tombolo_mem::{Buffer, Sink, Source};

const SIZE_BYTES: u64 = 64 << 10;

fn cx() -> Ctx {
    Ctx::root(SessionId(1))
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

fn files(disks: Vec<(&str, Arc<dyn BlockDevice>)>) -> DiskFiles {
    let disks = disks.into_iter().map(|(text, disk)| (name(text).to_owned(), disk));
    DiskFiles::new(disks, Identity { uid: 7, gid: 8, groups: None })
}

fn attached(files: &DiskFiles) -> Arc<dyn FileSystem> {
    let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
    files.attach(&client).expect("a session")
}

fn attach(disks: Vec<(&str, Arc<dyn BlockDevice>)>) -> Arc<dyn FileSystem> {
    attached(&files(disks))
}

fn open(fs: &dyn FileSystem, text: &str) -> File {
    let entry = fs.lookup(&cx(), NodeId::ROOT, name(text)).wait().expect("it is there");
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    File { node: entry.node, open: fs.open(&cx(), entry.node, flags).wait().expect("open").open }
}

fn bed() -> (Arc<dyn FileSystem>, File) {
    let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(SIZE_BYTES).expect("a disk"));
    let fs = attach(vec![("memory", disk)]);
    let file = open(&*fs, "memory");
    (fs, file)
}

fn write(fs: &dyn FileSystem, file: File, offset: u64, bytes: &[u8]) -> Result<usize, Error> {
    let mut buffer = Buffer::new(bytes.len());
    buffer.as_mut_slice().expect("mine").copy_from_slice(bytes);
    let how = Write { offset, ..Write::default() };
    fs.write(&cx(), file, &how, buffer.source(0..bytes.len())).wait().map(|written| written.count)
}

fn read(fs: &dyn FileSystem, file: File, offset: u64, len: usize) -> (Vec<u8>, bool) {
    let mut buffer = Buffer::new(len);
    let done = fs.read(&cx(), file, offset, buffer.sink(0..len)).wait().expect("read");
    (buffer.as_slice().expect("mine")[..done.count].to_vec(), done.eof)
}

#[test]
fn directory_lists_each_disk_as_file() {
    let small: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(4096).expect("a disk"));
    let fixed: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::read_only(8192).expect("a disk"));
    let fs = attach(vec![("a", small), ("b", fixed)]);
    // Three entries fit on a page.
    let budget = DirBudget { size_bytes: 76, entry_bytes: 24, align: 1, plus: true };
    let root = fs.open(&cx(), NodeId::ROOT, OpenFlags::READ | OpenFlags::DIRECTORY).wait().expect("open");
    let root = File { node: NodeId::ROOT, open: root.open };
    let page = fs.readdir(&cx(), root, Cookie::START, DirPage::new(budget)).wait().expect("a page");
    let names: Vec<_> = page.iter().map(|entry| (entry.name.to_vec(), entry.cookie)).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(!page.is_end());
    let rest = fs.readdir(&cx(), root, names[2].1, DirPage::new(budget)).wait().expect("a page");
    assert_eq!(rest.iter().map(|entry| entry.name.to_vec()).collect::<Vec<_>>(), [b"b"]);
    assert!(rest.is_end());
    let attr = |text| fs.lookup(&cx(), NodeId::ROOT, name(text)).wait().expect("there").attr;
    let shown = |text| (attr(text).size, attr(text).mode, attr(text).uid, attr(text).gid);
    assert_eq!(shown("a"), (4096, Mode::new(0o600), 7, 8));
    assert_eq!(shown("b"), (8192, Mode::new(0o400), 7, 8));
    assert!(matches!(fs.lookup(&cx(), NodeId::ROOT, name("c")).wait(), Err(Error::NotFound)));
    let node = fs.lookup(&cx(), NodeId::ROOT, name("b")).wait().expect("there").node;
    assert!(matches!(fs.open(&cx(), node, OpenFlags::WRITE).wait(), Err(Error::ReadOnly)));
}

#[test]
fn unaligned_reads_and_writes_affect_only_their_bytes() {
    let (fs, file) = bed();
    let mut model = vec![0; SIZE_BYTES as usize];
    for (at, len) in [(0, 4096), (511, 2), (100, 7), (1000, 3000), (512, 512), (SIZE_BYTES as usize - 3, 3)] {
        let bytes: Vec<u8> = (0..len).map(|i| (at + i * 7) as u8 | 1).collect();
        assert_eq!(write(&*fs, file, at as u64, &bytes).expect("written"), len);
        model[at..at + len].copy_from_slice(&bytes);
    }
    for (at, len) in [(0, SIZE_BYTES as usize), (1, 1), (513, 2000)] {
        assert_eq!(read(&*fs, file, at as u64, len).0, model[at..at + len], "{at} {len}");
    }
    assert_eq!(read(&*fs, file, SIZE_BYTES - 10, 100), (model[model.len() - 10..].to_vec(), true));
    assert_eq!(read(&*fs, file, SIZE_BYTES, 100), (vec![], true));
    // The part before the end is written.
    assert_eq!(write(&*fs, file, SIZE_BYTES - 5, b"0123456789").expect("the first of them"), 5);
    assert!(matches!(write(&*fs, file, SIZE_BYTES, b"x"), Err(Error::NoSpace)));
    fs.fsync(&cx(), file, SyncScope::Data).wait().expect("durable");
}

#[test]
fn length_names_and_times_never_change() {
    let (fs, file) = bed();
    let before = fs.getattr(&cx(), file.node, None).wait().expect("attributes");
    write(&*fs, file, 0, b"data").expect("written");
    assert_eq!(fs.getattr(&cx(), file.node, None).wait().expect("attributes"), before);
    let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&cx(), file.node, None, &set(SIZE_BYTES)).wait().expect("it has this length");
    let shorter = fs.setattr(&cx(), file.node, None, &set(0)).wait();
    assert!(matches!(shorter, Err(Error::NotPermitted)));
    let truncated = fs.open(&cx(), file.node, OpenFlags::WRITE | OpenFlags::TRUNCATE).wait();
    assert!(matches!(truncated, Err(Error::NotPermitted)));
    assert!(matches!(fs.unlink(&cx(), NodeId::ROOT, name("memory")).wait(), Err(Error::NotPermitted)));
    assert_eq!(read(&*fs, file, 0, 4).0, b"data");
}

#[test]
fn disk_file_holes_are_punched_and_found() {
    let (fs, file) = bed();
    let ranges = fs.ranges().expect("ranges");
    write(&*fs, file, 0, &[7; 16384]).expect("written");
    let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    ranges.allocate(&cx(), file, 4000, 5000, punch).wait().expect("a hole");
    let mut model = vec![7; 16384];
    model[4000..9000].fill(0);
    assert_eq!(read(&*fs, file, 0, 16384).0, model);
    let seek = |offset, whence| ranges.seek(&cx(), file, offset, whence).wait().ok();
    assert_eq!(seek(0, Whence::Hole), Some(4096));
    assert_eq!(seek(5000, Whence::Hole), Some(5000), "inside of it");
    assert_eq!(seek(4096, Whence::Data), Some(8192));
    assert_eq!((seek(16384, Whence::Data), seek(SIZE_BYTES - 1, Whence::Hole)), (None, Some(SIZE_BYTES - 1)));
    // Allocation is granted within the file, but not beyond its end.
    ranges.allocate(&cx(), file, 0, SIZE_BYTES, AllocateMode::empty()).wait().expect("it is there");
    let longer = ranges.allocate(&cx(), file, 0, SIZE_BYTES + 1, AllocateMode::empty()).wait();
    assert!(matches!(longer, Err(Error::FileTooLarge)));
    assert_eq!(read(&*fs, file, 9000, 100).0, [7; 100]);
}

/// A disk whose first read blocks until released.
struct Held {
    disk: MemoryDisk,
    held: AtomicBool,
    reached: Sender<()>,
    go_on: Mutex<Option<Receiver<()>>>,
}

impl BlockDevice for Held {
    fn profile(&self) -> Profile {
        self.disk.profile()
    }
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }
    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        let done = self.disk.read(cx, offset, into);
        if !self.held.swap(false, Ordering::Relaxed) {
            return done;
        }
        self.reached.send(()).expect("the test");
        let go_on = self.go_on.lock().expect("a lock").take().expect("held once");
        // The test has enough threads for a blocking future.
        Answer::later(async move {
            go_on.recv().expect("the test");
            Ok(())
        })
    }
    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.disk.write(cx, offset, stability, from)
    }
    fn flush(&self, cx: &Ctx) -> Answer<()> {
        self.disk.flush(cx)
    }
    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.disk.discard(cx, range)
    }
    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.disk.write_zeroes(cx, range, how)
    }
    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.disk.extents(cx, range, count_max)
    }
}

#[test]
fn concurrent_partial_block_writes_are_preserved() {
    let (reached, reaches) = channel();
    let (go_on, goes_on) = channel();
    let disk = Held {
        disk: MemoryDisk::new(SIZE_BYTES).expect("a disk"),
        held: AtomicBool::new(true),
        reached,
        go_on: Mutex::new(Some(goes_on)),
    };
    let fs = attach(vec![("memory", Arc::new(disk))]);
    let file = open(&*fs, "memory");
    thread::scope(|scope| {
        let part = scope.spawn(|| write(&*fs, file, 10, b"part").expect("written"));
        reaches.recv().expect("it has read the block");
        let buffer = Buffer::new(512);
        buffer.sink(0..512).write_at(0, &[1; 512]);
        let whole = fs.write(&cx(), file, &Write::default(), buffer.source(0..512));
        let is_early = whole.is_done();
        go_on.send(()).expect("the gate");
        part.join().expect("no panic");
        whole.wait().expect("written");
        assert!(!is_early, "it waits for its turn");
    });
    assert_eq!(read(&*fs, file, 0, 512).0, [1; 512], "the later one has the last word");
}

/// A disk whose next write fails.
struct Failing(MemoryDisk, AtomicBool);

impl BlockDevice for Failing {
    fn profile(&self) -> Profile {
        self.0.profile()
    }
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.0.read(cx, offset, into)
    }
    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        if self.1.swap(false, Ordering::Relaxed) {
            return Answer::err(Error::NoSpace);
        }
        self.0.write(cx, offset, stability, from)
    }
    fn flush(&self, cx: &Ctx) -> Answer<()> {
        self.0.flush(cx)
    }
    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.0.discard(cx, range)
    }
    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.0.write_zeroes(cx, range, how)
    }
    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.0.extents(cx, range, count_max)
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
        let fs = attached(&files);
        let file = open(&*fs, "memory");
        let flush = || fs.fsync(&cx(), file, SyncScope::Data).wait();
        // Data beyond the end was not accepted, so nothing is lost.
        assert!(write(&*fs, file, SIZE_BYTES, b"x").is_err());
        flush().expect("all that was written is there");
        assert_eq!(told.load(Ordering::Relaxed), 0);
        disk.1.store(true, Ordering::Relaxed);
        assert!(write(&*fs, file, offset, &vec![1; len]).is_err());
        assert_eq!(told.load(Ordering::Relaxed), 1);
        // A kernel that has reported the error syncs again and again, and writes further data.
        write(&*fs, file, 8192, &[2; 4096]).expect("written");
        assert!(flush().is_err() && flush().is_err() && fs.syncfs(&cx()).wait().is_err(), "{offset}");
    }
}
