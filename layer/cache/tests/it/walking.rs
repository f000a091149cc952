//! Walks over a far tree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_core::fs::{Cookie, DirBudget, DirPage, File, FileType, Mode, NewMode, NodeId, OpenFlags};
use tombolo_layer_cache::{Contract, Options};

use crate::world::{Origin, Session, name};

const WIDTH: usize = 4;

/// Directories in directories.
fn make(session: &Session, parent: NodeId, depth: usize) {
    for n in 0..WIDTH {
        let (text, mode) = (format!("dir-{n}"), NewMode::settled(Mode::new(0o755)));
        let made = session.fs.mkdir(&session.cx, parent, name(&text), mode).wait().expect("mkdir");
        if depth > 1 {
            make(session, made.entry.node, depth - 1);
        }
    }
}

/// Lists all directories below one, as find(1) does. How many there are; `waited` counts those that were not here.
fn walk(session: &Session, node: NodeId, waited: &AtomicU64) -> usize {
    let opened =
        session.fs.open(&session.cx, node, OpenFlags::READ | OpenFlags::DIRECTORY).wait().expect("open");
    let file = File { node, open: opened.open };
    let budget = DirBudget { size_bytes: 1 << 16, entry_bytes: 24, align: 8, plus: true };
    let answer = session.fs.readdir(&session.cx, file, Cookie::START, DirPage::new(budget));
    waited.fetch_add(u64::from(!answer.is_done()), Ordering::Relaxed);
    let page = answer.wait().expect("list");
    assert!(page.is_end());
    session.fs.release(&session.cx, file);
    let names: Vec<_> = page.iter().filter(|entry| entry.file_type == Some(FileType::Directory)).collect();
    let names = names.iter().filter(|entry| !matches!(entry.name, b"." | b".."));
    let names = names.map(|entry| String::from_utf8(entry.name.to_vec()).expect("a name"));
    names.fold(1, |all, text| {
        let below = session.fs.lookup(&session.cx, node, name(&text)).wait().expect("there");
        all + walk(session, below.node, waited)
    })
}

#[test]
fn a_walk_finds_most_directories_listed() {
    let (origin, dir) = (Origin::far(Duration::from_millis(10)), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 3);
    let all = 1 + 4 + 16 + 64;
    let mut waits = Vec::new();
    for walk_ahead in [true, false] {
        let options = Options { contract: Contract::Exclusive, walk_ahead, ..Options::default() };
        let cached =
            origin.cached_with(&dir.path().join(walk_ahead.to_string()), options, Default::default());
        let (before, waited) = (origin.asked("readdir"), AtomicU64::new(0));
        assert_eq!(walk(&cached.session, NodeId::ROOT, &waited), all);
        let listed = origin.asked("readdir") - before;
        assert!(listed <= all as u64 + 16, "{listed} listings of {all} directories");
        waits.push(waited.into_inner());
    }
    assert_eq!(waits[1], all as u64);
    assert!(waits[0] < waits[1] / 2, "{waits:?}");
}

#[test]
fn a_look_into_one_directory_lists_no_other() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 2);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let session = &cached.session;
    let below = session.lookup("dir-1").expect("there").node;
    for node in [below, below] {
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let opened = session.fs.open(&session.cx, node, flags).wait().expect("open");
        let file = File { node, open: opened.open };
        let budget = DirBudget { size_bytes: 1 << 16, entry_bytes: 24, align: 8, plus: true };
        session.fs.readdir(&session.cx, file, Cookie::START, DirPage::new(budget)).wait().expect("list");
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(origin.asked("readdir"), 1);
}
