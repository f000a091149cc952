//! A cache on a full disk, and on an overlay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};

use crate::world::{Origin, grow_old, pattern};

struct Mounted(PathBuf);

impl Mounted {
    fn new(what: &[&str], at: &Path) -> Self {
        let status = Command::new("mount").args(what).arg(at).status().expect("mount(8)");
        assert!(status.success(), "mounting needs root");
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

const FILES: u8 = 24;
const FILE_BYTES: usize = 400_000;

/// More files than fit; then another program takes the remaining space.
#[test]
fn cache_on_full_disk_retains_reads_and_passes_others() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let text = |n: u8| format!("file-{n}");
    (0..FILES).for_each(|n| origin.direct.put(&text(n), &pattern(FILE_BYTES, n)));
    grow_old();
    let _small = Mounted::new(&["-t", "tmpfs", "-o", "size=5m", "small"], dir.path());
    let (cache_dir, other) = (dir.path().join("cache"), dir.path().join("other"));
    let read = |cached: &crate::world::Cached, n: u8| {
        assert!(cached.session.get(&text(n)).expect("read") == pattern(FILE_BYTES, n), "file-{n}");
    };
    {
        let cached = origin.cached(&cache_dir, Contract::Exclusive);
        (0..FILES).for_each(|n| read(&cached, n));
        let reads = origin.asked("read");
        read(&cached, FILES - 1);
        assert_eq!(origin.asked("read"), reads, "the latest files were cached");
        // Now the cache can write neither data nor its index.
        let rest = vec![1; 1 << 20];
        let mut file = fs::File::create(&other).expect("create");
        while std::io::Write::write(&mut file, &rest).is_ok() {}
        (0..FILES).for_each(|n| read(&cached, n));
        cached.session.put("new", &pattern(1000, 1));
        assert_eq!(cached.session.get("new").expect("read"), pattern(1000, 1));
        cached.cache.flush();
    }
    fs::remove_file(&other).expect("remove");
    let cached = origin.cached(&cache_dir, Contract::Exclusive);
    assert_eq!(cached.session.names("").len(), usize::from(FILES) + 1);
    (0..FILES).for_each(|n| read(&cached, n));
    let reads = origin.asked("read");
    read(&cached, FILES - 1);
    assert_eq!(origin.asked("read"), reads, "data are cached again");
}

#[test]
fn cache_works_on_an_overlay() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    for n in 0..FILES {
        origin.direct.put(&format!("file-{n}"), &pattern(50_000, n));
    }
    grow_old();
    // Overlays need a suitable upper file system: one in memory is.
    let _memory = Mounted::new(&["-t", "tmpfs", "memory"], dir.path());
    let [lower, upper, work, over] = ["lower", "upper", "work", "over"].map(|name| dir.path().join(name));
    for dir in [&lower, &upper, &work, &over] {
        fs::create_dir(dir).expect("mkdir");
    }
    // Part of the cache is in the lower layer, like an image with a warm cache: changes are copied up.
    let read_all = |cache_dir: &Path, capacity_bytes: u64| {
        let options = Options { contract: Contract::Exclusive, ..Options::default() };
        let store = StoreOptions { capacity_bytes, ..StoreOptions::default() };
        let cached = origin.cached_in(cache_dir, options, store);
        for n in 0..FILES {
            let text = format!("file-{n}");
            let there = origin.direct.get(&text).expect("read");
            assert_eq!(cached.session.get(&text).expect("read"), there);
        }
        cached
    };
    drop(read_all(&lower.join("cache"), 600_000));
    let dirs =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let _over = Mounted::new(&["-t", "overlay", "-o", &dirs, "overlay"], &over);
    let reads = origin.asked("read");
    let cached = read_all(&over.join("cache"), 8 << 20);
    let more = origin.asked("read") - reads;
    assert!(0 < more && more < u64::from(FILES), "{more} were read again, and the lower layer was used");
    // Data in the lower layer are replaced.
    (0..FILES / 2).for_each(|n| cached.session.put(&format!("file-{n}"), &pattern(60_000, n + 100)));
    drop(cached);
    read_all(&over.join("cache"), 8 << 20);
}
