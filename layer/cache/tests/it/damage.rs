//! A damaged cache directory.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tombolo_layer_cache::Contract;
use tombolo_layer_cache::store::Store;
use tombolo_test_support::{image, until};

use crate::world::{Origin, data_files, grow_old, pattern};

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("list").flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] })
        .collect()
}

#[test]
fn whatever_is_damaged_no_byte_is_wrong() {
    let mut random = fastrand::Rng::with_seed(11);
    let (origin, scratch) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(8, 150_000);
    grow_old();
    let good = scratch.path().join("good");
    {
        let cached = origin.cached(&good, Contract::Exclusive);
        (0..8).for_each(|n| drop(cached.contents(&format!("file-{n}"))));
    }
    for round in 0..60 {
        let dir = scratch.path().join(format!("round-{round}"));
        image(&good, &dir);
        let mut all = files(&dir);
        all.sort();
        all.retain(|path| !path.ends_with("lock") && !path.ends_with("cache"));
        let victim = &all[random.usize(..all.len())];
        let mut bytes = std::fs::read(victim).expect("read");
        match random.u8(..3) {
            0 => bytes.truncate(random.usize(..=bytes.len())),
            _ if bytes.is_empty() => {}
            1 => (0..20).for_each(|_| {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
            }),
            _ => {
                let start = random.usize(..bytes.len());
                let end = (start + 8192).min(bytes.len());
                random.fill(&mut bytes[start..end]);
            }
        }
        std::fs::write(victim, bytes).expect("write");
        let cached = origin.cached(&dir, Contract::Exclusive);
        for n in 0..8_u8 {
            let read = cached.get(&format!("file-{n}"));
            let shown = victim.strip_prefix(&dir).expect("within").display();
            assert!(read.expect("read") == pattern(150_000, n), "round {round}, {shown}: file-{n}");
        }
    }
}

/// Waits until this many data files are left, as they are removed in the background.
fn await_data_files(dir: &Path, count: usize) {
    until("the others are removed", || data_files(dir).len() == count);
}

#[test]
fn data_of_a_lost_index_are_freed() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(5, 5000);
    grow_old();
    {
        let cached = origin.cached(dir.path(), Contract::Exclusive);
        (0..5).for_each(|n| drop(cached.contents(&format!("file-{n}"))));
    }
    assert_eq!(data_files(dir.path()).len(), 5);
    for name in ["index.db", "index.db-wal"] {
        let _ = std::fs::write(dir.path().join(name), [7; 8192]);
    }
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    assert_eq!(cached.contents("file-1"), pattern(5000, 1));
    await_data_files(dir.path(), 1);
}

#[test]
fn a_version_that_was_replaced_leaves_nothing_behind() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    for round in 0..2_u8 {
        origin.direct.put("file", &pattern(50_000, round));
        grow_old();
        let cached = origin.cached(dir.path(), Contract::CloseToOpen);
        assert_eq!(cached.contents("file"), pattern(50_000, round));
        cached.cache.flush();
        await_data_files(dir.path(), 1);
        drop(cached);
        let blocks = rusqlite::Connection::open(dir.path().join("index.db")).expect("the index");
        let rows = blocks.query_row("select count(*) from blocks", [], |row| row.get::<_, i64>(0));
        assert_eq!(rows.expect("a count"), 1, "checksums of what is gone");
    }
}

#[test]
fn a_damaged_next_number_gives_none_twice() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let mut seen = HashSet::new();
    for (round, damaged) in ["", "2", "2 00000000\n", "\u{ff}"].into_iter().enumerate() {
        // Before the cache runs, as all changes are made through it then.
        let names = [0, 1, 2].map(|n| format!("file-{round}-{n}"));
        names.iter().for_each(|text| origin.direct.put(text, b""));
        {
            let cached = origin.cached(dir.path(), Contract::Exclusive);
            for text in &names {
                assert!(seen.insert(cached.lookup(text).expect("there").node), "{text}");
            }
        }
        std::fs::write(dir.path().join("next-id"), damaged).expect("write");
    }
}

/// Ensures that a temporary error does not discard the index.
#[test]
fn temporarily_unreadable_index_is_left_unchanged() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    drop(origin.cached(dir.path(), Contract::Exclusive));
    let index = dir.path().join("index.db");
    std::fs::remove_file(&index).expect("remove");
    std::fs::create_dir(&index).expect("mkdir");
    let error = Store::open_existing(dir.path()).expect_err("it is a directory");
    assert!(error.to_string().contains("index.db"), "{error}");
    assert!(index.is_dir() && !dir.path().join("index.db.damaged").exists());
}
