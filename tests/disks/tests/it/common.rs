//! Images, their servers, and clients.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_back_image_file::{ImageFile, OpenError};
use tombolo_back_nbd_client::{Address, NbdDisk};
use tombolo_core::block::{BlockDevice, Extent, OpenOptions, Range};
use tombolo_core::{Ctx, Result, SessionId, Stability};
use tombolo_front_nbd::{Exports, Listeners, Options, Server};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_mem::{Buffer, Source};
use tombolo_test_support::once_free;

pub const SIZE: u64 = 4 << 20;

pub fn cx() -> Ctx {
    Ctx::root(SessionId(1))
}

pub struct Bed {
    pub dir: tempfile::TempDir,
    pool: ThreadPool,
}

impl Bed {
    pub fn new() -> Self {
        let bed = Self {
            dir: tempfile::tempdir().unwrap(),
            pool: ThreadPool::new("disk", ThreadPoolLimits::default()),
        };
        std::fs::File::create(bed.image()).unwrap().set_len(SIZE).unwrap();
        bed
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join("disk.img")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn opened(&self) -> Arc<ImageFile> {
        self.opened_as(false)
    }

    pub fn opened_as(&self, read_only: bool) -> Arc<ImageFile> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let open = || ImageFile::open(&self.image(), &options, self.pool.lane());
        once_free(open, |error| matches!(error, OpenError::InUse { .. })).unwrap()
    }

    /// Starts Tombolo's server of this disk.
    pub fn serve(&self, disk: Arc<dyn BlockDevice>) -> Server {
        let (mut listeners, mut exports) = (Listeners::default(), Exports::default());
        listeners.add_unix(&self.socket(), 0o600).unwrap();
        exports.add("disk", disk);
        Server::start(listeners, exports, Options::default()).unwrap()
    }

    pub fn connect(&self) -> Arc<NbdDisk> {
        NbdDisk::connect(Address::Unix(self.socket()), None, "disk").unwrap()
    }

    /// Starts a foreign server of the image, and waits until it listens.
    pub fn foreign(&self, program: &str, arguments: &[&str]) -> Foreign {
        let child = Command::new(program).args(arguments).stdout(Stdio::null()).spawn().expect(program);
        let foreign = Foreign(child);
        wait_for_listener(&self.socket());
        foreign
    }
}

/// Waits until a program listens at this socket, without connecting: a server may accept only one connection.
fn wait_for_listener(path: &Path) {
    // proc_net_unix(5): the flag of a listening socket, and the path in the last column.
    let is_there =
        |line: &str| line.contains(" 00010000 ") && line.ends_with(&format!(" {}", path.display()));
    let end = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(is_there) {
        assert!(Instant::now() < end, "no listener at {}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A foreign server, killed on drop.
pub struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn read(disk: &dyn BlockDevice, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut buffer = Buffer::new(len);
    let answer = disk.read(&cx(), offset, buffer.sink(0..len));
    disk.submit();
    answer.wait()?;
    Ok(buffer.as_slice().expect("ours alone again").to_vec())
}

pub fn write(disk: &dyn BlockDevice, offset: u64, stability: Stability, bytes: &[u8]) -> Result<()> {
    let answer = disk.write(&cx(), offset, stability, Source::from(bytes.to_vec()));
    disk.submit();
    answer.wait()
}

/// Returns all extents of a range, requested in small portions.
pub fn extents(disk: &dyn BlockDevice, range: Range) -> Vec<Extent> {
    extents_by(disk, range, 7)
}

/// Returns all extents of a range, requested in portions of `count_max`.
pub fn extents_by(disk: &dyn BlockDevice, mut range: Range, count_max: usize) -> Vec<Extent> {
    let mut all = Vec::new();
    while range.len_bytes > 0 {
        let some = disk.extents(&cx(), range, count_max);
        disk.submit();
        for extent in some.wait().unwrap().as_slice() {
            range = Range {
                offset: range.offset + extent.len_bytes,
                len_bytes: range.len_bytes - extent.len_bytes,
            };
            all.push(*extent);
        }
    }
    all
}
