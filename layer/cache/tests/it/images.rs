//! Sidecars: zero blocks are not fetched, and wrong entries are ignored.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use tombolo_core::fs::{Mode, NodeId, SetAttr};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_wire_image::{Advice, ImageFile, NAME, Sidecar, Step, ZeroMap, digest};

use crate::world::{Origin, grow_old, pattern};

const BLOCK: usize = 4096;

/// Returns data of this many blocks, of which every tenth is not zero and the last is short.
fn memory(blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0; blocks * BLOCK - 100];
    for (index, block) in bytes.chunks_mut(BLOCK).enumerate().step_by(10) {
        block.copy_from_slice(&pattern(block.len(), 1 + index as u8 % 100));
        // All blocks differ.
        block[0] = 1;
        block[1..9].copy_from_slice(&index.to_le_bytes());
    }
    bytes
}

const DATA_BYTES: u64 = 100 * BLOCK as u64;

fn zeros_of(bytes: &[u8]) -> ZeroMap {
    let mut zeros = ZeroMap::default();
    for (index, block) in (0..).zip(bytes.chunks(BLOCK)) {
        if block.iter().all(|byte| *byte == 0) {
            assert!(zeros.add(index..index + 1));
        }
    }
    zeros
}

/// Creates an origin with `memory` and its sidecar.
fn origin_with(bytes: &[u8], change: impl FnOnce(&mut ImageFile)) -> Origin {
    let origin = Origin::new();
    origin.direct.put("memory", bytes);
    origin.say("memory", zeros_of(bytes), change);
    origin
}

impl Origin {
    fn say(&self, name: &str, zeros: ZeroMap, change: impl FnOnce(&mut ImageFile)) {
        let attr = self.direct.lookup(name).expect("it is there").attr;
        let mut file = ImageFile {
            name: name.into(),
            size: attr.size,
            mtime: attr.mtime,
            block_bytes: BLOCK as u32,
            advice: Advice::OnDemand,
            zeros,
            table: None,
        };
        change(&mut file);
        let sidecar = Sidecar { files: vec![file], trace: Vec::new() };
        self.direct.put(NAME, &sidecar.encode().expect("a sidecar"));
    }

    fn set(&self, name: &str, set: &SetAttr) {
        let node: NodeId = self.direct.lookup(name).expect("it is there").node;
        self.direct.setattr(node, *set).expect("set");
    }

    /// Reads `memory` through a new cache, verifies it, and returns the number of bytes fetched.
    fn fetched(&self, options: Options) -> u64 {
        let dir = tempfile::tempdir().expect("a directory");
        let cached = self.cached_with(dir.path(), options, StoreOptions::default());
        assert!(cached.session.get("memory").expect("read") == self.direct.get("memory").expect("read"));
        let of_sidecar = self.direct.lookup(NAME).map_or(0, |entry| entry.attr.size);
        let counts = cached.cache.counts();
        let fetched = counts.fetched_bytes;
        let size = self.direct.lookup("memory").expect("it is there").attr.size;
        // The sidecar itself may have been fetched.
        let fetched = if fetched + counts.zero_bytes == size { fetched } else { fetched - of_sidecar };
        assert_eq!(fetched + counts.zero_bytes, size);
        fetched
    }
}

#[test]
fn zero_blocks_are_not_fetched_and_survive_restart() {
    let bytes = memory(1000);
    let origin = origin_with(&bytes, |_| {});
    grow_old();
    let dir = tempfile::tempdir().expect("a directory");
    let mut reads = 0;
    // First life, second life, and after damage to a zero block.
    for zeros in [bytes.len() as u64 - DATA_BYTES, 0, BLOCK as u64] {
        let cached = origin.cached(dir.path(), Contract::Immutable);
        assert!(cached.session.get("memory").expect("read") == bytes);
        let counts = cached.cache.counts();
        assert_eq!(counts.zero_bytes, zeros);
        assert!(counts.fetched_bytes < DATA_BYTES + BLOCK as u64, "{counts:?}");
        assert!(reads == 0 || origin.asked("read") == reads, "all was here");
        reads = origin.asked("read");
        cached.cache.flush();
        drop(cached);
        let large = data_file(dir.path());
        assert!(large.metadata().expect("there").blocks() * 512 < bytes.len() as u64 / 4, "zeroes are holes");
        if zeros == 0 {
            large.write_all_at(b"no zeroes", 5 * BLOCK as u64).expect("write");
        }
    }
}

/// Opens the largest data file of a cache.
fn data_file(cache: &Path) -> File {
    let folders = std::fs::read_dir(cache.join("objects")).expect("objects").flatten();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("list").flatten());
    let largest = files.max_by_key(|file| file.metadata().expect("there").len()).expect("a file");
    File::options().read(true).write(true).open(largest.path()).expect("open")
}

#[test]
fn only_what_fits_the_file_is_believed() {
    let (bytes, all) = (memory(1000), (1000 * BLOCK - 100) as u64);
    let options = Options { contract: Contract::CloseToOpen, ..Options::default() };
    assert_eq!(origin_with(&bytes, |_| {}).fetched(options), DATA_BYTES);
    assert_eq!(origin_with(&bytes, |_| {}).fetched(Options { sidecars: false, ..options }), all);
    assert_eq!(origin_with(&bytes, |file| file.mtime.nanos ^= 1).fetched(options), all);
    assert_eq!(origin_with(&bytes, |file| file.size += 1).fetched(options), all);
    assert_eq!(origin_with(&bytes, |file| file.name = b"another".to_vec()).fetched(options), all);
    let damaged = origin_with(&bytes, |_| {});
    let mut said = damaged.direct.get(NAME).expect("a sidecar");
    *said.last_mut().expect("a byte") ^= 1;
    damaged.direct.put(NAME, &said);
    assert_eq!(damaged.fetched(options), all);
    let large = Options { block_bytes: Some(64 << 10), ..options };
    let last = all % (64 << 10);
    assert_eq!(
        origin_with(&bytes, |_| {}).fetched(large),
        all - last,
        "one block of that size is all zeroes"
    );
}

#[test]
fn a_sidecar_of_another_user_is_not_believed() {
    let bytes = memory(1000);
    let options = Options::default();
    let of = |sidecar: &SetAttr, file: &SetAttr| {
        let origin = origin_with(&bytes, |_| {});
        // `set` leaves the time of modification unchanged.
        origin.set(NAME, sidecar);
        origin.set("memory", file);
        origin.fetched(options) == DATA_BYTES
    };
    let owner = |uid| SetAttr { uid: Some(uid), ..SetAttr::default() };
    let mode = |bits| SetAttr { mode: Some(Mode::new(bits)), ..SetAttr::default() };
    assert!(of(&owner(1000), &owner(1000)), "the owner's");
    assert!(of(&owner(0), &owner(1000)), "root's");
    assert!(!of(&owner(1001), &owner(1000)));
    assert!(!of(&owner(1001), &owner(0)));
    assert!(!of(&mode(0o664), &owner(0)));
    assert!(!of(&mode(0o646), &owner(0)));
}

#[test]
fn changed_image_is_read_in_its_current_version() {
    for contract in [Contract::CloseToOpen, Contract::Exclusive] {
        let bytes = memory(1000);
        let origin = origin_with(&bytes, |_| {});
        let dir = tempfile::tempdir().expect("a directory");
        let cached = origin.cached(dir.path(), contract);
        assert!(cached.session.get("memory").expect("read") == bytes);
        let changed: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x55).collect();
        let writer = if contract == Contract::Exclusive { &cached.session } else { &origin.direct };
        writer.put("memory", &changed);
        assert!(cached.session.get("memory").expect("read") == changed, "{contract:?}");
    }
}

#[test]
fn whole_file_is_fetched_if_its_sidecar_says_so() {
    let bytes = memory(1000);
    let origin = origin_with(&bytes, |file| file.advice = Advice::Whole);
    let dir = tempfile::tempdir().expect("a directory");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let file = cached.session.reader("memory");
    assert!(cached.session.read(file, 0, BLOCK).expect("read") == bytes[..BLOCK]);
    let begun = std::time::Instant::now();
    while cached.cache.counts().zero_bytes < bytes.len() as u64 - DATA_BYTES {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", cached.cache.counts());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn only_traced_parts_are_prefetched() {
    let (bytes, disk) = (memory(1000), pattern(4 << 20, 9));
    let origin = origin_with(&bytes, |_| {});
    origin.direct.put("disk", &disk);
    origin.direct.put("changed", &disk);
    let attr = |name: &str| origin.direct.lookup(name).expect("it is there").attr;
    let file = |name: &str, zeros: ZeroMap| ImageFile {
        name: name.into(),
        size: attr(name).size,
        mtime: attr(name).mtime,
        block_bytes: BLOCK as u32,
        advice: Advice::OnDemand,
        zeros,
        table: None,
    };
    let changed = ImageFile { mtime: Default::default(), ..file("changed", ZeroMap::default()) };
    let files = vec![changed, file("disk", ZeroMap::default()), file("memory", zeros_of(&bytes))];
    let step = |file, start, count| Step { file, start, count };
    let trace = vec![step(1, 100, 200), step(0, 0, 50), step(2, 5, 20), step(1, 600, 1), step(1, 90, 20)];
    let sidecar = Sidecar { files, trace }.encode().expect("a sidecar");
    origin.direct.put(NAME, &sidecar);
    let dir = tempfile::tempdir().expect("a directory");
    // Exclusive, as recent data would otherwise be fetched again at the next open.
    let options = Options { contract: Contract::Exclusive, ahead_bytes_max: 0, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, StoreOptions::default());
    let opened = cached.session.reader("memory");
    assert!(cached.session.read(opened, 0, 100).expect("read") == bytes[..100]);
    // Of `memory`, the block read and two of its step; of `disk`, 200 blocks, 1, and 10 more.
    let expected = ((3 + 211) * BLOCK + sidecar.len()) as u64;
    let begun = std::time::Instant::now();
    while cached.cache.counts().fetched_bytes < expected {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", cached.cache.counts());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let disk_file = cached.session.reader("disk");
    let reads = origin.asked("read");
    for at in [90 * BLOCK, 299 * BLOCK, 600 * BLOCK] {
        assert!(cached.session.read(disk_file, at as u64, BLOCK).expect("read") == disk[at..at + BLOCK]);
    }
    assert_eq!((cached.cache.counts().fetched_bytes, origin.asked("read")), (expected, reads));
}

#[test]
fn reads_are_recorded_once_in_order() {
    let origin = origin_with(&memory(100), |_| {});
    origin.direct.put("small", b"content");
    let dir = tempfile::tempdir().expect("a directory");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let record = dir.path().join("record");
    cached.cache.record(File::create(&record).expect("create"));
    let file = cached.session.reader("memory");
    for (offset, len) in [(8192, 4096), (0, 4096), (8192, 100), (409_000, 4096), (1 << 30, 10)] {
        cached.session.read(file, offset, len).expect("read");
    }
    assert_eq!(cached.session.get("small").expect("read"), b"content");
    let lines = std::fs::read_to_string(&record).expect("a record");
    assert_eq!(lines, "8192 4096 memory\n0 4096 memory\n409000 500 memory\n0 7 small\n");
}

#[test]
fn blocks_of_other_files_are_copied_and_verified() {
    for (is_damaged, uid) in [(false, 0), (true, 0), (false, 1000)] {
        let mut bytes = memory(1000);
        bytes.resize(1000 * BLOCK, 0);
        let mut newer: Vec<u8> = bytes.chunks(10 * BLOCK).rev().flat_map(<[u8]>::to_vec).collect();
        newer[20 * BLOCK..30 * BLOCK].copy_from_slice(&pattern(10 * BLOCK, 201));
        let origin = Origin::new();
        let (mut sidecar, mut tables) = (Sidecar::default(), Vec::new());
        for (name, bytes) in [("memory", &bytes), ("newer", &newer)] {
            origin.direct.put(name, bytes);
            let attr = origin.direct.lookup(name).expect("it is there").attr;
            let data = bytes.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0));
            let table: Vec<u8> = data.flat_map(digest).collect();
            sidecar.files.push(ImageFile {
                name: name.into(),
                size: attr.size,
                mtime: attr.mtime,
                block_bytes: BLOCK as u32,
                advice: Advice::OnDemand,
                zeros: zeros_of(bytes),
                table: Some(digest(&table)),
            });
            tables.extend(table);
        }
        let sidecar = [sidecar.encode().expect("a sidecar"), tables].concat();
        origin.direct.put(NAME, &sidecar);
        origin.set("newer", &SetAttr { uid: Some(uid), ..SetAttr::default() });
        let dir = tempfile::tempdir().expect("a directory");
        let cached = origin.cached(dir.path(), Contract::Exclusive);
        assert!(cached.session.get("memory").expect("read") == bytes);
        if is_damaged {
            data_file(dir.path()).write_all_at(b"damage", 40 * BLOCK as u64).expect("write");
        }
        let before = cached.cache.counts().fetched_bytes;
        assert!(cached.session.get("newer").expect("read") == newer, "every byte is right");
        let counts = cached.cache.counts();
        if uid != 0 {
            assert_eq!(counts.equal_bytes, 0, "who knows a digest gets no other user's data for it");
            continue;
        }
        let lost = if is_damaged { BLOCK as u64 } else { 0 };
        // 99 common blocks, the first of each row of ten; and ten new blocks.
        assert_eq!((counts.equal_bytes, counts.refused_bytes), (99 * BLOCK as u64 - lost, lost));
        assert_eq!(counts.fetched_bytes - before, 10 * BLOCK as u64 + lost);
    }
}

/// Returns a valid sidecar entry for a file, with its table of digests.
fn said_of(origin: &Origin, name: &str, bytes: &[u8]) -> (ImageFile, Vec<u8>) {
    let attr = origin.direct.lookup(name).expect("it is there").attr;
    let data = bytes.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0));
    let table: Vec<u8> = data.flat_map(digest).collect();
    let file = ImageFile {
        name: name.into(),
        size: attr.size,
        mtime: attr.mtime,
        block_bytes: BLOCK as u32,
        advice: Advice::OnDemand,
        zeros: zeros_of(bytes),
        table: Some(digest(&table)),
    };
    (file, table)
}

#[test]
fn sidecar_with_a_wrong_digest_is_ignored_entirely() {
    let (before, disk) = (memory(1000), pattern(2 << 20, 33));
    let mut bytes = before.clone();
    bytes[7 * BLOCK..8 * BLOCK].fill(5);
    let origin = Origin::new();
    origin.direct.put("disk", &disk);
    origin.direct.put("memory", &bytes);
    // The entry of `memory` predates a write to a zero block, and has a wrong digest of another.
    let (of_disk, disk_table) = said_of(&origin, "disk", &disk);
    let (mut of_memory, mut memory_table) = said_of(&origin, "memory", &before);
    memory_table[50 * 32] ^= 1;
    of_memory.table = Some(digest(&memory_table));
    let head = Sidecar { files: vec![of_disk, of_memory], trace: Vec::new() }.encode().expect("a sidecar");
    origin.direct.put(NAME, &[head, disk_table, memory_table].concat());
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { contract: Contract::Exclusive, ahead_bytes_max: 0, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, StoreOptions::default());
    assert!(cached.session.get("disk").expect("read") == disk);
    let file = cached.session.reader("memory");
    let read = |block: usize| cached.session.read(file, (block * BLOCK) as u64, BLOCK).expect("read");
    assert!(read(7) == [0; BLOCK], "this cannot be told from the truth");
    assert!(read(490) == bytes[490 * BLOCK..491 * BLOCK]);
    assert_eq!(cached.cache.counts().refused_bytes, 0);
    assert!(read(500) == bytes[500 * BLOCK..501 * BLOCK], "what the origin has is the file");
    assert_eq!(cached.cache.counts().refused_bytes, 2 * BLOCK as u64, "it was fetched once more");
    let zero_bytes = cached.cache.counts().zero_bytes;
    assert!(read(7) == bytes[7 * BLOCK..8 * BLOCK], "by now it can");
    assert!(cached.session.get("memory").expect("read") == bytes);
    let counts = cached.cache.counts();
    assert_eq!((counts.refused_bytes, counts.zero_bytes), (2 * BLOCK as u64, zero_bytes));
}

#[test]
fn trace_starts_at_first_file_and_counts_its_reads() {
    let disk = pattern(2 << 20, 9);
    let origin = Origin::new();
    origin.direct.put("disk", &disk);
    origin.direct.put("vm.toml", b"version = 1");
    let (file, _) = said_of(&origin, "disk", &disk);
    // Names outside of the directory or of no file.
    let others = ["..", "nothere"].map(|name| ImageFile { name: name.into(), table: None, ..file.clone() });
    let [above, absent] = others;
    let files = vec![above, ImageFile { table: None, ..file }, absent];
    let step = |file, start, count| Step { file, start, count };
    let trace = vec![step(0, 0, 9), step(2, 0, 9), step(1, 100, 20), step(1, 10, 5)];
    origin.direct.put(NAME, &Sidecar { files, trace }.encode().expect("a sidecar"));
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { contract: Contract::Exclusive, ahead_bytes_max: 0, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, StoreOptions::default());
    cached.session.reader("vm.toml");
    let begun = std::time::Instant::now();
    let all = 25 * BLOCK as u64;
    while cached.cache.counts().fetched_bytes < all {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", cached.cache.counts());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let counts = || (cached.cache.counts().traced_bytes, cached.cache.counts().trace_used_bytes);
    assert_eq!(counts(), (all, 0));
    let file = cached.session.reader("disk");
    for _ in 0..2 {
        let (start, end) = (95 * BLOCK, 110 * BLOCK);
        assert!(cached.session.read(file, start as u64, end - start).expect("read") == disk[start..end]);
        assert_eq!(counts(), (all, 10 * BLOCK as u64));
    }
}
