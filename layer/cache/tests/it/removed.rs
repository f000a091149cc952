//! Removed files: all state is dropped once nothing holds them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::fs::{Create, File, FileType, Mode, NewMode, NodeId, OpenFlags};
use tombolo_core::{Error, Result};
use tombolo_layer_cache::store::Store;
use tombolo_layer_cache::{CacheExport, Contract, Options};

use crate::world::{Origin, Session, attach, name, opened_store};

struct World {
    session: Session,
    _cache: CacheExport,
    store: Arc<Store>,
}

fn world(origin: &Origin, dir: &Path, contract: Contract) -> World {
    let store = opened_store(dir, Default::default());
    let options = Options { contract, ..Options::default() };
    let cache = tombolo_layer_cache::over(&*origin.export, store.clone(), options).expect("a cache");
    World { session: attach(&cache), _cache: cache, store }
}

impl World {
    /// Waits until at most this many objects remain, apart from the root.
    fn await_rows(&self, most: u64) {
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            let rows = self.store.info().objects - 1;
            if rows <= most {
                return;
            }
            assert!(Instant::now() < late, "{rows} objects are kept, of {most}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Session {
    fn make(&self, text: &str) -> File {
        let mode = NewMode::settled(Mode::new(0o644));
        let create = Create { mode, flags: OpenFlags::WRITE, ..Create::default() };
        let made = self.fs.create(&self.cx, NodeId::ROOT, name(text), &create).wait().expect("create");
        File { node: made.entry.node, open: made.open }
    }

    fn unlink(&self, text: &str) {
        self.fs.unlink(&self.cx, NodeId::ROOT, name(text)).wait().expect("unlink");
    }

    fn forget(&self, node: NodeId) {
        self.fs.forget(&self.cx, &[(node, 1)]);
    }

    fn attr(&self, node: NodeId) -> Result<u32> {
        self.fs.getattr(&self.cx, node, None).wait().map(|attr| attr.nlink)
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
        let size = || std::fs::metadata(dir.path().join("index.db")).expect("an index").len();
        let mut half_bytes = 0;
        for n in 0..count {
            let text = format!("file-{n}");
            let file = session.make(&text);
            let is_linked = n % 20 == 0;
            if is_linked {
                let link = format!("link-{n}");
                let made = session.fs.link(&session.cx, file.node, NodeId::ROOT, name(&link)).wait();
                session.forget(made.expect("link").entry.node);
                linked.push(link);
            }
            // Commit its state now and then before it is removed.
            if n % 500 == 0 {
                world.store.info();
            }
            session.unlink(&text);
            session.forget(file.node);
            match n % 20 == 10 {
                true => open.push(file),
                false => session.fs.release(&session.cx, file),
            }
            if n == count / 2 {
                world.await_rows((open.len() + linked.len()) as u64 * 21 / 20 + 1);
                half_bytes = size();
            }
        }
        let living = (open.len() + linked.len()) as u64;
        world.await_rows(living * 21 / 20);
        assert!(world.store.info().objects > living, "{contract:?}: what lives is kept");
        let grown = size() as f64 / half_bytes as f64;
        assert!(
            grown < 2.1,
            "{contract:?}: the index has become {grown} times as large, and what lives twice"
        );
        for file in open.drain(..) {
            assert_eq!(session.attr(file.node).expect("it is open"), 0);
            session.fs.release(&session.cx, file);
        }
        for link in linked.drain(..) {
            let node = session.lookup(&link).expect("it lives").node;
            session.unlink(&link);
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
        let (root, from, to) = (NodeId::ROOT, name("new"), name("file"));
        session.fs.rename(&session.cx, root, from, root, to, Default::default()).wait().expect("rename");
        assert_eq!(session.attr(held).expect("it is held"), 0, "{contract:?}");
        world.await_rows(2);
        session.forget(held);
        world.await_rows(1);
        assert!(matches!(session.attr(held), Err(Error::Stale)), "{contract:?}");
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
        by.fs.link(&by.cx, theirs, NodeId::ROOT, name("link")).wait().expect("link");
        session.forget(node);
        session.unlink("file");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(session.lookup("link").expect("there").node, node, "{contract:?}");
        assert_eq!(session.attr(node).expect("there"), 1);
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
    first.session.list();
    crate::world::grow_old();
    let open: Vec<_> = (0..10).map(|n| first.session.open(&format!("file-{n}")).expect("open")).collect();
    (0..10).for_each(|n| first.session.unlink(&format!("file-{n}")));
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
