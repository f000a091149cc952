//! The cases of the block waist over every disk.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_back_image_file::{ImageFile, Options};
use tombolo_back_memory::MemoryDisk;
use tombolo_conformance::disk::{Wanted, run};
use tombolo_core::block::BlockDevice;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

#[test]
fn a_disk_in_memory() {
    let make = |Wanted { size_bytes, read_only }| -> Arc<dyn BlockDevice> {
        let new = if read_only { MemoryDisk::read_only } else { MemoryDisk::new };
        Arc::new(new(size_bytes).expect("a disk"))
    };
    run(make).expect("memory", &[]);
}

/// A file of this length that is nothing but a hole.
fn empty_file(dir: &Path, size_bytes: u64) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("disk-{}.img", NEXT.fetch_add(1, Ordering::Relaxed));
    File::create(dir.join(&name)).expect("created").set_len(size_bytes).expect("its size");
    name
}

fn images_in(parent: &Path) {
    let dir = tempfile::tempdir_in(parent).expect("a scratch directory");
    let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
    let make = |Wanted { size_bytes, read_only }| -> Arc<dyn BlockDevice> {
        let path = dir.path().join(empty_file(dir.path(), size_bytes));
        ImageFile::open(&path, &Options { read_only, ..Options::default() }, pool.lane()).expect("opened")
    };
    run(make).expect(&format!("an image in {}", parent.display()), &[]);
}

#[test]
fn an_image_on_tmpfs() {
    images_in(Path::new("/dev/shm"));
}

#[test]
fn an_image_on_disk() {
    images_in(&std::env::temp_dir());
}
