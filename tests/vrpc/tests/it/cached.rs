//! Sessions with a cache over a link: stale data are never used, across lost links and servers.

use std::path::Path;
use std::sync::Arc;

use libtombolo::{CacheOptions, CachedTree, Last, Node, Tree, User, block_on};
use tombolo_core::fs::{Mode, SetAttr};
use tombolo_core::{Error, Identity};
use tombolo_test_support::name;
use tombolo_vrpc_tests::site::{Plan, Site};

use crate::local;

const FILE: &[u8] = b"a/b/c/d/file";

fn user() -> User {
    User { identity: Identity::ROOT, umask: Mode::new(0o022), realm: "test".into() }
}

struct Served {
    dir: tempfile::TempDir,
    site: Arc<Site>,
    cached: CachedTree,
}

/// Serves a directory over a link; returns `None` and prints the reason if the host cannot watch directories.
fn served() -> Option<Served> {
    let dir = tempfile::tempdir_in(Path::new("/dev/shm")).expect("a scratch directory");
    std::fs::create_dir_all(dir.path().join("a/b/c/d")).expect("made");
    std::fs::write(dir.path().join("a/b/c/d/file"), "first").expect("written");
    let site = Site::serving(local(&dir), Plan::default());
    let tree = Tree::attach(&site.export(), user()).expect("a session");
    let served = Served { dir, site, cached: CachedTree::new(tree, CacheOptions::default()) };
    served.cached.stat(FILE).wait().expect("the file");
    if served.cached.is_empty() {
        tombolo_skip::skip!("this user cannot be told of what the host changes");
    }
    Some(served)
}

impl Served {
    fn warm(&self) {
        std::thread::sleep(std::time::Duration::from_millis(20));
        for _ in 0..3 {
            self.cached.stat(FILE).wait().expect("the file");
            self.cached.read(FILE).wait().expect("the file");
            drop(self.cached.stat(b"a/b/absent").wait());
        }
        assert!(self.cached.stat(FILE).is_done() && self.cached.read(FILE).is_done());
        assert!(self.cached.stat(b"a/b/absent").is_done());
    }

    /// Looks the path up in another session.
    fn found(&self, path: &[u8]) -> Node {
        let other = Tree::attach(&self.site.export(), user()).expect("a session");
        block_on(other.find(path, Last::Keep)).expect("found")
    }

    fn size(&self) -> u64 {
        let size = self.cached.stat(FILE).wait().expect("the file").size;
        let read = self.cached.read(FILE).wait().expect("the file");
        assert_eq!(read.map(|bytes| bytes.len() as u64), Some(size));
        size
    }
}

#[test]
fn cached_session_sees_foreign_change_on_next_lookup() {
    let Some(served) = served() else { return };
    for size in [7, 3, 11] {
        served.warm();
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        served.found(FILE).set_attr(&set).wait().expect("cut");
        assert_eq!(served.size(), size);
    }
    served.warm();
    let (a, b) = (served.found(b"a"), served.found(b"a/b"));
    b.make_dir(name("absent"), Mode::new(0o755)).wait().expect("made");
    served.cached.stat(b"a/b/absent").wait().expect("it is there now");
    a.rename(name("b"), &a, name("moved"), Default::default()).wait().expect("moved");
    assert!(matches!(served.cached.stat(FILE).wait(), Err(Error::NotFound)));
}

#[test]
fn cached_data_are_revalidated_after_link_or_server_loss() {
    let Some(served) = served() else { return };
    let path = served.dir.path().join("a/b/c/d/file");
    for round in 0..6 {
        served.warm();
        match round % 2 {
            0 => {
                served.site.kill();
                std::fs::write(&path, vec![b'x'; 10 + round]).expect("written while it is not counted");
                served.site.start(local(&served.dir));
            }
            _ => {
                served.site.cut();
                let set = SetAttr { size: Some(10 + round as u64), ..SetAttr::default() };
                served.found(FILE).set_attr(&set).wait().expect("cut by a session of another link");
            }
        }
        assert_eq!(served.size(), 10 + round as u64, "round {round}");
    }
}
