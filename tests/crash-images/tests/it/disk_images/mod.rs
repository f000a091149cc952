//! A guest's disk after a power loss: a driver writes, zeroes, discards and flushes at random, the host stops
//! after any of the server's system calls on the image, and parts of what was not synced by then are lost.
//! Data acknowledged as durable must be present, and each sector written since then has an old or the new
//! content, never a mix.

mod guest;

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tombolo_back_image_file::ImageFile;
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::{Ctx, SessionId, Stability};
use tombolo_crash_images::{each_image, mark, record, recorded};
use tombolo_front_virtio_blk::Features;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

use guest::Request;

const SECTOR_BYTES: usize = 512;
/// Small, so that the same sectors are written repeatedly.
const SECTORS: u64 = 2048;
const REQUESTS: usize = 240;

/// Returns a directory on a disk, even where temporary files are in memory: no flush is needed there.
fn area() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// Copies the test's image to its place durably, as the initial state.
fn put(from: &Path, dir: &Path) -> PathBuf {
    let to = dir.join(from.file_name().expect("a name"));
    fs::write(&to, fs::read(from).expect("read")).expect("write");
    File::open(&to).and_then(|file| file.sync_all()).expect("sync");
    File::open(dir).and_then(|dir| dir.sync_all()).expect("sync");
    to
}

fn opened(image: &Path, pool: &ThreadPool) -> Arc<dyn BlockDevice> {
    ImageFile::open(image, &OpenOptions::default(), pool.lane()).expect("opened")
}

/// Permitted contents of every sector.
struct Promise {
    requests: Vec<Request>,
    /// Requests that changed each sector, in order.
    changes: Vec<Vec<usize>>,
}

impl Promise {
    fn new() -> Self {
        let (requests, mut changes) = (guest::requests(), vec![Vec::new(); SECTORS as usize]);
        for (number, request) in requests.iter().enumerate() {
            request.sectors().for_each(|sector| changes[sector as usize].push(number));
        }
        Self { requests, changes }
    }

    /// Returns `true` if a sector has the content of its latest durable request, or of a later one.
    fn allows(&self, bytes: &[u8], sector: usize, durable: &HashSet<usize>) -> bool {
        let is_zero = bytes.iter().all(|byte| *byte == 0);
        for &number in self.changes[sector].iter().rev() {
            let request = &self.requests[number];
            let is_there = match request {
                Request::Write(_) => !is_zero && bytes == guest::content(number, sector as u64),
                _ => is_zero,
            };
            // Discarded data may remain.
            let is_settled = durable.contains(&number) && !matches!(request, Request::Discard(_));
            if is_there || is_settled {
                return is_there;
            }
        }
        is_zero
    }

    /// Checks that everything marked as durable is present.
    fn check(&self, found: &[u8], marks: &[&str]) {
        let numbers = marks.iter().flat_map(|mark| mark.split(' ')).filter_map(|number| number.parse().ok());
        let durable: HashSet<usize> = numbers.collect();
        for (sector, bytes) in found.chunks(SECTOR_BYTES).enumerate() {
            assert!(
                self.allows(bytes, sector, &durable),
                "sector {sector} begins with {:?}; of what has changed it, {:?}, are durable {:?}",
                &bytes[..16],
                self.changes[sector],
                self.changes[sector].iter().filter(|number| durable.contains(number)).collect::<Vec<_>>()
            );
        }
    }
}

/// Records a driver with these features on a raw image, and checks all possible results of a power loss.
fn lose_power_of_raw(features: Features) {
    if let Some(dir) = recorded() {
        let image = put(&dir.with_file_name("disk.img"), &dir);
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        return guest::work(opened(&image, &pool), features);
    }
    let area = area();
    let image = File::create(area.path().join("disk.img")).expect("create");
    image.set_len(SECTORS * SECTOR_BYTES as u64).expect("a size");
    let log = record(&area.path().join("dir"));
    let promise = Promise::new();
    each_image(&log, |dir, _, marks| {
        if !marks.is_empty() {
            promise.check(&fs::read(dir.join("disk.img")).expect("read"), marks);
        }
    });
}

#[test]
fn flushed_guest_data_survive_power_loss() {
    lose_power_of_raw(Features::all());
}

#[test]
fn next_server_flush_covers_a_killed_servers_writes() {
    const LEFT: [u8; 4096] = [7; 4096];
    if let Some(dir) = recorded() {
        let image = put(&dir.with_file_name("disk.img"), &dir);
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let cx = Ctx::root(SessionId(1));
        let write =
            |disk: Arc<dyn BlockDevice>| disk.write(&cx, 0, Stability::Unstable, LEFT.to_vec().into());
        // Ending without a flush leaves the same state as a kill.
        write(opened(&image, &pool)).wait().expect("written");
        opened(&image, &pool).flush(&cx).wait().expect("flushed");
        return mark("flushed");
    }
    let area = area();
    fs::write(area.path().join("disk.img"), vec![0; 1 << 16]).expect("create");
    let log = record(&area.path().join("dir"));
    each_image(&log, |dir, _, marks| {
        let is_there = || fs::read(dir.join("disk.img")).expect("read").starts_with(&LEFT);
        assert!(marks.is_empty() || is_there());
    });
}

#[test]
fn write_through_guest_data_survive_power_loss() {
    lose_power_of_raw(Features::all() - Features::FLUSH);
}
