//! A tree whose answers are remembered for as long as nothing has changed.
//!
//! A directory's version is taken *before* something in it is asked for, and remembered with the answer; the
//! answer is believed while the version [holds](tombolo_core::fs::Versions::hold), which is seen in memory.
//! An answer about a path hangs on all that was walked: each directory in which a name was looked for, each
//! link that was followed, and the node at the end. So a change of any of them, of rights too, is seen by the
//! next question after it was answered.
//!
//! Reading order: here; `walk`; `contents`; `table`, and `counters`.

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

/// How much a [`CachedTree`] remembers. What was not asked for lately makes room.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Answers about paths, and as many names of directories. Each takes about a KiB here, and a node of the
    /// session.
    pub entries_max: usize,
    /// Contents of files, targets of links and listings, all together, in bytes.
    pub content_bytes_max: u64,
    /// Files up to this size are remembered, and read whole by [`CachedTree::read`].
    pub file_bytes_max: u64,
}

impl Default for CacheOptions {
    /// 65,536 paths; 64 MiB of contents, of files up to 256 KiB.
    fn default() -> Self {
        Self { entries_max: 1 << 16, content_bytes_max: 64 << 20, file_bytes_max: 256 << 10 }
    }
}

/// A [`Tree`] that is asked by path, and remembers the answers: attributes, that there is nothing, targets of
/// links, small files and listings.
///
/// A remembered answer is believed only while the server's count of changes says that nothing has changed
/// that it hangs on; then it is there at once ([`Answer::Done`]) and no request is sent. Otherwise the answer
/// comes later, and only what has changed is asked for. Where not all changes are counted nothing is
/// remembered, and each question is asked. Of errors only [`Error::NotFound`] is remembered.
///
/// Paths lead where [`Tree::find`] says, on behalf of the tree's user. A clone is another reference to the
/// same memory. Any number of threads may ask at once; no lock is held while something is asked. What is
/// remembered keeps nodes of the session; all are given back with the last reference, and when the session
/// has no room for more.
#[derive(Clone)]
pub struct CachedTree(Arc<Cache>);

struct Cache {
    tree: Tree,
    options: CacheOptions,
    top: Arc<Known>,
    /// By kind of question and path.
    places: Table<Arc<Place>>,
    /// By directory and name.
    names: Table<Arc<Named>>,
    /// By node.
    contents: Table<Arc<Remembered>>,
    counters: Counters,
}

/// A node that something is remembered of.
struct Known {
    node: Node,
    file_type: FileType,
    state: RwLock<Option<State>>,
}

/// A node's state while its version holds.
#[derive(Clone, Copy)]
struct State {
    version: Version,
    attr: Attr,
    /// What the user was said to be allowed.
    granted: AccessMask,
}

/// What a name in a directory leads to while the directory has this version.
struct Named {
    /// Keeps its number from being another's.
    _dir: Arc<Known>,
    version: Version,
    /// `None`: there is nothing.
    node: Option<Arc<Known>>,
}

/// What a path leads to while all versions hold.
struct Place {
    /// In the order of the walk; the last is of the end, if there is one.
    versions: Trail,
    /// `None`: there is nothing.
    end: Option<End>,
}

struct End {
    known: Arc<Known>,
    attr: Attr,
    /// See [`Place::versions`].
    version: Version,
}

/// Most paths have no more components.
type Trail = SmallVec<[Version; 8]>;

impl CachedTree {
    /// Nothing is remembered yet.
    pub fn new(tree: Tree, options: CacheOptions) -> Self {
        let entries = options.entries_max.max(1);
        let top = Arc::new(Known::new(tree.root()));
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

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// The attributes of what `path` leads to; links are followed.
    #[inline]
    pub fn stat(&self, path: &[u8]) -> Answer<Attr> {
        self.attr(path, Last::Follow)
    }

    /// The attributes of what is at `path`, also if it is a link.
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
                cache.find_again(&path, last).await.map(|found| found.attr)
            }),
        }
    }

    /// Whether `path` leads to anything; links are followed. False also where it goes through what is no
    /// directory.
    pub fn exists(&self, path: &[u8]) -> Answer<bool> {
        self.stat(path).map_result(|found| match found {
            Ok(_) => Ok(true),
            Err(Error::NotFound | Error::NotDirectory) => Ok(false),
            Err(error) => Err(error),
        })
    }

    /// Whether the tree's user may access what `path` leads to in all these ways: [`Error::AccessDenied`] if
    /// not, which is not remembered.
    pub fn access(&self, path: &[u8], mask: AccessMask) -> Answer<()> {
        if let Some(place) = self.0.believed(path, Last::Follow) {
            let is_granted = |end: &End| mask.is_empty() || end.known.grants(end.version, mask);
            let found = place.found().map(is_granted);
            if !matches!(found, Ok(false)) {
                self.0.counters.answered();
                return Answer::Done(found.map(|_| ()));
            }
        }
        self.ask(path, move |cache, path| async move { cache.access_again(&path, mask).await })
    }

    /// The bytes of the file that `path` leads to; `None` if it is larger than
    /// [`CacheOptions::file_bytes_max`]: such files are opened and read in pieces ([`CachedTree::tree`]).
    /// [`Error::IsDirectory`] of a directory, [`Error::InvalidArgument`] of what is no file at all.
    ///
    /// The first reading of a file often sets its access time, which is a change: then the bytes are
    /// remembered by the second.
    pub fn read(&self, path: &[u8]) -> Answer<Option<Arc<[u8]>>> {
        match self.0.believed_contents(path, Last::Follow) {
            Some(Ok(Contents::Data(bytes))) => Answer::ok(Some(bytes)),
            Some(Err(error)) => Answer::err(error),
            _ => self.ask(path, |cache, path| async move { cache.read_again(&path).await }),
        }
    }

    /// The target of the link at `path`. [`Error::InvalidArgument`] if it is none.
    pub fn read_link(&self, path: &[u8]) -> Answer<Arc<[u8]>> {
        match self.0.believed_contents(path, Last::Keep) {
            Some(Ok(Contents::Target(target))) => Answer::ok(target),
            Some(Err(error)) => Answer::err(error),
            _ => self.ask(path, |cache, path| async move { cache.read_link_again(&path).await }),
        }
    }

    /// All entries of the directory that `path` leads to, in the directory's order. [`Error::NotDirectory`]
    /// if it is none;
    /// [`Error::TooBig`] if they take more than [`CacheOptions::content_bytes_max`]: then [`Node::list`] gives them in pages.
    pub fn list(&self, path: &[u8]) -> Answer<Arc<[Listed]>> {
        match self.0.believed_contents(path, Last::Follow) {
            Some(Ok(Contents::Listing(entries))) => Answer::ok(entries),
            Some(Err(error)) => Answer::err(error),
            _ => self.ask(path, |cache, path| async move { cache.list_again(&path).await }),
        }
    }

    /// How questions were answered so far.
    pub fn counts(&self) -> Counts {
        self.0.counters.counts()
    }

    /// How many answers about paths are remembered at present, believed or not.
    pub fn len(&self) -> usize {
        self.0.places.len()
    }

    /// Whether no answer about a path is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes of contents are remembered at present, believed or not.
    pub fn content_bytes(&self) -> u64 {
        self.0.contents.weight()
    }

    /// Forgets everything, and gives back the nodes.
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
    /// What is remembered of this path, if that is how it is now.
    #[inline]
    fn believed(&self, path: &[u8], last: Last) -> Option<Arc<Place>> {
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

/// The number that answers about paths are kept by.
fn kind(last: Last) -> u64 {
    match last {
        Last::Follow => 0,
        Last::Keep => 1,
    }
}

impl Known {
    fn new(node: Node) -> Self {
        // Only the top is not found by a look-up.
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

    /// The user may do this while the node has this version.
    fn grant(&self, version: Version, mask: AccessMask) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = state.as_mut().filter(|state| state.version == version) {
            state.granted |= mask;
        }
    }
}

impl Place {
    #[inline]
    fn found(&self) -> Result<&End> {
        self.end.as_ref().ok_or(Error::NotFound)
    }
}

impl Weighed for Arc<Place> {
    fn weight(&self) -> u64 {
        // Long trails take memory of their own.
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
