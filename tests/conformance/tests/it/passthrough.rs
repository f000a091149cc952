//! Files of a cache that the kernel of a mount reads by itself. Needs root, `/dev/fuse` and Linux 6.9.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;
use tombolo_back_memory::Memory;
use tombolo_core::fs::OpenFlags;
use tombolo_core::{Error, SessionId};
use tombolo_front_fuse::dev::{Mount, Options as MountOptions};
use tombolo_front_fuse::session::Coherence;
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{CacheExport, Contract, Options, over};
use tombolo_test_support::Session;
use tombolo_wire_fuse::Opcode;

use crate::common::opened_store;

const LEN: usize = 1 << 20;
/// Name of the file.
const LARGE: &str = "large";

/// An origin with one large file, a cache of it that cannot be changed, and a mount of that.
struct World {
    origin: Session,
    cache: CacheExport,
    mount: Mount,
    _dirs: [tempfile::TempDir; 2],
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at / 4096 + at / 7 + seed) as u8).collect()
}

impl World {
    /// Returns `None` if the kernel does not support backing files.
    fn new(coherence: Coherence) -> Option<Self> {
        Self::of(&pattern(0), coherence)
    }

    fn of(bytes: &[u8], coherence: Coherence) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() || !tombolo_sys::fuse_dev::may_back() {
            tombolo_skip::skip!("passthrough needs /dev/fuse and the superuser");
        }
        let export = Memory::default();
        let origin = Session::attach(&export);
        origin.put(LARGE, bytes);
        origin.chmod(LARGE, 0o755).expect("chmod");
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let store = opened_store(dirs[0].path(), StoreOptions::default());
        let options = Options { contract: Contract::Exclusive, read_only: true, ..Options::default() };
        let cache = over(&export, store, options).expect("a cache");
        let options = MountOptions { coherence, read_only: true, ..MountOptions::default() };
        let mount = Mount::start(&cache, SessionId(1), dirs[1].path(), &options).expect("the mount");
        Some(Self { origin, cache, mount, _dirs: dirs })
    }

    fn path(&self) -> std::path::PathBuf {
        self.mount.path().join(LARGE)
    }

    fn open(&self) -> fs::File {
        fs::File::open(self.path()).expect("open")
    }

    /// Reads the whole file by requests, so that it is cached.
    fn fetch(&self) {
        assert!(fs::read(self.path()).expect("read") == pattern(0));
        assert_eq!(self.mount.session().passthrough_openings(), 0);
    }

    fn reads(&self) -> u64 {
        self.mount.session().counters().requests(Opcode::Read)
    }

    /// Opens until the kernel reads by itself: a close reaches the server after it has returned.
    fn open_past(&self) -> fs::File {
        let before = self.mount.session().passthrough_openings();
        for _ in 0..1000 {
            let file = self.open();
            if self.mount.session().passthrough_openings() > before {
                return file;
            }
            drop(file);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("the kernel is given no backing file");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.mount.unmount().expect("unmount");
        self.mount.wait();
    }
}

fn all_of(file: &fs::File) -> Vec<u8> {
    let mut bytes = vec![0; LEN + 1];
    let mut count = 0;
    while let more @ 1.. = file.read_at(&mut bytes[count..], count as u64).expect("read") {
        count += more;
    }
    bytes.truncate(count);
    bytes
}

#[test]
fn fully_cached_file_is_read_without_requests() {
    for coherence in [Coherence::Auto, Coherence::Always, Coherence::Push] {
        let Some(world) = World::new(coherence) else { return };
        world.fetch();
        let file = world.open_past();
        let reads = world.reads();
        assert!(all_of(&file) == pattern(0));
        assert_eq!(fs::metadata(world.path()).expect("stat").len(), LEN as u64);
        // Another program too.
        let same = Command::new("cmp").arg(world.path()).arg(world.path()).status().expect("cmp runs");
        assert!(same.success());
        assert_eq!(world.reads(), reads, "{coherence:?}: no READ");
        assert!(world.cache.counts().backed >= 1);
    }
}

#[test]
fn all_openings_of_file_share_read_path() {
    let Some(world) = World::new(Coherence::Auto) else { return };
    let before = world.open();
    world.fetch();
    let beside = world.open();
    assert!(all_of(&before) == pattern(0) && all_of(&beside) == pattern(0));
    assert_eq!(world.mount.session().passthrough_openings(), 0, "the first is open still");
    drop((before, beside));
    let file = world.open_past();
    let (reads, openings) = (world.reads(), world.mount.session().passthrough_openings());
    let second = world.open();
    assert!(all_of(&second) == pattern(0));
    assert_eq!((world.reads(), world.mount.session().passthrough_openings()), (reads, openings + 1));
    // O_DIRECT bypasses the page cache and is served by requests even for a cached file.
    let direct = fs::File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(world.path());
    let mut some = [0; 100];
    assert_eq!(direct.expect("open").read_at(&mut some, 7).expect("read"), 100);
    assert!(some == pattern(0)[7..107] && world.reads() > reads);
    drop((file, second));
    assert!(all_of(&world.open()) == pattern(0));
}

#[test]
fn strict_mount_reads_by_requests() {
    let Some(world) = World::new(Coherence::Strict) else { return };
    for _ in 0..3 {
        world.fetch();
    }
}

#[test]
fn another_version_is_another_file_and_readers_keep_theirs() {
    let Some(world) = World::new(Coherence::Auto) else { return };
    world.fetch();
    let file = world.open_past();
    world.cache.flush();
    world.origin.put(LARGE, &pattern(1));
    // The contract does not revalidate; an open by a user without cached permissions does.
    let session = Session::attach(&world.cache);
    let node = session.node(LARGE).expect("there");
    let opened = session.by(1000).open(node, OpenFlags::READ);
    assert!(matches!(opened, Err(Error::Stale)), "{opened:?}");
    assert!(all_of(&file) == pattern(0), "what was opened is read on");
    assert!(all_of(&world.open()) == pattern(1), "a new opening is of the new one");
    assert!(all_of(&file) == pattern(0), "and the old one is no mix of both");
    drop(file);
    assert!(all_of(&world.open_past()) == pattern(1));
}

#[test]
fn a_program_runs_from_a_backing_file() {
    let bash = fs::read("/bin/bash").expect("read");
    let Some(world) = World::of(&bash, Coherence::Auto) else { return };
    fs::read(world.path()).expect("read");
    let file = world.open_past();
    let reads = world.reads();
    let status = Command::new(world.path()).args(["-c", "exit 7"]).status().expect("it runs");
    assert_eq!((status.code(), world.reads()), (Some(7), reads));
    drop(file);
}

#[test]
fn detached_mount_is_readable_to_the_end() {
    let Some(world) = World::new(Coherence::Auto) else { return };
    world.fetch();
    let file = world.open_past();
    assert!(!world.mount.unmount().expect("detached"), "it is in use");
    assert!(all_of(&file) == pattern(0));
}
