//! An export with a caching session, and another that makes changes.

use std::sync::Arc;

use libtombolo::{CacheOptions, CachedTree, Last, Node, Tree, User, block_on};
use tempfile::TempDir;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::fs::{
    Attr, Client, Create, Exclusive, Export, Mode, NewMode, OpenFlags, PermissionCheck, RenameFlags, SetAttr,
    Write,
};
use tombolo_core::{Answer, Identity, Result, SessionId};
use tombolo_mem::Source;

use super::spy::Spy;
use crate::common::{attach, memory};

pub struct World {
    pub title: &'static str,
    pub export: Arc<dyn Export>,
    pub spy: Arc<Spy>,
    pub cached: CachedTree,
    /// Another session.
    pub other: Tree,
    /// Directory of the files, if on this host.
    pub dir: Option<TempDir>,
}

/// The user of all sessions.
pub const USER: Identity = Identity::ROOT;

impl World {
    pub fn memory() -> Self {
        Self::of("memory", Arc::new(memory()), None, USER, CacheOptions::default())
    }

    /// Creates a directory whose host is watched; `None`, with the reason printed, where that is impossible.
    pub fn local_dir() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let options = DirOptions { watch_host: true, ..DirOptions::default() };
        let export = Arc::new(LocalDir::open(dir.path(), options).expect("serve"));
        let world = Self::of("local-dir", export, Some(dir), USER, CacheOptions::default());
        world.cached.stat(b"/").wait().expect("the top");
        if world.cached.is_empty() {
            tombolo_skip::skip!("this user or file system cannot watch the host's changes");
        }
        Some(world)
    }

    /// Returns both, where possible.
    pub fn all() -> Vec<Self> {
        [Some(Self::memory()), Self::local_dir()].into_iter().flatten().collect()
    }

    /// Returns both, with what [`plant`] creates.
    pub fn planted() -> Vec<Self> {
        let worlds = Self::all();
        worlds.iter().for_each(|world| plant(&world.other));
        worlds
    }

    pub fn of(
        title: &'static str,
        export: Arc<dyn Export>,
        dir: Option<TempDir>,
        identity: Identity,
        options: CacheOptions,
    ) -> Self {
        let (spy, cached) = cached(&*export, identity, options, true);
        let other = attach(&*export, title);
        Self { title, export, spy, cached, other, dir }
    }

    /// Runs a query that must not send a request.
    #[track_caller]
    pub fn warm<T>(&self, what: &str, ask: impl FnOnce(&CachedTree) -> Answer<T>) -> Result<T> {
        let before = (self.spy.requests(), self.cached.counts());
        let answer = ask(&self.cached);
        assert!(answer.is_done(), "{}: {what} is not cached", self.title);
        assert_eq!(self.spy.requests(), before.0, "{}: {what} sent requests", self.title);
        let counts = self.cached.counts();
        assert_eq!((counts.from_memory, counts.asked), (before.1.from_memory + 1, before.1.asked));
        answer.wait()
    }
}

/// Creates a caching session.
pub fn cached(
    export: &dyn Export,
    identity: Identity,
    options: CacheOptions,
    counts: bool,
) -> (Arc<Spy>, CachedTree) {
    let id = SessionId(u64::MAX);
    let client = Client { session: id, label: "cached".into(), checks: PermissionCheck::BackEnd };
    let spy = Spy::on(export.attach(&client).expect("attached"), counts);
    let user = User { identity, umask: Mode::new(0o022), realm: "cached".into() };
    (Arc::clone(&spy), CachedTree::new(Tree::of(spy, id, user), options))
}

/// Changes by another session, by path.
pub trait ByPath {
    fn node(&self, path: &str) -> Node;
    fn write(&self, path: &str, bytes: &[u8]);
    fn mkdir(&self, path: &str);
    fn symlink(&self, path: &str, target: &str);
    fn unlink(&self, path: &str) -> Result<()>;
    fn rmdir(&self, path: &str) -> Result<()>;
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    fn exchange(&self, one: &str, other: &str) -> Result<()>;
    fn chmod(&self, path: &str, mode: u32);
}

impl ByPath for Tree {
    fn node(&self, path: &str) -> Node {
        block_on(self.find(path.as_bytes(), Last::Keep)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        block_on(async {
            let (dir, name) = self.find_parent(path.as_bytes()).await.expect("a directory");
            let how = Create {
                mode: NewMode { mode: Mode::new(0o644), umask: Mode::new(0) },
                flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE,
                exclusive: Exclusive::No,
            };
            let file = dir.create(name.as_name(), how).await.expect(path);
            if !bytes.is_empty() {
                let written = file.write_at(&Write::default(), Source::from(bytes.to_vec()));
                assert_eq!(written.resolve().await.expect("written").count, bytes.len());
            }
            file.flush().resolve().await.expect("flushed");
        });
    }

    fn mkdir(&self, path: &str) {
        let (dir, name) = block_on(self.find_parent(path.as_bytes())).expect("a directory");
        dir.make_dir(name.as_name(), Mode::new(0o755)).wait().expect(path);
    }

    fn symlink(&self, path: &str, target: &str) {
        let (dir, name) = block_on(self.find_parent(path.as_bytes())).expect("a directory");
        dir.make_link(name.as_name(), target.as_bytes()).wait().expect(path);
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = block_on(self.find_parent(path.as_bytes()))?;
        dir.remove(name.as_name()).wait()
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = block_on(self.find_parent(path.as_bytes()))?;
        dir.remove_dir(name.as_name()).wait()
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        rename(self, from, to, RenameFlags::empty())
    }

    fn exchange(&self, one: &str, other: &str) -> Result<()> {
        rename(self, one, other, RenameFlags::EXCHANGE)
    }

    fn chmod(&self, path: &str, mode: u32) {
        let set = SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() };
        self.node(path).set_attr(&set).wait().expect(path);
    }
}

fn rename(tree: &Tree, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
    block_on(async {
        let (from_dir, from) = tree.find_parent(from.as_bytes()).await?;
        let (to_dir, to) = tree.find_parent(to.as_bytes()).await?;
        from_dir.rename(from.as_name(), &to_dir, to.as_name(), flags).resolve().await
    })
}

/// Creates `top/a/b/c/file`, `top/a/b/link` to it, and an empty directory `top/spare`.
pub fn plant(tree: &Tree) {
    for dir in ["top", "top/a", "top/a/b", "top/a/b/c", "top/spare"] {
        tree.mkdir(dir);
    }
    tree.write("top/a/b/c/file", b"first");
    tree.symlink("top/a/b/link", "c/file");
}

pub const FILE: &[u8] = b"top/a/b/c/file";

/// Returns what is at a path as an uncached client finds it.
pub fn plainly(tree: &Tree, path: &[u8], last: Last) -> Result<Attr> {
    block_on(async { tree.find(path, last).await?.attr_now().resolve().await })
}
