//! Images, their servers, and clients.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tombolo_back_image_file::{ImageFile, OpenError};
use tombolo_back_nbd_client::{Address, NbdDisk};
use tombolo_conformance::disk::{Wanted, run};
use tombolo_core::block::{BlockDevice, Extent, OpenOptions, Range};
use tombolo_core::{Ctx, Result, SessionId, Stability};
use tombolo_front_nbd::{Exports, Listeners, Options, Server};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_mem::{Buffer, Source};
use tombolo_test_support::{once_free, until};

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

    /// Starts QEMU's server of the image, and waits until it listens.
    pub fn qemu_nbd(&self, arguments: &[&str]) -> Foreign {
        let (image, socket) = (self.image(), self.socket());
        let mut command = Command::new("qemu-nbd");
        command.args(["-f", "raw", "-t", "-x", "disk"]).args(arguments).arg("-k").args([&socket, &image]);
        let foreign = Foreign(command.stdout(Stdio::null()).spawn().expect("qemu-nbd"));
        // Without connecting: a server may accept only one connection. proc_net_unix(5): the flag of a
        // listening socket, and the path in the last column.
        let is_there =
            |line: &str| line.contains(" 00010000 ") && line.ends_with(&format!(" {}", socket.display()));
        until("it listens", || std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(is_there));
        foreign
    }
}

/// Runs all cases over disks of NBD; what serves each of them is kept until the end.
pub fn every_case<K>(make: impl Fn(Wanted) -> (Arc<dyn BlockDevice>, K)) {
    let kept = RefCell::new(Vec::new());
    let make = |wanted| {
        let (disk, server) = make(wanted);
        kept.borrow_mut().push(server);
        disk
    };
    run(make).expect("NBD", &["it cannot be resized"]);
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

/// Returns all extents of a range, requested in portions of `count_max`.
pub fn extents(disk: &dyn BlockDevice, mut range: Range, count_max: usize) -> Vec<Extent> {
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
