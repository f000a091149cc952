//! State after a sudden end. Random sequences are in `tests/conformance/tests/it/model/restarts.rs`.

use tombolo_core::fs::{File, RenameFlags, Write};
use tombolo_core::{Error, KeyProperties, RequestKey, Stability};
use tombolo_test_support::Session;

use crate::world::Origin;

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at / 4096) as u8 ^ seed).collect()
}

pub fn write_stable(session: &Session, file: File, offset: u64, bytes: &[u8]) {
    let how = Write { offset, stability: Stability::FileSync, ..Write::default() };
    session.write_as(file, &how, bytes).expect("write");
}

#[test]
fn a_stable_write_is_there_after_a_kill() {
    let mut origin = Origin::new();
    // Stored in the journal itself, and in a file.
    for (path, len) in [("small", 100), ("large", 300_000)] {
        let proxy = origin.proxy();
        let file = proxy.file(path);
        write_stable(&proxy.session, file, 0, &pattern(len, 1));
        origin.kill(proxy);
        assert_eq!(origin.proxy().session.contents(path), pattern(len, 1));
    }
}

#[test]
fn retryable_change_survives_a_kill() {
    let mut origin = Origin::new();
    let mut proxy = origin.proxy();
    proxy.session.cx.key = Some(RequestKey { client: 1.into(), key: 1, properties: KeyProperties::empty() });
    let file = proxy.file("file");
    proxy.rename("file", "moved", RenameFlags::empty()).expect("rename");
    let proxy = origin.restarted(proxy);
    assert_eq!(proxy.lookup("moved").expect("it is there").node, file.node);
    assert!(matches!(proxy.lookup("file"), Err(Error::NotFound)));
}

#[test]
fn handles_mean_the_same_after_a_kill() {
    let mut origin = Origin::new();
    let proxy = origin.proxy();
    let file = proxy.file("file");
    let handle = proxy.handle_of(file.node).expect("a handle");
    proxy.sync();
    let proxy = origin.restarted(proxy);
    assert_eq!(proxy.resolve(&handle).expect("it is there").node, file.node);
    assert_ne!(proxy.file("other").node, file.node);
}

#[test]
fn unnamed_open_file_is_gone_after_a_kill() {
    let mut origin = Origin::new();
    let proxy = origin.proxy();
    let file = proxy.file("file");
    write_stable(&proxy.session, file, 0, &pattern(300_000, 1));
    proxy.unlink("file").expect("unlink");
    assert_eq!(proxy.read_all(file, 0, usize::MAX), pattern(300_000, 1));
    proxy.sync();
    let proxy = origin.restarted(proxy);
    assert!(matches!(proxy.truncate(file.node, 0), Err(Error::Stale)));
    proxy.sync();
    assert_eq!((origin.data_files(), proxy.write_back.status().dirty_bytes), (0, 0));
}

#[test]
fn written_origin_file_is_found_after_a_kill() {
    let mut origin = Origin::new();
    // Unknown to the cache before the write.
    origin.direct.put("far", &pattern(100_000, 3));
    let proxy = origin.proxy();
    let file = proxy.writer("far");
    write_stable(&proxy.session, file, 50_000, b"near");
    origin.kill(proxy);
    let mut expected = pattern(100_000, 3);
    expected[50_000..50_004].copy_from_slice(b"near");
    let proxy = origin.proxy();
    assert_eq!(proxy.lookup("far").expect("it is there").node, file.node);
    assert_eq!(proxy.contents("far"), expected);
}

#[test]
fn unsent_changes_arrive_despite_a_lost_cache_index() {
    let mut origin = Origin::new();
    let direct = &origin.direct;
    direct.mkdir("dir").expect("mkdir");
    for path in ["dir/written", "dir/removed", "dir/moved", "replaced"] {
        direct.put(path, &pattern(100_000, 3));
    }
    let proxy = origin.proxy();
    let file = proxy.writer("dir/written");
    proxy.write(file, 50_000, b"near").expect("write");
    proxy.put("dir/new", b"new");
    proxy.unlink("dir/removed").expect("unlink");
    proxy.rename("dir/moved", "moved", RenameFlags::empty()).expect("rename");
    proxy.put("ours", b"ours");
    proxy.rename("ours", "replaced", RenameFlags::empty()).expect("rename");
    proxy.sync();
    origin.kill(proxy);
    for name in ["index.db", "index.db-wal"] {
        std::fs::write(origin.path("cache").join(name), [7; 8192]).expect("damage");
    }
    let proxy = origin.proxy();
    assert_eq!(proxy.lookup("dir/written").expect("it is there").node, file.node);
    assert_eq!(proxy.write_back.flush().expect("a flush").conflicts, 0);
    let mut written = pattern(100_000, 3);
    written[50_000..50_004].copy_from_slice(b"near");
    for session in [&origin.direct, &proxy.session] {
        assert_eq!(session.names(""), ["dir", "moved", "replaced"]);
        assert_eq!(session.names("dir"), ["new", "written"]);
        assert_eq!(session.contents("dir/written"), written);
        assert_eq!(session.contents("dir/new"), b"new");
        assert_eq!(session.contents("moved"), pattern(100_000, 3));
        assert_eq!(session.contents("replaced"), b"ours");
    }
}
