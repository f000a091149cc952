//! Removed files: all state is dropped once nothing holds them.

use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::FileType;
use tombolo_layer_cache::Contract;
use tombolo_test_support::{image, until};

use crate::world::{Cached, Origin, grow_old};

impl Cached {
    /// Waits until at most this many objects remain, apart from the root.
    fn await_rows(&self, most: u64) {
        until("what was removed is dropped", || self.store.info().objects - 1 <= most);
    }
}

#[test]
fn of_what_was_removed_nothing_is_kept() {
    let count = if std::env::var_os("TOMBOLO_LONG").is_some() { 100_000 } else { 3000 };
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let cached = origin.cached(dir.path(), contract);
        let (mut open, mut linked) = (Vec::new(), Vec::new());
        // The file itself is behind: it gets its pages at checkpoints of the log.
        let index = rusqlite::Connection::open(dir.path().join("index.db")).expect("the index");
        let pages = || index.query_row("pragma page_count", [], |row| row.get::<_, u32>(0)).expect("a count");
        let mut half = 0;
        for n in 0..count {
            let text = format!("file-{n}");
            let file = cached.file(&text);
            let is_linked = n % 20 == 0;
            if is_linked {
                let link = format!("link-{n}");
                let made = cached.link(file.node, &link);
                cached.forget(made.expect("link").entry.node);
                linked.push(link);
            }
            // Commit its state now and then before it is removed.
            if n % 500 == 0 {
                cached.store.info();
            }
            cached.unlink(&text).expect("unlink");
            cached.forget(file.node);
            match n % 20 == 10 {
                true => open.push(file),
                false => cached.release(file),
            }
            if n == count / 2 {
                cached.await_rows((open.len() + linked.len()) as u64 * 21 / 20 + 1);
                half = pages();
            }
        }
        let living = (open.len() + linked.len()) as u64;
        cached.await_rows(living * 21 / 20);
        assert!(cached.store.info().objects > living, "{contract:?}: what lives is kept");
        let grown = f64::from(pages()) / f64::from(half);
        assert!(
            grown < 2.1,
            "{contract:?}: the index has become {grown} times as large, and what lives twice"
        );
        for file in open.drain(..) {
            assert_eq!(cached.attr(file.node).nlink, 0);
            cached.release(file);
        }
        for link in linked.drain(..) {
            let node = cached.lookup(&link).expect("it lives").node;
            cached.unlink(&link).expect("unlink");
            cached.forget(node);
        }
        cached.await_rows(0);
    }
}

#[test]
fn removed_file_is_retained_while_referenced() {
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let cached = origin.cached(dir.path(), contract);
        cached.put("file", b"text");
        cached.put("new", b"other");
        let node = cached.lookup("file").expect("there").node;
        cached.forget(node);
        let other = cached.lookup("new").expect("there").node;
        [node, other].into_iter().for_each(|node| cached.forget(node));
        let held = cached.lookup("file").expect("there").node;
        cached.rename("new", "file", Default::default()).expect("rename");
        assert_eq!(cached.attr(held).nlink, 0, "{contract:?}");
        cached.await_rows(2);
        cached.forget(held);
        cached.await_rows(1);
        assert!(matches!(cached.lookup(held), Err(Error::Stale)), "{contract:?}");
        assert_eq!(cached.lookup("file").expect("renamed").node, other);
    }
}

#[test]
fn a_file_that_has_another_name_keeps_its_number() {
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let cached = origin.cached(dir.path(), contract);
        cached.put("file", b"text");
        let node = cached.lookup("file").expect("there").node;
        [node, node].into_iter().for_each(|node| cached.forget(node));
        // Through the cache if all changes are made there, otherwise at the origin.
        let (by, theirs) = match contract {
            Contract::Exclusive => (&*cached, node),
            _ => (&origin.direct, origin.direct.lookup("file").expect("there").node),
        };
        by.link(theirs, "link").expect("link");
        cached.forget(node);
        cached.unlink("file").expect("unlink");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(cached.lookup("link").expect("there").node, node, "{contract:?}");
        assert_eq!(cached.attr(node).nlink, 1);
    }
}

#[test]
fn remains_of_removed_files_are_dropped_at_restart() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let first = origin.cached(dir.path(), Contract::Exclusive);
    first.mkdir("dir").expect("made");
    (0..20).for_each(|n| first.put(&format!("file-{n}"), b"text"));
    // Cache all names, old enough to be reused in another life.
    first.names("");
    grow_old();
    let open: Vec<_> = (0..10).map(|n| first.reader(&format!("file-{n}"))).collect();
    for n in 0..10 {
        first.unlink(&format!("file-{n}")).expect("unlink");
    }
    grow_old();
    assert_eq!((open.len(), first.store.info().objects), (10, 22));
    // A copy as a kill would leave it.
    let killed = tempfile::tempdir().expect("a directory");
    image(dir.path(), killed.path());
    let second = origin.cached(killed.path(), Contract::Exclusive);
    second.await_rows(11);
    assert_eq!(second.store.info().objects, 12);
    assert_eq!(second.lookup("dir").expect("there").attr.file_type, FileType::Directory);
    assert_eq!(second.contents("file-10"), b"text");
}
