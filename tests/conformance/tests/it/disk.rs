//! The cases of the block waist over every disk.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_back_image_file::{ImageFile, OpenError as ImageOpenError};
use tombolo_back_memory::MemoryDisk;
use tombolo_conformance::disk::{Report, Wanted, run};
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::fs::{Export, Op, PermissionCheck};
use tombolo_core::{Ctx, SessionId, block_on};
use tombolo_host_runtime::thread_pool::{Lane, ThreadPool, ThreadPoolLimits};
use tombolo_layer_basic::delay;
use tombolo_layer_file_disk::{FileDisk, OpenError};
use tombolo_layer_overlay::{Header, Overlay};
use tombolo_test_support::Session;

use crate::common::{cut_short, directory, later, memory};

fn options(read_only: bool) -> OpenOptions {
    OpenOptions { read_only, ..OpenOptions::default() }
}

fn memory_disk(Wanted { size_bytes, read_only }: Wanted) -> Arc<dyn BlockDevice> {
    let new = if read_only { MemoryDisk::read_only } else { MemoryDisk::new };
    Arc::new(new(size_bytes).expect("a disk"))
}

fn delayed(disk: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    delay::disk::over(disk, Duration::from_micros(20)).expect("a timer")
}

#[test]
fn a_disk_in_memory() {
    run(memory_disk).expect("memory", &[]);
}

#[test]
fn a_disk_whose_answers_come_later() {
    run(|wanted| delayed(memory_disk(wanted))).expect("memory under delay", &[]);
}

/// Creates an overlay over a shorter disk of zeroes; `slow` is applied to both parts.
fn overlay(
    Wanted { size_bytes, read_only }: Wanted,
    slow: fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>,
) -> Arc<dyn BlockDevice> {
    let cx = Ctx::root(SessionId(1));
    let base_bytes = size_bytes / 2 + 512;
    let header =
        Header { size_bytes, base_bytes, base_name: b"base".to_vec(), base_mark: Vec::new(), seal: None };
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(base_bytes).expect("a base"));
    let log: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(header.log_bytes()).expect("a redo log"));
    block_on(header.write_to(&cx, &*log)).expect("made");
    block_on(Overlay::open(&cx, slow(base), &[], slow(log), &options(read_only), None)).expect("opened")
}

#[test]
fn an_overlay() {
    run(|wanted| overlay(wanted, |part| part)).expect("an overlay", &["it cannot be resized"]);
}

#[test]
fn an_overlay_whose_parts_answer_later() {
    run(|wanted| overlay(wanted, delayed)).expect("an overlay under delay", &["it cannot be resized"]);
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
        open(&path, &options(read_only), pool.lane()).expect("opened")
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

/// Runs the cases over files of an export.
fn files_of(export: &dyn Export) -> Report {
    let session = Session::checked(export, PermissionCheck::Caller);
    let next = AtomicU64::new(0);
    run(|Wanted { size_bytes, read_only }| {
        let name = format!("disk-{}.img", next.fetch_add(1, Ordering::Relaxed));
        session.put(&name, b"");
        session.truncate(&name, size_bytes).expect("its size");
        file_disk(&session, &name, read_only).expect("opened")
    })
}

fn file_disk(session: &Session, name: &str, read_only: bool) -> Result<Arc<FileDisk>, OpenError> {
    let (fs, cx) = (session.fs.clone(), session.cx.clone());
    block_on(FileDisk::open(fs, cx, name.as_bytes(), &options(read_only)))
}

#[test]
fn a_file_in_memory() {
    files_of(&*memory()).expect("a file in memory", &[]);
}

#[test]
fn delayed_file_with_short_writes() {
    files_of(&*later(cut_short(memory(), Op::Write))).expect("a file that is far away", &[]);
}

#[test]
fn a_file_of_a_directory_on_tmpfs() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a scratch directory");
    files_of(&*directory(dir.path(), false)).expect("a file on tmpfs", &[]);
}

#[test]
fn a_file_of_a_directory_on_disk() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    files_of(&*directory(dir.path(), false)).expect("a file on disk", &[]);
}

#[test]
fn written_file_is_exclusive_as_image_and_by_directory() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let name = empty_file(dir.path(), 1 << 20);
    let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
    let session = Session::checked(&*directory(dir.path(), false), PermissionCheck::Caller);
    let image = |read_only| ImageFile::open(&dir.path().join(&name), &options(read_only), pool.lane());
    let file = |read_only| file_disk(&session, &name, read_only);
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
