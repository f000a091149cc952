//! qcow2 images, created and checked by QEMU's tools.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use tombolo_back_image_file::{Qcow2Image, Qcow2OpenError};
use tombolo_conformance::disk::{Wanted, run};
use tombolo_core::block::{BlockDevice, OpenOptions, Range};
use tombolo_core::{Error, Stability};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_test_support::once_free;

use crate::common::{cx, read, write};

const SIZE: u64 = 8 << 20;

pub struct Images {
    dir: tempfile::TempDir,
    pool: ThreadPool,
}

/// Returns the output of one of QEMU's tools, which must succeed.
pub fn qemu(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}{errors}");
    said
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

impl Images {
    /// Creates a directory in memory: durability has its own tests.
    pub fn new() -> Self {
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        Self { dir: tempfile::tempdir_in("/dev/shm").expect("a directory"), pool }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates an image by `qemu-img create` with these options.
    pub fn create(&self, name: &str, options: &[&str], size_bytes: u64) -> PathBuf {
        let (path, size) = (self.path(name), size_bytes.to_string());
        let sizes: &[&str] = if size_bytes == 0 { &[] } else { &[&size] };
        qemu("qemu-img", &[&["create", "-q", "-f", "qcow2"], options, &[text(&path)], sizes].concat());
        path
    }

    fn try_open(&self, path: &Path, read_only: bool) -> Result<Arc<Qcow2Image>, Qcow2OpenError> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        Qcow2Image::open(path, &options, None, self.pool.lane())
    }

    /// Opens an image with no other user.
    fn open(&self, path: &Path, read_only: bool) -> Result<Arc<Qcow2Image>, Qcow2OpenError> {
        let is_in_use = |error: &_| matches!(error, Qcow2OpenError::InUse { .. });
        once_free(|| self.try_open(path, read_only), is_in_use)
    }

    fn opened(&self, path: &Path) -> Arc<Qcow2Image> {
        self.open(path, false).expect("opened")
    }
}

fn every_case_over(options: &'static [&'static str], skipped: &[&str]) {
    let kept = Mutex::new(Vec::new());
    let make = |Wanted { size_bytes, read_only }| -> Arc<dyn BlockDevice> {
        let images = Images::new();
        let path = images.create("disk.qcow2", options, size_bytes);
        let disk = images.open(&path, read_only).expect("opened");
        kept.lock().unwrap().push((images, path));
        disk
    };
    run(make).expect("qcow2", skipped);
    for (_images, path) in kept.into_inner().unwrap() {
        qemu("qemu-img", &["check", "-q", text(&path)]);
    }
}

#[test]
fn every_case_over_qcow2() {
    every_case_over(&[], &[]);
}

#[test]
fn every_case_over_small_clusters_of_the_old_version() {
    every_case_over(&["-o", "compat=0.10,cluster_size=4096"], &["it does not know its holes"]);
}

#[test]
fn qemu_and_tombolo_read_each_others_qcow2_writes() {
    let images = Images::new();
    let path = images.create("disk.qcow2", &[], SIZE);
    qemu("qemu-io", &["-c", "write -P 7 1M 1M", text(&path)]);
    let disk = images.opened(&path);
    assert!(read(&*disk, 1 << 20, 1 << 20).unwrap().iter().all(|byte| *byte == 7));
    write(&*disk, 3 << 20, Stability::DataSync, &[9; 100 << 10]).unwrap();
    disk.discard(&cx(), Range { offset: 1 << 20, len_bytes: 1 << 20 }).wait().unwrap();
    disk.resize().expect("it can").set_size(&cx(), 2 * SIZE).wait().unwrap();
    assert!(
        matches!(images.try_open(&path, true), Err(Qcow2OpenError::InUse { .. })),
        "QEMU is locked out too"
    );
    disk.flush(&cx()).wait().unwrap();
    drop(disk);
    qemu("qemu-img", &["check", "-q", text(&path)]);
    qemu("qemu-io", &["-c", "read -P 9 3M 100k", "-c", "read -P 0 4M 12M", text(&path)]);
}

#[test]
fn unwritten_clusters_read_from_the_unchanged_backing_image() {
    let images = Images::new();
    let base = images.create("base.qcow2", &[], SIZE);
    qemu("qemu-io", &["-c", "write -P 7 0 2M", text(&base)]);
    let before = std::fs::read(&base).unwrap();
    let path = images.create("over.qcow2", &["-b", "base.qcow2", "-F", "qcow2"], 0);
    let disk = images.opened(&path);
    write(&*disk, 512, Stability::DataSync, &[9; 512]).unwrap();
    assert_eq!(read(&*disk, 0, 1536).unwrap(), [[7; 512], [9; 512], [7; 512]].concat());
    drop(disk);
    qemu("qemu-img", &["check", "-q", text(&path)]);
    assert!(std::fs::read(&base).unwrap() == before);
}

#[test]
fn backing_image_must_be_allowed_and_its_format_stated() {
    let images = Images::new();
    let outside = tempfile::tempdir().expect("a directory");
    let base = outside.path().join("base.img");
    std::fs::write(&base, [7; 65536]).unwrap();
    let path = images.create("over.qcow2", &["-b", text(&base), "-F", "raw"], 0);
    assert!(matches!(images.open(&path, false), Err(Qcow2OpenError::Elsewhere { .. })));
    let allowed = Qcow2Image::open(&path, &OpenOptions::default(), Some(outside.path()), images.pool.lane());
    assert_eq!(read(&*allowed.expect("allowed"), 0, 512).unwrap(), [7; 512]);

    std::os::unix::fs::symlink(&base, images.path("link.img")).unwrap();
    qemu("qemu-img", &["rebase", "-u", "-b", "link.img", "-F", "raw", text(&path)]);
    assert!(matches!(images.open(&path, false), Err(Qcow2OpenError::Elsewhere { .. })), "by a link");

    images.create("base.qcow2", &[], SIZE);
    let unsaid = images.create("unsaid.qcow2", &["-u", "-b", "base.qcow2", "-F", "qcow2"], SIZE);
    let mut bytes = std::fs::read(&unsaid).unwrap();
    let says_format =
        bytes.windows(4).position(|word| word == [0xE2, 0x79, 0x2A, 0xCA]).expect("an extension");
    // An unknown header extension is skipped.
    bytes[says_format] = 0x12;
    std::fs::write(&unsaid, &bytes).unwrap();
    assert!(matches!(images.open(&unsaid, false), Err(Qcow2OpenError::FormatUnspecified { .. })));
    let circle = images.create("circle.qcow2", &["-u", "-b", "circle.qcow2", "-F", "qcow2"], SIZE);
    let found = images.open(&circle, true).map(drop);
    assert!(matches!(found, Err(Qcow2OpenError::Chain { .. })), "{found:?}");
}

#[test]
fn damaged_image_returns_errors_without_panic() {
    let images = Images::new();
    let path = images.create("disk.qcow2", &[], SIZE);
    qemu("qemu-io", &["-c", "write -P 7 0 4M", text(&path)]);
    let whole = std::fs::read(&path).unwrap();
    let damaged = images.path("damaged.qcow2");
    // The header, then the fields that describe tables, then the tables themselves.
    for at in (0..112).chain((1 << 16..5 << 16).step_by(4099)) {
        for value in [0xFF, 0x01] {
            let mut bytes = whole.clone();
            bytes[at] ^= value;
            std::fs::write(&damaged, &bytes).unwrap();
            let Ok(disk) = images.open(&damaged, false) else { continue };
            // Any answer will do, but it must arrive soon.
            let end = disk.geometry().size_bytes.min(SIZE);
            for offset in (0..end).step_by(1 << 20) {
                let _ = read(&*disk, offset, 4096.min(end as usize));
                let _ = write(&*disk, offset, Stability::Unstable, &[1; 512]);
            }
        }
    }
    std::fs::write(&damaged, &whole[..whole.len() / 2]).unwrap();
    let disk = images.opened(&damaged);
    assert!(matches!(read(&*disk, 3 << 20, 4096), Ok(_) | Err(Error::Io { .. })));
    assert_eq!(read(&*disk, 0, 512).unwrap(), [7; 512]);
    drop(disk);
    assert!(matches!(images.open(&images.path("none"), false), Err(Qcow2OpenError::Open { .. })));
    std::fs::write(&damaged, "no image").unwrap();
    assert!(matches!(images.open(&damaged, false), Err(Qcow2OpenError::Format { .. })));
}
