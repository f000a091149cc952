//! Reads that bypass the cache.

use std::path::{Path, PathBuf};

use tombolo_core::Error;
use tombolo_core::fs::{BackingFile, File, OpenFlags};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::Session;

use crate::world::{Cached, Origin, data_files, grow_old, options, pattern};

const LEN: usize = 200_000;

fn read_only(origin: &Origin, dir: &Path) -> Cached {
    let options = Options { read_only: true, ..options(Contract::Exclusive) };
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    origin.cached_in(dir, options, store)
}

fn backed(session: &Session, file: File) -> Option<BackingFile> {
    session.fs.backing_files().expect("a read-only tree has them").backing_file(file)
}

fn bytes_of(backing: &BackingFile) -> Vec<u8> {
    let file = std::fs::File::from(backing.descriptor.try_clone().expect("a descriptor"));
    let mut bytes = vec![0; LEN + 1];
    let count = std::os::unix::fs::FileExt::read_at(&file, &mut bytes, 0).expect("read");
    bytes.truncate(count);
    bytes
}

#[test]
fn only_complete_verified_files_get_passthrough() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let large = 4 << 20;
    origin.direct.put("file", &pattern(LEN, 1));
    origin.direct.put("large", &pattern(large, 2));
    origin.direct.put("empty", b"");
    grow_old();
    {
        let cached = read_only(&origin, dir.path());
        let file = cached.reader("file");
        assert!(backed(&cached, file).is_none(), "nothing is here");
        cached.contents("file");
        let backing = backed(&cached, file).expect("all is here");
        assert_eq!(bytes_of(&backing), pattern(LEN, 1));
        let partly = cached.reader("large");
        cached.read(partly, 0, 4096).expect("read");
        assert!(backed(&cached, partly).is_none(), "most is not here");
        let empty = cached.reader("empty");
        assert!(backed(&cached, empty).is_none(), "there is nothing to read");
    }
    // An earlier life has cached the whole file; one block is damaged.
    let is_file = |path: &PathBuf| path.metadata().expect("there").len() == LEN as u64;
    let path = data_files(dir.path()).into_iter().find(is_file).expect("the data");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[LEN / 2] ^= 1;
    std::fs::write(&path, bytes).expect("write");
    let cached = read_only(&origin, dir.path());
    let file = cached.reader("file");
    cached.read(file, 0, 4096).expect("read");
    assert!(backed(&cached, file).is_none(), "most was not looked at since");
    assert_eq!(cached.contents("file"), pattern(LEN, 1));
    assert_eq!(bytes_of(&backed(&cached, file).expect("all was looked at")), pattern(LEN, 1));
}

#[test]
fn writable_or_close_to_open_caches_have_no_passthrough() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let modes =
        [Contract::Immutable, Contract::Exclusive, Contract::CloseToOpen].map(|c| [(c, true), (c, false)]);
    for (n, (contract, read_only)) in modes.into_iter().flatten().enumerate() {
        let options = Options { contract, read_only, ..Options::default() };
        let cached = origin.cached_with(&dir.path().join(n.to_string()), options);
        let may = read_only && contract != Contract::CloseToOpen;
        assert_eq!(cached.fs.backing_files().is_some(), may, "{options:?}");
    }
}

#[test]
fn passthrough_file_is_not_evicted() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(40, LEN);
    let cached = read_only(&origin, dir.path());
    let file = cached.reader("file-0");
    cached.contents("file-0");
    let backing = backed(&cached, file).expect("all is here");
    for _ in 0..3 {
        for n in 1..40_u8 {
            // Twice, so that it counts as used again, like the locked one.
            for _ in 0..2 {
                assert!(cached.contents(&format!("file-{n}")) == pattern(LEN, n), "file {n}");
            }
        }
    }
    assert_eq!(bytes_of(&backing), pattern(LEN, 0));
    let read = origin.asked("read");
    assert_eq!(cached.contents("file-0"), pattern(LEN, 0));
    assert_eq!(origin.asked("read"), read, "it is still here");
}

#[test]
fn passthrough_leaves_capacity_for_others() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(12, LEN);
    let cached = read_only(&origin, dir.path());
    let mut holds = Vec::new();
    for n in 0..12_u8 {
        let text = format!("file-{n}");
        assert!(cached.contents(&text) == pattern(LEN, n), "file {n}");
        holds.extend(backed(&cached, cached.reader(&text)));
    }
    assert_eq!(holds.len(), 3, "of 200 kB each, in three quarters of 1 MiB");
}

#[test]
fn new_version_of_passthrough_file_is_another_node() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(LEN, 1));
    let cached = read_only(&origin, dir.path());
    cached.contents("file");
    let file = cached.reader("file");
    let backing = backed(&cached, file).expect("all is here");
    cached.cache.flush();
    // A change by another client, which the contract excludes.
    origin.direct.put("file", &pattern(LEN, 2));
    assert_eq!(cached.contents("file"), pattern(LEN, 1), "nothing is asked again");
    // A new user's permission is queried, and with it the attributes.
    let other = cached.by(1000);
    for _ in 0..2 {
        let opened = other.fs.open(&other.cx, file.node, OpenFlags::READ).wait();
        assert!(matches!(opened, Err(Error::Stale)), "{opened:?}");
    }
    assert_ne!(other.reader("file").node, file.node);
    assert_eq!(other.contents("file"), pattern(LEN, 2));
    assert_eq!(bytes_of(&backing), pattern(LEN, 1));
    cached.release(file);
    assert_eq!(bytes_of(&backing), pattern(LEN, 1));
    drop(backing);
    assert_eq!(cached.contents("file"), pattern(LEN, 2));
}
