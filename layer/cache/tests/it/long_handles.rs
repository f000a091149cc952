//! An origin with handles too long for those of the cache's clients, which then work only with their row.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tombolo_core::fs::{Entry, FileSystem, NodeId, PersistentHandle, PersistentHandles};
use tombolo_core::{Answer, Ctx, Error, forward};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::wrapped;

use crate::world::Origin;

/// A session of an origin that pads its handles.
struct Padded(Arc<dyn FileSystem>);

impl Padded {
    fn handles(&self) -> &dyn PersistentHandles {
        self.0.persistent_handles().expect("handles")
    }
}

impl FileSystem for Padded {
    forward!(to self.0; lookup getattr open setattr access readlink create create_unnamed mkdir symlink mknod link
        unlink rmdir rename flush fsync read write readdir statfs syncfs forget release profile);
    forward!(own self; persistent_handles);
}

impl PersistentHandles for Padded {
    forward!(to self.0; volume parent);

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        self.handles().handle_of(cx, node).map(|handle| {
            let padded = [&[0; 40][..], &handle.bytes].concat();
            PersistentHandle { bytes: padded[..].into(), ..handle }
        })
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let Some(bytes) = handle.bytes.get(40..) else { return Answer::err(Error::Stale) };
        self.handles().resolve(cx, &PersistentHandle { kind: handle.kind, bytes: bytes.into() })
    }
}

fn padded() -> Origin {
    let mut origin = Origin::new();
    origin.export = wrapped(origin.export, Padded);
    origin
}

#[test]
fn row_of_a_short_handle_survives_a_full_index() {
    let (origin, dir) = (padded(), tempfile::tempdir().expect("a directory"));
    ["a", "b"].iter().for_each(|name| origin.direct.put(name, b"bytes"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    let node = cached.lookup("a").expect("there").node;
    let handle = cached.handle_of(node).expect("a handle");
    cached.cache.flush();
    drop(cached);
    for _ in 0..2 {
        let full = StoreOptions { capacity_bytes: 4096, ..StoreOptions::default() };
        let cached = origin.cached_in(dir.path(), Options::default(), full);
        assert_eq!(cached.resolve(&handle).expect("found again").node, node);
    }
}

#[test]
fn first_short_handle_delays_no_other_operation() {
    let (origin, dir) = (padded(), tempfile::tempdir().expect("a directory"));
    ["a", "b"].iter().for_each(|name| origin.direct.put(name, b"bytes"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    let [a, b] = ["a", "b"].map(|name| cached.lookup(name).expect("there").node);
    cached.cache.flush();
    drop(cached);
    // Neither file is in memory now.
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    cached.cache.flush();
    let index = rusqlite::Connection::open(dir.path().join("index.db")).expect("the index");
    index.execute_batch("begin immediate").expect("the lock for writing");
    std::thread::scope(|scope| {
        scope.spawn(|| cached.handle_of(a).expect("a handle"));
        std::thread::sleep(Duration::from_millis(300));
        let (sender, answered) = mpsc::channel();
        let other = cached.session.clone();
        std::thread::spawn(move || drop(sender.send(other.fs.getattr(&other.cx, b, None).wait())));
        let answered = answered.recv_timeout(Duration::from_secs(5));
        index.execute_batch("rollback").expect("rolled back");
        answered.expect("it waits for the index to be written").expect("attributes");
    });
    let kept: i64 = index.query_row("pragma user_version", [], |row| row.get(0)).expect("a number");
    assert_eq!(kept, 1, "it is not recorded that rows stay");
}
