//! [`CachedTree`]: a tree whose answers are cached for as long as nothing has changed.
//!
//! A directory's version is read *before* something in it is requested, and stored with the answer; the
//! answer is valid while the version [holds](tombolo_core::fs::Versions::hold): the counters that the server
//! shares are compared, without a request. An answer about a path depends on all nodes of the walk: each
//! directory that was searched, each link that was followed, and the node at the end. The next query
//! therefore sees a change of any of them, also of permissions.
//!
//! Reading order: this file; `walk`; `contents`; `table`, and `counters`.

mod contents;
mod counters;
mod table;
mod walk;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use smallvec::SmallVec;
use tombolo_core::fs::{AccessMask, Attr, FileType, NodeId, Version, Versions};
use tombolo_core::{Answer, Error, Result};

pub use self::contents::Listed;
use self::contents::{Contents, Remembered};
use self::counters::Counters;
pub use self::counters::Counts;
use self::table::{Table, Weighed};
use crate::node::Node;
use crate::path::Last;
use crate::tree::Tree;

/// Limits of a [`CachedTree`]. Answers that were not used for long are evicted first, approximately.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Maximum number of answers about paths, and the same maximum for names in directories. Each takes about
    /// 1 KiB of memory and at most one node of the session.
    pub entries_max: usize,
    /// Maximum size of file contents, link targets and listings together, in bytes.
    pub content_bytes_max: u64,
    /// Maximum size of a file that is cached, and read whole by [`CachedTree::read`], in bytes.
    pub file_bytes_max: u64,
}

impl Default for CacheOptions {
    /// Returns limits of 65,536 paths and 64 MiB of contents, of files up to 256 KiB.
    fn default() -> Self {
        Self { entries_max: 1 << 16, content_bytes_max: 64 << 20, file_bytes_max: 256 << 10 }
    }
}

/// A [`Tree`] queried by path that caches the answers: attributes, absence, granted access, targets of links,
/// small files and listings.
///
/// A cached answer is used only while the server's change counts say that nothing it depends on has changed;
/// then it is available at once ([`Answer::Done`]) and no request is sent. Otherwise the answer is a future,
/// and only what is missing or may have changed is requested. If the server does not count all changes of the
/// tree, nothing is cached and each query is sent. The only cached error is [`Error::NotFound`].
///
/// Paths are resolved as by [`Tree::find`], on behalf of the tree's user. A clone is another reference to the
/// same cache. Any number of threads may query it concurrently; no lock is held during a request. Cached
/// answers retain nodes of the session; all are released with the last reference, and when a query fails
/// because the session has too many nodes or openings.
#[derive(Clone)]
pub struct CachedTree(Arc<Cache>);

struct Cache {
    tree: Tree,
    options: CacheOptions,
    top: Arc<CachedNode>,
    /// Resolved paths, by [`kind`] and path.
    places: Table<Arc<CachedPath>>,
    /// Names in directories, by directory and name.
    names: Table<Arc<Named>>,
    /// Contents of files, directories and links by node.
    contents: Table<Arc<Remembered>>,
    counters: Counters,
}

/// A node about which something is cached.
struct CachedNode {
    node: Node,
    file_type: FileType,
    state: RwLock<Option<State>>,
}

/// A node's state while its version holds.
#[derive(Clone, Copy)]
struct State {
    version: Version,
    attr: Attr,
    /// Access that the user is known to have.
    granted: AccessMask,
}

/// The node behind a name in a directory, valid for one version of the directory.
struct Named {
    /// Keeps the directory referenced: its number is part of the key and must not go to another node.
    _dir: Arc<CachedNode>,
    version: Version,
    /// `None`: the name does not exist.
    node: Option<Arc<CachedNode>>,
}

/// The node behind a path, valid while all versions hold.
struct CachedPath {
    /// Versions in the order of the walk; the last is that of the end, if it exists.
    versions: Trail,
    /// `None`: the path does not exist.
    end: Option<ResolvedNode>,
}

struct ResolvedNode {
    known: Arc<CachedNode>,
    attr: Attr,
    /// Version of the node, taken before its attributes were requested; the last of [`CachedPath::versions`].
    version: Version,
}

/// Versions along a path; up to eight need no allocation, as many as most paths have components.
type Trail = SmallVec<[Version; 8]>;

impl CachedTree {
    /// Creates an empty cache over `tree`.
    pub fn new(tree: Tree, options: CacheOptions) -> Self {
        let entries = options.entries_max.max(1);
        let top = Arc::new(CachedNode::new(tree.root()));
        Self(Arc::new(Cache {
            options,
            top,
            places: Table::new(entries as u64, 1, entries),
            names: Table::new(entries as u64, 1, entries),
            contents: Table::new(
                options.content_bytes_max,
                options.file_bytes_max.saturating_add(Remembered::OWN_BYTES),
                (options.content_bytes_max / 4096) as usize,
            ),
            counters: Counters::default(),
            tree,
        }))
    }

    /// Returns the tree whose answers are cached, for operations that bypass the cache.
    pub fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// Returns the attributes of what `path` leads to; links are followed.
    #[inline]
    pub fn stat(&self, path: &[u8]) -> Answer<Attr> {
        self.attr(path, Last::Follow)
    }

    /// Returns the attributes of what is at `path`, also if it is a link.
    #[inline]
    pub fn lstat(&self, path: &[u8]) -> Answer<Attr> {
        self.attr(path, Last::Keep)
    }

    #[inline]
    fn attr(&self, path: &[u8], last: Last) -> Answer<Attr> {
        match self.0.believed(path, last) {
            Some(place) => {
                self.0.counters.answered();
                Answer::Done(place.found().map(|end| end.attr))
            }
            None => self.ask(path, move |cache, path| async move {
                Ok(cache.retry(|names| cache.find(&path, last, names)).await?.attr)
            }),
        }
    }

    /// Returns `true` if `path` leads to anything; links are followed. `false` also where it passes through a
    /// non-directory.
    pub fn exists(&self, path: &[u8]) -> Answer<bool> {
        self.stat(path).map_result(|found| match found {
            Ok(_) => Ok(true),
            Err(Error::NotFound | Error::NotDirectory) => Ok(false),
            Err(error) => Err(error),
        })
    }

    /// Checks that the tree's user has all access in `mask` to what `path` leads to. A refusal
    /// ([`Error::AccessDenied`], [`Error::ReadOnly`]) is not cached.
    pub fn access(&self, path: &[u8], mask: AccessMask) -> Answer<()> {
        if let Some(place) = self.0.believed(path, Last::Follow) {
            let is_granted = |end: &ResolvedNode| mask.is_empty() || end.known.grants(end.version, mask);
            let found = place.found().map(is_granted);
            if !matches!(found, Ok(false)) {
                self.0.counters.answered();
                return Answer::Done(found.map(|_| ()));
            }
        }
        self.ask(path, move |cache, path| async move {
            cache.retry(|names| cache.access(&path, mask, names)).await
        })
    }

    /// Returns the bytes of the file that `path` leads to; `None` if it is larger than
    /// [`CacheOptions::file_bytes_max`]: callers open such files and read them in pieces
    /// ([`CachedTree::tree`]). [`Error::IsDirectory`] for a directory, [`Error::InvalidArgument`] for a
    /// special file.
    ///
    /// The first read of a file often sets its access time, which is a change: then only the second read
    /// caches the bytes.
    pub fn read(&self, path: &[u8]) -> Answer<Option<Arc<[u8]>>> {
        match self.0.believed_contents(path, Last::Follow) {
            Some(Ok(Contents::Data(bytes))) => Answer::ok(Some(bytes)),
            Some(Err(error)) => Answer::err(error),
            _ => self
                .ask(path, |cache, path| async move { cache.retry(|names| cache.read(&path, names)).await }),
        }
    }

    /// Returns the target of the link at `path`. [`Error::InvalidArgument`] if it is not a link.
    pub fn read_link(&self, path: &[u8]) -> Answer<Arc<[u8]>> {
        match self.0.believed_contents(path, Last::Keep) {
            Some(Ok(Contents::Target(target))) => Answer::ok(target),
            Some(Err(error)) => Answer::err(error),
            _ => self.ask(path, |cache, path| async move {
                cache.retry(|names| cache.read_link(&path, names)).await
            }),
        }
    }

    /// Returns all entries of the directory that `path` leads to, in the directory's order.
    /// [`Error::NotDirectory`] if it is not a directory; [`Error::TooBig`] if they exceed
    /// [`CacheOptions::content_bytes_max`]: then [`Node::list`] returns them in pages.
    pub fn list(&self, path: &[u8]) -> Answer<Arc<[Listed]>> {
        match self.0.believed_contents(path, Last::Follow) {
            Some(Ok(Contents::Listing(entries))) => Answer::ok(entries),
            Some(Err(error)) => Answer::err(error),
            _ => self
                .ask(path, |cache, path| async move { cache.retry(|names| cache.list(&path, names)).await }),
        }
    }

    /// Returns how queries were answered so far.
    pub fn counts(&self) -> Counts {
        self.0.counters.counts()
    }

    /// Returns the number of cached answers about paths, valid or not.
    pub fn len(&self) -> usize {
        self.0.places.len()
    }

    /// Returns `true` if no answer about a path is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the approximate size of the cached contents with their overhead, valid or not, in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.0.contents.weight()
    }

    /// Drops all answers and releases their nodes.
    pub fn clear(&self) {
        self.0.clear();
    }

    #[cold]
    fn ask<T, F>(&self, path: &[u8], question: impl FnOnce(Arc<Cache>, Box<[u8]>) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.0.counters.asked();
        Answer::later(question(Arc::clone(&self.0), path.into()))
    }
}

impl Cache {
    /// Returns the cached answer for this path, if still valid.
    #[inline]
    fn believed(&self, path: &[u8], last: Last) -> Option<Arc<CachedPath>> {
        let versions = self.versions()?;
        let place = self.places.get(kind(last), path)?;
        versions.hold(&place.versions).then_some(place)
    }

    #[inline]
    fn versions(&self) -> Option<&dyn Versions> {
        self.tree.fs().versions()
    }

    fn holds(&self, version: Version) -> bool {
        self.versions().is_some_and(|versions| versions.hold(&[version]))
    }

    fn clear(&self) {
        self.places.clear();
        self.names.clear();
        self.contents.clear();
    }
}

/// Returns the number that is part of the key of a path's answer, since [`CachedTree::stat`] and
/// [`CachedTree::lstat`] of one path have different answers.
fn kind(last: Last) -> u64 {
    match last {
        Last::Follow => 0,
        Last::Keep => 1,
    }
}

impl CachedNode {
    fn new(node: Node) -> Self {
        // The root is the only node not found by a look-up.
        let file_type = node.attr_found().map_or(FileType::Directory, |attr| attr.file_type);
        Self { node, file_type, state: RwLock::default() }
    }

    fn id(&self) -> NodeId {
        self.node.id()
    }

    fn state(&self) -> RwLockReadGuard<'_, Option<State>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    fn grants(&self, version: Version, mask: AccessMask) -> bool {
        self.state().is_some_and(|state| state.version == version && state.granted.contains(mask))
    }

    /// Records that the user has the access in `mask` while the node has this version.
    fn grant(&self, version: Version, mask: AccessMask) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = state.as_mut().filter(|state| state.version == version) {
            state.granted |= mask;
        }
    }
}

impl CachedPath {
    #[inline]
    fn found(&self) -> Result<&ResolvedNode> {
        self.end.as_ref().ok_or(Error::NotFound)
    }
}

impl Weighed for Arc<CachedPath> {
    fn weight(&self) -> u64 {
        // Long trails are allocated separately.
        1 + self.versions.len() as u64 / 16
    }
}

impl Weighed for Arc<Named> {
    fn weight(&self) -> u64 {
        1
    }
}

impl fmt::Debug for CachedTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedTree({:?}, {} paths, {:?})", self.0.tree, self.len(), self.counts())
    }
}
