//! Test fixture: a server of one tree and a client of it.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_back_memory::Memory;
use tombolo_core::fs::Export;
use tombolo_wire_nfs3::args::{CreateHow, StableHow};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, Fattr3, FileHandleBuf, WccAttr, WccData};

use crate::client::{Caller, Expect, ListedEntry, Nfs, mode};
use crate::test_server::{PATH, Plan, TestServer, no_squash};

/// A served tree, with the superuser as its client.
pub struct Fixture {
    /// The server.
    pub server: TestServer,
    /// The superuser.
    pub nfs: Nfs,
    /// The root of the export.
    pub root: FileHandleBuf,
    tree: Option<tempfile::TempDir>,
}

/// Creates a directory in memory that is removed at the end of the test.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a scratch directory")
}

/// Opens a host directory as an export.
pub fn local_dir(path: &Path) -> Arc<dyn Export> {
    Arc::new(LocalDir::open(path, Options::default()).expect("the export"))
}

/// Runs a test over the reference model and over a directory of the host.
pub fn on_each(test: impl Fn(&Fixture)) {
    test(&Fixture::in_memory());
    test(&Fixture::on_host());
}

/// Makes a test of this name, which the `on_each` in scope runs over each tree.
#[macro_export]
macro_rules! on_each {
    ($name:ident, $test:expr) => {
        #[test]
        fn $name() {
            on_each($test);
        }
    };
}

pub use crate::on_each;

impl Fixture {
    /// Starts a server over the reference model.
    pub fn in_memory() -> Self {
        Self::new(Plan::over(Arc::new(Memory::default())), None)
    }

    /// Starts a server over two trees in memory, `/export` and `/other`.
    pub fn of_two() -> Self {
        let tree = || Arc::new(Memory::default());
        Self::new(Plan::over(tree()).and("/other", tree(), no_squash()), None)
    }

    /// Starts a server over a host directory.
    pub fn on_host() -> Self {
        let tree = scratch();
        Self::new(Plan::over(local_dir(tree.path())), Some(tree))
    }

    /// Starts a server as planned; its first export must be `/export`.
    pub fn new(plan: Plan, tree: Option<tempfile::TempDir>) -> Self {
        let server = plan.start();
        let nfs = server.nfs();
        let root = nfs.root(PATH);
        Self { server, nfs, root, tree }
    }

    /// Returns the path of `name` on the host if the tree is a host directory.
    pub fn on_disk(&self, name: &str) -> Option<PathBuf> {
        self.tree.as_ref().map(|tree| tree.path().join(name))
    }

    /// Returns the client acting as another user.
    pub fn as_user(&self, uid: u32) -> Nfs {
        self.nfs.as_caller(Caller::user(uid))
    }

    /// Makes a file in the root, mode 0644, with contents.
    #[track_caller]
    pub fn file(&self, name: &str, bytes: &[u8]) -> FileHandleBuf {
        self.file_in(&self.root, name, bytes)
    }

    /// Makes a file in a directory.
    #[track_caller]
    pub fn file_in(&self, dir: &FileHandleBuf, name: &str, bytes: &[u8]) -> FileHandleBuf {
        let how = CreateHow::Guarded(mode(0o644));
        let file = self.nfs.create(dir, name.as_bytes(), how).done().handle();
        if !bytes.is_empty() {
            let written = self.nfs.write(&file, 0, bytes, StableHow::Unstable).done();
            assert_eq!(written.count as usize, bytes.len());
        }
        file
    }

    /// Makes a directory in the root, mode 0755.
    #[track_caller]
    pub fn dir(&self, name: &str) -> FileHandleBuf {
        self.nfs.mkdir(&self.root, name.as_bytes(), mode(0o755)).done().handle()
    }

    /// Returns an object's attributes.
    #[track_caller]
    pub fn attr(&self, object: &FileHandleBuf) -> Fattr3 {
        self.nfs.getattr(object).done()
    }

    /// Reads a whole file.
    #[track_caller]
    pub fn contents(&self, file: &FileHandleBuf) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let piece = self.nfs.read(file, bytes.len() as u64, 1 << 20).done();
            bytes.extend(piece.bytes);
            if piece.eof {
                return bytes;
            }
        }
    }

    /// Lists a directory by READDIR, without `.` and `..`.
    #[track_caller]
    pub fn list(&self, dir: &FileHandleBuf) -> Vec<ListedEntry> {
        let (mut entries, mut cookie, mut verifier) = (Vec::new(), Cookie3(0), CookieVerifier::default());
        loop {
            let page = self.nfs.readdir(dir, cookie, verifier, 8192).done();
            verifier = page.verifier;
            cookie = page.entries.last().map_or(cookie, |last| last.cookie);
            entries.extend(page.entries);
            if page.eof {
                entries.retain(|entry: &ListedEntry| entry.name != b"." && entry.name != b"..");
                return entries;
            }
        }
    }

    /// Returns the names in the root, sorted.
    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        let text = |entry: ListedEntry| String::from_utf8_lossy(&entry.name).into_owned();
        let mut names: Vec<_> = self.list(&self.root).into_iter().map(text).collect();
        names.sort();
        names
    }
}

/// Returns the attributes from which a client recognises a change of the node.
pub fn weak(attr: &Fattr3) -> WccAttr {
    WccAttr { size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
}

/// Holds the data of a change against what the node was before, and what it is now (RFC 1813 §2.6).
#[track_caller]
pub fn assert_around(fixture: &Fixture, object: &FileHandleBuf, before: &Fattr3, wcc: &WccData) {
    assert_eq!(wcc.before, Some(weak(before)), "what it was before");
    assert_eq!(wcc.after, Some(fixture.attr(object)), "what it is now");
}

/// Asserts that a reading operation returned the object's attributes, except for the access time.
#[track_caller]
pub fn assert_seen(fixture: &Fixture, object: &FileHandleBuf, told: Option<Fattr3>) {
    let now = fixture.attr(object);
    assert_eq!(told.map(|told| Fattr3 { atime: now.atime, ..told }), Some(now));
}

/// Asserts that a failed operation reported the object's attributes and left them unchanged.
#[track_caller]
pub fn assert_unchanged(fixture: &Fixture, object: &FileHandleBuf, wcc: &WccData) {
    let now = fixture.attr(object);
    assert_eq!(wcc.after, Some(now), "what it is now");
    assert!(wcc.before.is_none_or(|before| before == weak(&now)), "nothing was changed");
}

/// Fails unless the value is one of these.
#[track_caller]
pub fn assert_one_of<T: PartialEq + Debug>(value: &T, expected: &[T]) {
    assert!(expected.contains(value), "{value:?} is none of {expected:?}");
}

/// Returns the removed files of a tree that this process, and so the server, has open.
pub fn removed_and_open(tree: &Path) -> Vec<PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").expect("the server's descriptors, which are ours");
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let is_gone = |path: &PathBuf| path.starts_with(tree) && path.to_string_lossy().ends_with(" (deleted)");
    targets.filter(is_gone).collect()
}
