//! Failures of the local disk: what is reported, and what is kept.

use std::fs;
use std::os::unix::fs::FileExt;

use tombolo_core::Error;
use tombolo_core::fs::{OpenFlags, SetAttr};

use crate::restart::{pattern, write_stable};
use crate::world::Origin;

#[test]
fn a_failed_append_leaves_no_zeros() {
    let origin = Origin::new();
    origin.direct.put("file", b"begun");
    let proxy = origin.proxy();
    let file = proxy.open("file", OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
    let (data, away) = (origin.path("write-back/data"), origin.path("write-back/away"));
    fs::rename(&data, &away).expect("rename");
    proxy.write(file, 0, b" and lost").expect_err("there is no place for it");
    fs::rename(&away, &data).expect("rename");
    proxy.write(file, 0, b" and ended").expect("append");
    assert_eq!(proxy.contents("file"), b"begun and ended");
}

#[test]
fn appends_at_a_time_are_one_after_the_other() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    let node = proxy.file("file").node;
    let session = &proxy.session;
    std::thread::scope(|scope| {
        for writer in 0..4 {
            scope.spawn(move || {
                let file = session.open(node, OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
                (0..50).for_each(|_| session.write_all(file, 0, &[b'a' + writer; 7]));
            });
        }
    });
    let bytes = proxy.contents("file");
    assert_eq!(bytes.len(), 4 * 50 * 7);
    assert!(bytes.chunks(7).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0] && *byte != 0)));
}

#[test]
fn unwritable_journal_fails_waiters_and_refuses_changes() {
    let mut origin = Origin::new();
    let proxy = origin.proxy();
    proxy.put("before", b"1");
    proxy.sync();
    let other = rusqlite::Connection::open(origin.path("write-back/journal.db")).expect("open");
    other.execute_batch("alter table nodes rename to away").expect("rename");
    proxy.put("meanwhile", b"2");
    proxy.fs.syncfs(&proxy.cx).wait().expect_err("it is not on the disk");
    assert!(matches!(proxy.try_put("refused", b"3"), Err(Error::Io { .. })));
    assert!(matches!(proxy.lookup("refused"), Err(Error::NotFound)));
    assert_eq!(proxy.get("meanwhile").expect("it goes on being read"), b"2");
    other.execute_batch("alter table away rename to nodes").expect("rename");
    drop(other);
    while proxy.fs.syncfs(&proxy.cx).wait().is_err() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let file = proxy.file("after");
    write_stable(&proxy, file, 0, &pattern(10, 1));
    let proxy = origin.restarted(proxy);
    assert_eq!(proxy.get("meanwhile").expect("it was never dropped"), b"2");
    assert_eq!(proxy.contents("after"), pattern(10, 1));
}

#[test]
fn a_torn_write_is_kept_and_told_of() {
    let mut origin = Origin::new();
    let proxy = origin.proxy();
    let file = proxy.file("file");
    write_stable(&proxy, file, 0, &pattern(300_000, 1));
    write_stable(&proxy, file, 10_000, &pattern(300_000, 2));
    write_stable(&proxy, file, 5, b"small");
    proxy.setattr(file.node, SetAttr { size: Some(305_000), ..SetAttr::default() }).expect("truncate");
    proxy.sync();
    let expected = proxy.contents("file");
    let proxy = origin.restarted(proxy);
    assert_eq!((proxy.contents("file"), proxy.write_back.status().torn), (expected.clone(), 0));
    drop(proxy);

    let mut files = fs::read_dir(origin.path("write-back/data")).expect("list");
    let path = files.next().expect("one").expect("a file").path();
    let data = fs::File::options().write(true).open(path).expect("open");
    data.write_all_at(b"torn", 100_000).expect("write");
    let proxy = origin.proxy();
    let mut torn = expected;
    torn[100_000..100_004].copy_from_slice(b"torn");
    assert_eq!((proxy.contents("file"), proxy.write_back.status().torn), (torn.clone(), 1));
    proxy.write_back.flush().expect("it arrives");
    assert_eq!(origin.direct.contents("file"), torn);
}
