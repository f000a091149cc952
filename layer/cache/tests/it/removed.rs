//! Removed files: all state is dropped once nothing holds them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::{FileType, NewMode, NodeId};
use tombolo_layer_cache::store::Store;
use tombolo_layer_cache::{CacheExport, Contract, Options};
use tombolo_test_support::{Session, name, until};

use crate::world::{Origin, opened_store};

struct World {
    session: Session,
    _cache: CacheExport,
    store: Arc<Store>,
}

fn world(origin: &Origin, dir: &Path, contract: Contract) -> World {
    let store = opened_store(dir, Default::default());
    let options = Options { contract, ..Options::default() };
    let cache = tombolo_layer_cache::over(&*origin.export, store.clone(), options).expect("a cache");
    World { session: Session::attach(&cache), _cache: cache, store }
}

impl World {
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
        let world = world(&origin, dir.path(), contract);
        let session = &world.session;
        let (mut open, mut linked) = (Vec::new(), Vec::new());
        // The file itself is behind: it gets its pages at checkpoints of the log.
        let index = rusqlite::Connection::open(dir.path().join("index.db")).expect("the index");
        let pages = || index.query_row("pragma page_count", [], |row| row.get::<_, u32>(0)).expect("a count");
        let mut half = 0;
        for n in 0..count {
            let text = format!("file-{n}");
            let file = session.file(&text);
            let is_linked = n % 20 == 0;
            if is_linked {
                let link = format!("link-{n}");
                let made = session.link(file.node, &link);
                session.forget(made.expect("link").entry.node);
                linked.push(link);
            }
            // Commit its state now and then before it is removed.
            if n % 500 == 0 {
                world.store.info();
            }
            session.unlink(&text).expect("unlink");
            session.forget(file.node);
            match n % 20 == 10 {
                true => open.push(file),
                false => session.release(file),
            }
            if n == count / 2 {
                world.await_rows((open.len() + linked.len()) as u64 * 21 / 20 + 1);
                half = pages();
            }
        }
        let living = (open.len() + linked.len()) as u64;
        world.await_rows(living * 21 / 20);
        assert!(world.store.info().objects > living, "{contract:?}: what lives is kept");
        let grown = f64::from(pages()) / f64::from(half);
        assert!(
            grown < 2.1,
            "{contract:?}: the index has become {grown} times as large, and what lives twice"
        );
        for file in open.drain(..) {
            assert_eq!(session.attr(file.node).nlink, 0);
            session.release(file);
        }
        for link in linked.drain(..) {
            let node = session.lookup(&link).expect("it lives").node;
            session.unlink(&link).expect("unlink");
            session.forget(node);
        }
        world.await_rows(0);
    }
}

#[test]
fn removed_file_is_retained_while_referenced() {
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let world = world(&origin, dir.path(), contract);
        let session = &world.session;
        session.put("file", b"text");
        session.put("new", b"other");
        let node = session.lookup("file").expect("there").node;
        session.forget(node);
        let other = session.lookup("new").expect("there").node;
        [node, other].into_iter().for_each(|node| session.forget(node));
        let held = session.lookup("file").expect("there").node;
        session.rename("new", "file", Default::default()).expect("rename");
        assert_eq!(session.attr(held).nlink, 0, "{contract:?}");
        world.await_rows(2);
        session.forget(held);
        world.await_rows(1);
        assert!(matches!(session.lookup(held), Err(Error::Stale)), "{contract:?}");
        assert_eq!(session.lookup("file").expect("renamed").node, other);
    }
}

#[test]
fn a_file_that_has_another_name_keeps_its_number() {
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let world = world(&origin, dir.path(), contract);
        let session = &world.session;
        session.put("file", b"text");
        let node = session.lookup("file").expect("there").node;
        [node, node].into_iter().for_each(|node| session.forget(node));
        // Through the cache if all changes are made there, otherwise at the origin.
        let (by, theirs) = match contract {
            Contract::Exclusive => (session, node),
            _ => (&origin.direct, origin.direct.lookup("file").expect("there").node),
        };
        by.link(theirs, "link").expect("link");
        session.forget(node);
        session.unlink("file").expect("unlink");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(session.lookup("link").expect("there").node, node, "{contract:?}");
        assert_eq!(session.attr(node).nlink, 1);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("a copy")),
        }
    }
}

#[test]
fn remains_of_removed_files_are_dropped_at_restart() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let first = world(&origin, dir.path(), Contract::Exclusive);
    first
        .session
        .fs
        .mkdir(&first.session.cx, NodeId::ROOT, name("dir"), NewMode::default())
        .wait()
        .expect("made");
    (0..20).for_each(|n| first.session.put(&format!("file-{n}"), b"text"));
    // Cache all names, old enough to be reused in another life.
    first.session.names("");
    crate::world::grow_old();
    let open: Vec<_> = (0..10).map(|n| first.session.reader(&format!("file-{n}"))).collect();
    for n in 0..10 {
        first.session.unlink(&format!("file-{n}")).expect("unlink");
    }
    crate::world::grow_old();
    assert_eq!((open.len(), first.store.info().objects), (10, 22));
    // A copy as a kill would leave it.
    let killed = tempfile::tempdir().expect("a directory");
    copy(dir.path(), killed.path());
    let second = world(&origin, killed.path(), Contract::Exclusive);
    second.await_rows(11);
    assert_eq!(second.store.info().objects, 12);
    let there = second.session.lookup("dir").expect("there");
    assert_eq!(there.attr.file_type, FileType::Directory);
    assert_eq!(second.session.get("file-10").expect("there"), b"text");
}
