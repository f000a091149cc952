//! Sidecars: zero blocks are not fetched, and wrong entries are ignored.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use tombolo_core::fs::{Mode, SetAttr};
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::until;
use tombolo_wire_image::{Advice, ImageFile, NAME, Sidecar, Step, ZeroMap, digest};

use crate::world::{Origin, data_files, grow_old, pattern};

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
    let mut file = origin.entry("memory", zeros_of(bytes));
    change(&mut file);
    origin.say(vec![file], Vec::new(), &[]);
    origin
}

/// Returns the digests of the blocks that are not zero.
fn table_of(bytes: &[u8]) -> Vec<u8> {
    let data = bytes.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0));
    data.flat_map(digest).collect()
}

/// Returns options under which nothing is read ahead, and recent data are not fetched again at the next open.
fn without_read_ahead() -> Options {
    Options { contract: Contract::Exclusive, ahead_bytes_max: 0, ..Options::default() }
}

impl Origin {
    /// Returns a valid sidecar entry for a file, without a table.
    fn entry(&self, name: &str, zeros: ZeroMap) -> ImageFile {
        let attr = self.direct.attr(name);
        ImageFile {
            name: name.into(),
            size: attr.size,
            mtime: attr.mtime,
            block_bytes: BLOCK as u32,
            advice: Advice::OnDemand,
            zeros,
            table: None,
        }
    }

    /// Writes a sidecar, followed by tables. Returns its length.
    fn say(&self, files: Vec<ImageFile>, trace: Vec<Step>, tables: &[u8]) -> usize {
        let head = Sidecar { files, trace }.encode().expect("a sidecar");
        self.direct.put(NAME, &[&head[..], tables].concat());
        head.len() + tables.len()
    }

    /// Reads `memory` through a new cache, verifies it, and returns the number of bytes fetched.
    fn fetched(&self, options: Options) -> u64 {
        let dir = tempfile::tempdir().expect("a directory");
        let cached = self.cached_with(dir.path(), options);
        assert!(cached.contents("memory") == self.direct.contents("memory"));
        let of_sidecar = self.direct.attr(NAME).size;
        let counts = cached.cache.counts();
        let fetched = counts.fetched_bytes;
        let size = self.direct.attr("memory").size;
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
        assert!(cached.contents("memory") == bytes);
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
    let largest = data_files(cache).into_iter().max_by_key(|path| path.metadata().expect("there").len());
    File::options().read(true).write(true).open(largest.expect("a file")).expect("open")
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
    let mut said = damaged.direct.contents(NAME);
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
        // These changes leave the time of modification unchanged.
        origin.direct.setattr(NAME, *sidecar).expect("set");
        origin.direct.setattr("memory", *file).expect("set");
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
        assert!(cached.contents("memory") == bytes);
        let changed: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x55).collect();
        let writer = if contract == Contract::Exclusive { &cached.session } else { &origin.direct };
        writer.put("memory", &changed);
        assert!(cached.contents("memory") == changed, "{contract:?}");
    }
}

#[test]
fn whole_file_is_fetched_if_its_sidecar_says_so() {
    let bytes = memory(1000);
    let origin = origin_with(&bytes, |file| file.advice = Advice::Whole);
    let dir = tempfile::tempdir().expect("a directory");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let file = cached.reader("memory");
    assert!(cached.read(file, 0, BLOCK).expect("read") == bytes[..BLOCK]);
    let zeros = bytes.len() as u64 - DATA_BYTES;
    until("all of it is fetched", || cached.cache.counts().zero_bytes >= zeros);
}

#[test]
fn only_traced_parts_are_prefetched() {
    let (bytes, disk) = (memory(1000), pattern(4 << 20, 9));
    let origin = origin_with(&bytes, |_| {});
    origin.direct.put("disk", &disk);
    origin.direct.put("changed", &disk);
    let changed = ImageFile { mtime: Default::default(), ..origin.entry("changed", ZeroMap::default()) };
    let (of_disk, of_memory) =
        (origin.entry("disk", ZeroMap::default()), origin.entry("memory", zeros_of(&bytes)));
    let files = vec![changed, of_disk, of_memory];
    let step = |file, start, count| Step { file, start, count };
    let trace = vec![step(1, 100, 200), step(0, 0, 50), step(2, 5, 20), step(1, 600, 1), step(1, 90, 20)];
    let sidecar_bytes = origin.say(files, trace, &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let cached = origin.cached_with(dir.path(), without_read_ahead());
    let opened = cached.reader("memory");
    assert!(cached.read(opened, 0, 100).expect("read") == bytes[..100]);
    // Of `memory`, the block read and two of its step; of `disk`, 200 blocks, 1, and 10 more.
    let expected = ((3 + 211) * BLOCK + sidecar_bytes) as u64;
    until("the traced parts are fetched", || cached.cache.counts().fetched_bytes >= expected);
    let disk_file = cached.reader("disk");
    let reads = origin.asked("read");
    for at in [90 * BLOCK, 299 * BLOCK, 600 * BLOCK] {
        assert!(cached.read(disk_file, at as u64, BLOCK).expect("read") == disk[at..at + BLOCK]);
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
    let file = cached.reader("memory");
    for (offset, len) in [(8192, 4096), (0, 4096), (8192, 100), (409_000, 4096), (1 << 30, 10)] {
        cached.read(file, offset, len).expect("read");
    }
    assert_eq!(cached.contents("small"), b"content");
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
        let (mut files, mut tables) = (Vec::new(), Vec::new());
        for (name, bytes) in [("memory", &bytes), ("newer", &newer)] {
            origin.direct.put(name, bytes);
            let table = table_of(bytes);
            files.push(ImageFile { table: Some(digest(&table)), ..origin.entry(name, zeros_of(bytes)) });
            tables.extend(table);
        }
        origin.say(files, Vec::new(), &tables);
        origin.direct.setattr("newer", SetAttr { uid: Some(uid), ..SetAttr::default() }).expect("set");
        let dir = tempfile::tempdir().expect("a directory");
        let cached = origin.cached(dir.path(), Contract::Exclusive);
        assert!(cached.contents("memory") == bytes);
        if is_damaged {
            data_file(dir.path()).write_all_at(b"damage", 40 * BLOCK as u64).expect("write");
        }
        let before = cached.cache.counts().fetched_bytes;
        assert!(cached.contents("newer") == newer, "every byte is right");
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

#[test]
fn sidecar_with_a_wrong_digest_is_ignored_entirely() {
    let (before, disk) = (memory(1000), pattern(2 << 20, 33));
    let mut bytes = before.clone();
    bytes[7 * BLOCK..8 * BLOCK].fill(5);
    let origin = Origin::new();
    origin.direct.put("disk", &disk);
    origin.direct.put("memory", &bytes);
    // The entry of `memory` predates a write to a zero block, and has a wrong digest of another.
    let (disk_table, mut memory_table) = (table_of(&disk), table_of(&before));
    memory_table[50 * 32] ^= 1;
    let files = [("disk", &disk, &disk_table), ("memory", &before, &memory_table)];
    let files = files.map(|(name, bytes, table)| ImageFile {
        table: Some(digest(table)),
        ..origin.entry(name, zeros_of(bytes))
    });
    origin.say(files.into(), Vec::new(), &[disk_table, memory_table].concat());
    let dir = tempfile::tempdir().expect("a directory");
    let cached = origin.cached_with(dir.path(), without_read_ahead());
    assert!(cached.contents("disk") == disk);
    let file = cached.reader("memory");
    let read = |block: usize| cached.read(file, (block * BLOCK) as u64, BLOCK).expect("read");
    assert!(read(7) == [0; BLOCK], "this cannot be told from the truth");
    assert!(read(490) == bytes[490 * BLOCK..491 * BLOCK]);
    assert_eq!(cached.cache.counts().refused_bytes, 0);
    assert!(read(500) == bytes[500 * BLOCK..501 * BLOCK], "what the origin has is the file");
    assert_eq!(cached.cache.counts().refused_bytes, 2 * BLOCK as u64, "it was fetched once more");
    let zero_bytes = cached.cache.counts().zero_bytes;
    assert!(read(7) == bytes[7 * BLOCK..8 * BLOCK], "by now it can");
    assert!(cached.contents("memory") == bytes);
    let counts = cached.cache.counts();
    assert_eq!((counts.refused_bytes, counts.zero_bytes), (2 * BLOCK as u64, zero_bytes));
}

#[test]
fn trace_starts_at_first_file_and_counts_its_reads() {
    let disk = pattern(2 << 20, 9);
    let origin = Origin::new();
    origin.direct.put("disk", &disk);
    origin.direct.put("vm.toml", b"version = 1");
    let file = origin.entry("disk", zeros_of(&disk));
    // Names outside of the directory or of no file.
    let [above, absent] = ["..", "nothere"].map(|name| ImageFile { name: name.into(), ..file.clone() });
    let files = vec![above, file, absent];
    let step = |file, start, count| Step { file, start, count };
    let trace = vec![step(0, 0, 9), step(2, 0, 9), step(1, 100, 20), step(1, 10, 5)];
    origin.say(files, trace, &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let cached = origin.cached_with(dir.path(), without_read_ahead());
    cached.reader("vm.toml");
    let all = 25 * BLOCK as u64;
    until("the trace is fetched", || cached.cache.counts().fetched_bytes >= all);
    let counts = || (cached.cache.counts().traced_bytes, cached.cache.counts().trace_used_bytes);
    assert_eq!(counts(), (all, 0));
    let file = cached.reader("disk");
    for _ in 0..2 {
        let (start, end) = (95 * BLOCK, 110 * BLOCK);
        assert!(cached.read(file, start as u64, end - start).expect("read") == disk[start..end]);
        assert_eq!(counts(), (all, 10 * BLOCK as u64));
    }
}
