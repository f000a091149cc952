//! Tests specific to image files; requirements of all disks are in the conformance suite.

mod direct;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tombolo_back_image_file::{ImageFile, OpenError};
use tombolo_core::block::{
    Allocation, BlockDevice, Extent, Geometry, OpenOptions, Range, SizeWatch, Zeroing,
};
use tombolo_core::{Ctx, Error, Result, SessionId, Stability};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_mem::{Buffer, Source};
use tombolo_sys::lock::{LockKind, LockRange, conflict, try_lock, unlock};

const MIB: u64 = 1 << 20;

struct Bed {
    dir: tempfile::TempDir,
    pool: ThreadPool,
    cx: Ctx,
}

impl Bed {
    fn new() -> Self {
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        Self { dir: tempfile::tempdir().expect("a directory"), pool, cx: Ctx::root(SessionId(1)) }
    }

    fn image(&self, size_bytes: u64) -> PathBuf {
        let path = self.dir.path().join("disk.img");
        File::create(&path).expect("created").set_len(size_bytes).expect("its size");
        path
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> std::result::Result<Arc<ImageFile>, OpenError> {
        ImageFile::open(path, options, self.pool.lane())
    }

    fn read(&self, disk: &ImageFile, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut buffer = Buffer::new(len);
        let answer = disk.read(&self.cx, offset, buffer.sink(0..len));
        disk.submit();
        answer.wait()?;
        Ok(buffer.as_slice().expect("ours alone again").to_vec())
    }

    fn write(&self, disk: &ImageFile, offset: u64, bytes: &[u8]) -> Result<()> {
        disk.write(&self.cx, offset, Stability::Unstable, Source::from(bytes.to_vec())).wait()
    }
}

const READ_ONLY: OpenOptions =
    OpenOptions { read_only: true, locks: true, user: 0, block_bytes: 512, no_links: false };

#[test]
fn second_writer_is_refused_but_not_second_reader() {
    let bed = Bed::new();
    let path = bed.image(MIB);
    let writer = bed.open(&path, &OpenOptions::default()).expect("the first");
    for options in [OpenOptions::default(), READ_ONLY] {
        assert!(matches!(bed.open(&path, &options), Err(OpenError::InUse { .. })));
    }
    drop(bed.open(&path, &OpenOptions { locks: false, ..READ_ONLY }).expect("without locks"));
    drop(writer);
    let reader = bed.open(&path, &READ_ONLY).expect("a reader");
    let second = bed.open(&path, &READ_ONLY).expect("another");
    assert!(matches!(bed.open(&path, &OpenOptions::default()), Err(OpenError::InUse { .. })));
    drop((reader, second));
    drop(bed.open(&path, &OpenOptions::default()).expect("free again"));
}

#[test]
fn image_replaced_during_opening_is_not_written() {
    let bed = Bed::new();
    let path = bed.image(MIB);
    // A transfer of a killed process is in flight, so that the next user waits between opening and claiming.
    let killed = File::open(&path).expect("open");
    let ring = LockRange { start: 1 << 32, len: 1 };
    try_lock(killed.as_fd(), LockKind::Shared, ring).expect("locked");
    let opened = thread::scope(|scope| {
        let opening = scope.spawn(|| bed.open(&path, &OpenOptions::default()));
        let writes = LockRange { start: 101, len: 1 };
        while conflict(killed.as_fd(), LockKind::Exclusive, writes).expect("asked").is_none() {
            assert!(!opening.is_finished(), "it waits");
            thread::sleep(Duration::from_millis(1));
        }
        let other = bed.dir.path().join("other.img");
        File::create(&other).and_then(|file| file.set_len(2 * MIB)).expect("created");
        fs::rename(&other, &path).expect("replaced");
        unlock(killed.as_fd(), ring).expect("unlocked");
        opening.join().expect("no panic").expect("opened")
    });
    bed.write(&opened, 0, &[7; 4096]).expect("written");
    assert!(fs::read(&path).expect("read").starts_with(&[7; 4096]), "it wrote to what has no name any more");
    assert!(matches!(bed.open(&path, &OpenOptions::default()), Err(OpenError::InUse { .. })));
}

#[test]
fn non_disk_is_refused() {
    let bed = Bed::new();
    let missing = bed.dir.path().join("missing");
    assert!(matches!(bed.open(&missing, &OpenOptions::default()), Err(OpenError::Open { .. })));
    assert!(matches!(bed.open(bed.dir.path(), &OpenOptions::default()), Err(OpenError::NotADisk { .. })));
    assert!(matches!(bed.open(&bed.image(0), &OpenOptions::default()), Err(OpenError::Empty { .. })));
    for block_bytes in [0, 256, 1000, 1 << 17] {
        let options = OpenOptions { block_bytes, ..OpenOptions::default() };
        assert!(matches!(bed.open(&bed.image(MIB), &options), Err(OpenError::BlockSize { .. })));
    }
}

#[test]
fn create_refuses_a_symbolic_link() {
    let bed = Bed::new();
    let [link, target] = ["link", "target"].map(|name| bed.dir.path().join(name));
    symlink(&target, &link).expect("a link");
    let create = || ImageFile::create(&link, MIB, &OpenOptions::default(), bed.pool.lane());
    assert!(matches!(create(), Err(OpenError::Open { .. })));
    assert!(!target.exists(), "the target was created");
    fs::write(&target, "precious").expect("written");
    assert!(matches!(create(), Err(OpenError::Open { .. })));
    assert_eq!(fs::read(&target).expect("read"), b"precious");
}

#[test]
fn truncated_image_fails_only_beyond_its_end() {
    let bed = Bed::new();
    let path = bed.image(4 * MIB);
    let disk = bed.open(&path, &OpenOptions::default()).expect("opened");
    bed.write(&disk, 0, &[7; 4096]).expect("written");
    File::options().write(true).open(&path).expect("opened").set_len(MIB).expect("cut off");
    assert_eq!(bed.read(&disk, 0, 4096).expect("still there"), [7; 4096]);
    assert!(matches!(bed.read(&disk, 2 * MIB, 4096), Err(Error::Io { .. })));
    let extents =
        disk.extents(&bed.cx, Range { offset: 0, len_bytes: 4 * MIB }, 100).wait().expect("extents");
    assert_eq!(extents.as_slice().iter().map(|extent| extent.len_bytes).sum::<u64>(), 4 * MIB);
    // After restoring the length the disk works as before.
    File::options().write(true).open(&path).expect("opened").set_len(4 * MIB).expect("whole");
    assert_eq!(bed.read(&disk, 2 * MIB, 4096).expect("there again"), [0; 4096]);
}

#[test]
fn external_resize_is_reported_on_follow() {
    let bed = Bed::new();
    let path = bed.image(MIB);
    let disk = bed.open(&path, &OpenOptions::default()).expect("opened");
    let told = Arc::new(AtomicU64::new(0));
    let seen = told.clone();
    let watch: Arc<SizeWatch> = Arc::new(move |size_bytes| seen.store(size_bytes, Ordering::SeqCst));
    disk.resize().expect("a file can").watch(&watch);
    File::options().write(true).open(&path).expect("opened").set_len(3 * MIB + 100).expect("longer");
    assert_eq!(disk.geometry().size_bytes, MIB);
    let padded = 3 * MIB + 512;
    assert_eq!(disk.resize().expect("a file can").follow_size(&bed.cx).wait().expect("looked"), padded);
    assert_eq!((told.load(Ordering::SeqCst), disk.geometry().size_bytes), (padded, padded));
    assert_eq!(bed.read(&disk, 3 * MIB, 512).expect("read"), [0; 512]);
}

#[test]
fn room_is_given_back_and_kept_as_asked() {
    let bed = Bed::new();
    let path = bed.image(4 * MIB);
    let disk = bed.open(&path, &OpenOptions::default()).expect("opened");
    let taken = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(&path).expect("there").blocks() * 512
    };
    bed.write(&disk, 0, &vec![7; 4 * MIB as usize]).expect("written");
    disk.flush(&bed.cx).wait().expect("flushed");
    assert!(taken() >= 4 * MIB);
    let range = |offset| Range { offset, len_bytes: MIB };
    let keep = Zeroing { may_unmap: false, ..Zeroing::default() };
    disk.write_zeroes(&bed.cx, range(0), keep).wait().expect("zeroed");
    disk.flush(&bed.cx).wait().expect("flushed");
    assert!(taken() >= 4 * MIB, "the room is kept");
    let unmap = Zeroing { may_unmap: true, stability: Stability::DataSync, ..Zeroing::default() };
    disk.write_zeroes(&bed.cx, range(MIB), unmap).wait().expect("zeroed");
    assert!(taken() <= 3 * MIB, "the room is given back");
    disk.discard(&bed.cx, range(2 * MIB)).wait().expect("discarded");
    assert!(taken() <= 2 * MIB, "the room is given back");
    let mut bytes = vec![0; 4 * MIB as usize];
    File::open(&path).expect("opened").read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes[..2 * MIB as usize].iter().all(|byte| *byte == 0));
    assert!(bytes[3 * MIB as usize..].iter().all(|byte| *byte == 7));
    let extents =
        disk.extents(&bed.cx, Range { offset: MIB, len_bytes: 3 * MIB }, 10).wait().expect("extents");
    let kinds: Vec<_> = extents.as_slice().iter().map(|extent| extent.allocation).collect();
    assert_eq!(kinds, [Allocation::Hole, Allocation::Data]);
}

#[test]
fn block_size_of_4_kib_rounds_disk_size() {
    let bed = Bed::new();
    let options = OpenOptions { block_bytes: 4096, ..OpenOptions::default() };
    let disk = bed.open(&bed.image(MIB + 512), &options).expect("opened");
    let geometry = disk.geometry();
    assert_eq!((geometry.size_bytes, geometry.block_bytes), (MIB + 4096, 4096));
    assert!(geometry.check(512, 4096).is_err());
    let resize = disk.resize().expect("a file can");
    assert!(matches!(resize.set_size(&bed.cx, MIB + 512).wait(), Err(Error::InvalidArgument)));
    resize.set_size(&bed.cx, 2 * MIB).wait().expect("longer");
    assert_eq!(bed.read(&disk, MIB, 4096).expect("new"), [0; 4096]);
}

/// Checks that the last partial block is padded with zeroes on read and completed on write, with all kinds of
/// I/O.
#[test]
fn image_of_partial_blocks_is_padded_and_grows() {
    let bed = Bed::new();
    for is_direct in [false, true] {
        for block_bytes in [512, 4096] {
            let path = bed.image(MIB);
            fs::write(&path, [vec![1; 1 << 16], b"TAIL".to_vec()].concat()).expect("written");
            let options = OpenOptions { block_bytes, ..OpenOptions::default() };
            let open = |options: &OpenOptions| match is_direct {
                true => ImageFile::open_direct(&path, options, bed.pool.lane()),
                false => bed.open(&path, options),
            };
            let disk = match open(&OpenOptions { read_only: true, ..options }) {
                Err(OpenError::NotDirect { .. }) => continue,
                disk => disk.expect("opened"),
            };
            let Geometry { size_bytes, block_bytes, .. } = disk.geometry();
            let block = block_bytes as usize;
            assert_eq!(size_bytes, (1 << 16) + u64::from(block_bytes));
            let end = [b"TAIL".to_vec(), vec![0; block - 4]].concat();
            assert!(bed.read(&disk, 1 << 16, block).expect("read") == end);
            assert!(bed.read(&disk, 0, (1 << 16) + block).expect("read").ends_with(&end));
            let all = disk
                .extents(&bed.cx, Range { offset: 0, len_bytes: size_bytes }, 10)
                .wait()
                .expect("extents");
            assert_eq!(all.as_slice(), [Extent { len_bytes: size_bytes, allocation: Allocation::Data }]);
            drop(disk);
            assert_eq!(fs::metadata(&path).expect("stat").len(), (1 << 16) + 4, "looking changes nothing");

            let disk = open(&options).expect("opened");
            let written = [vec![7; block - 1], vec![8]].concat();
            let answer = disk.write(&bed.cx, 1 << 16, Stability::DataSync, Source::from(written.clone()));
            disk.submit();
            answer.wait().expect("written");
            drop(disk);
            assert!(fs::read(&path).expect("read")[1 << 16..] == written);
            // An image is truncated if it ends before its last block.
            let disk = open(&options).expect("opened");
            File::options().write(true).open(&path).expect("opened").set_len(1 << 16).expect("cut off");
            assert!(matches!(bed.read(&disk, 1 << 16, block), Err(Error::Io { .. })));
        }
    }
}
