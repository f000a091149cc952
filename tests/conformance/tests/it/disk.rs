//! The cases of the block waist over every disk.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use tombolo_back_image_file::{ImageFile, OpenError as ImageOpenError};
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::{Memory, MemoryDisk};
use tombolo_conformance::disk::{Report, Wanted, run};
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::fs::{Client, Create, Export, File as Opening, FileSystem, Mode, Name, NewMode, NodeId};
use tombolo_core::fs::{Op, OpenFlags, PermissionCheck, SetAttr};
use tombolo_core::{Ctx, SessionId, block_on};
use tombolo_host_runtime::thread_pool::{Lane, ThreadPool, ThreadPoolLimits};
use tombolo_layer_basic::fault::{Plan, Rule, What, When};
use tombolo_layer_basic::{delay, fault};
use tombolo_layer_file_disk::{FileDisk, OpenError};
use tombolo_layer_overlay::{Header, Overlay};

#[test]
fn a_disk_in_memory() {
    let make = |Wanted { size_bytes, read_only }| -> Arc<dyn BlockDevice> {
        let new = if read_only { MemoryDisk::read_only } else { MemoryDisk::new };
        Arc::new(new(size_bytes).expect("a disk"))
    };
    run(make).expect("memory", &[]);
}

#[test]
fn a_disk_whose_answers_come_later() {
    let make = |Wanted { size_bytes, read_only }| {
        let new = if read_only { MemoryDisk::read_only } else { MemoryDisk::new };
        let disk = Arc::new(new(size_bytes).expect("a disk"));
        delay::disk::over(disk, Duration::from_micros(20)).expect("a timer")
    };
    run(make).expect("memory under delay", &[]);
}

/// Creates an overlay over a shorter disk of zeroes.
fn overlay(Wanted { size_bytes, read_only }: Wanted, slow: Duration) -> Arc<dyn BlockDevice> {
    let cx = Ctx::root(SessionId(1));
    let base_bytes = size_bytes / 2 + 512;
    let header =
        Header { size_bytes, base_bytes, base_name: b"base".to_vec(), base_mark: Vec::new(), seal: None };
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(base_bytes).expect("a base"));
    let log: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(header.log_bytes()).expect("a redo log"));
    block_on(header.write_to(&cx, &*log)).expect("made");
    let (base, log) = match slow.is_zero() {
        true => (base, log),
        false => {
            (delay::disk::over(base, slow).expect("a timer"), delay::disk::over(log, slow).expect("a timer"))
        }
    };
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    block_on(Overlay::open(&cx, base, &[], log, &options)).expect("opened")
}

#[test]
fn an_overlay() {
    run(|wanted| overlay(wanted, Duration::ZERO)).expect("an overlay", &["it cannot be resized"]);
}

#[test]
fn an_overlay_whose_parts_answer_later() {
    let later = Duration::from_micros(20);
    run(|wanted| overlay(wanted, later)).expect("an overlay under delay", &["it cannot be resized"]);
}

/// Creates a file of this length that is one hole.
fn empty_file(dir: &Path, size_bytes: u64) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("disk-{}.img", NEXT.fetch_add(1, Ordering::Relaxed));
    File::create(dir.join(&name)).expect("created").set_len(size_bytes).expect("its size");
    name
}

type Open = fn(&Path, &OpenOptions, Lane) -> Result<Arc<ImageFile>, ImageOpenError>;

fn images_in(parent: &Path, open: Open) {
    let dir = tempfile::tempdir_in(parent).expect("a scratch directory");
    let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
    let make = |Wanted { size_bytes, read_only }| -> Arc<dyn BlockDevice> {
        let path = dir.path().join(empty_file(dir.path(), size_bytes));
        open(&path, &OpenOptions { read_only, ..OpenOptions::default() }, pool.lane()).expect("opened")
    };
    run(make).expect(&format!("an image in {}", parent.display()), &[]);
}

#[test]
fn an_image_on_tmpfs() {
    images_in(Path::new("/dev/shm"), ImageFile::open);
}

#[test]
fn an_image_on_disk() {
    images_in(&std::env::temp_dir(), ImageFile::open);
}

#[test]
fn an_image_on_disk_past_the_page_cache() {
    images_in(&std::env::temp_dir(), ImageFile::open_direct);
}

/// Attaches as the superuser.
fn attach(export: &dyn Export) -> (Arc<dyn FileSystem>, Ctx) {
    let client = Client { session: SessionId(1), label: "disk".into(), checks: PermissionCheck::Caller };
    (export.attach(&client).expect("a session"), Ctx::root(SessionId(1)))
}

/// Runs the cases over files of an export.
fn files_of(export: &dyn Export) -> Report {
    let (fs, cx) = attach(export);
    let next = AtomicU64::new(0);
    run(|Wanted { size_bytes, read_only }| {
        let name = format!("disk-{}.img", next.fetch_add(1, Ordering::Relaxed));
        let how =
            Create { mode: NewMode::settled(Mode::new(0o600)), flags: OpenFlags::WRITE, ..Create::default() };
        let name_in_root = Name::new(name.as_bytes()).expect("a name");
        let made = fs.create(&cx, NodeId::ROOT, name_in_root, &how).wait().expect("created");
        let file = Opening { node: made.entry.node, open: made.open };
        let size = SetAttr { size: Some(size_bytes), ..SetAttr::default() };
        fs.setattr(&cx, file.node, Some(file), &size).wait().expect("its size");
        fs.release(&cx, file);
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        block_on(FileDisk::open(fs.clone(), cx.clone(), name.as_bytes(), &options)).expect("opened")
    })
}

fn directory(path: &Path) -> Arc<dyn Export> {
    Arc::new(LocalDir::open(path, DirOptions::default()).expect("the export"))
}

#[test]
fn a_file_in_memory() {
    files_of(&Memory::default()).expect("a file in memory", &[]);
}

#[test]
fn delayed_file_with_short_writes() {
    let rule = Rule { op: Some(Op::Write), when: When::Every(3), what: What::Short(1000) };
    let short = fault::over(Arc::new(Memory::default()), Plan { rules: vec![rule], seed: 1 });
    let later = delay::over(Arc::new(short), Duration::from_micros(20)).expect("a timer");
    files_of(&later).expect("a file that is far away", &[]);
}

#[test]
fn a_file_of_a_directory_on_tmpfs() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a scratch directory");
    files_of(&*directory(dir.path())).expect("a file on tmpfs", &[]);
}

#[test]
fn a_file_of_a_directory_on_disk() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    files_of(&*directory(dir.path())).expect("a file on disk", &[]);
}

#[test]
fn written_file_is_exclusive_as_image_and_by_directory() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let name = empty_file(dir.path(), 1 << 20);
    let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
    let (fs, cx) = attach(&*directory(dir.path()));
    let image = |read_only| {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        ImageFile::open(&dir.path().join(&name), &options, pool.lane())
    };
    let file = |read_only| {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        block_on(FileDisk::open(fs.clone(), cx.clone(), name.as_bytes(), &options))
    };
    let writer = image(false).expect("free");
    assert!(matches!(file(false), Err(OpenError::InUse)));
    assert!(matches!(file(true), Err(OpenError::InUse)));
    drop(writer);
    let writer = file(false).expect("free again");
    assert!(matches!(image(false), Err(ImageOpenError::InUse { .. })));
    assert!(matches!(image(true), Err(ImageOpenError::InUse { .. })));
    assert!(matches!(file(false), Err(OpenError::InUse)));
    drop(writer);
    let readers = (
        image(true).expect("free again"),
        file(true).expect("both only read"),
        file(true).expect("so does this"),
    );
    assert!(matches!(image(false), Err(ImageOpenError::InUse { .. })));
    assert!(matches!(file(false), Err(OpenError::InUse)));
    drop(readers);
    drop(file(false).expect("free again"));
}
