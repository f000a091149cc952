//! Path walks over cached answers, with requests for answers that are missing or no longer valid.

use std::sync::Arc;

use tombolo_core::fs::{AccessMask, Attr, FileType, Name, NodeId, Version, Versions};
use tombolo_core::{Error, Result};

use super::contents::Contents;
use super::{Cache, CachedNode, CachedPath, Named, ResolvedNode, State, Trail, kind};
use crate::node::Node;
use crate::path::{self, LINKS_MAX, Last};

/// The node that a path leads to.
pub(super) struct Resolved {
    pub known: Arc<CachedNode>,
    pub attr: Attr,
    /// Version before the attributes were requested; `None` if nothing may be cached.
    pub version: Option<Version>,
}

/// Trust in cached names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// A cached name is used if its directory's version is unchanged.
    Believe,
    /// Each name is looked up.
    Ask,
}

impl Cache {
    /// Runs a query, and a second time with [`Names::Ask`] if cached names may have caused a failure.
    pub(super) async fn retry<T, F>(&self, ask: impl Fn(Names) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match ask(Names::Believe).await {
            Err(error) if self.must_try_again(&error) => ask(Names::Ask).await,
            done => done,
        }
    }

    pub(super) async fn access(&self, path: &[u8], mask: AccessMask, names: Names) -> Result<()> {
        let Resolved { known, version, .. } = self.find(path, Last::Follow, names).await?;
        self.counters.request();
        let tree = &self.tree;
        tree.fs().access(&tree.cx(), known.id(), mask).resolve().await?;
        if let Some(version) = version {
            known.grant(version, mask);
        }
        Ok(())
    }

    /// Returns `true` if a query that failed with this error must be repeated with [`Names::Ask`]. If the
    /// session was short of nodes or openings, drops all answers first.
    fn must_try_again(&self, error: &Error) -> bool {
        match error {
            // The node behind a cached name was removed; the name may lead to another node now.
            Error::Stale => true,
            // Cached answers retain nodes, and the session has a limited number of them.
            Error::NoMemory | Error::TooManyOpen => {
                self.clear();
                true
            }
            _ => false,
        }
    }

    /// Finds what a path leads to, and caches it.
    pub(super) async fn find(&self, path: &[u8], last: Last, names: Names) -> Result<Resolved> {
        let Some(versions) = self.versions() else { return self.find_once(path, last).await };
        let Some(_) = self.look(versions, &self.top).await?.1 else {
            return self.find_once(path, last).await;
        };
        let mut walk = Walk { cache: self, versions, names, nodes: Vec::new(), trail: Some(Trail::new()) };
        match walk.go(path, last).await? {
            Some(()) => walk.remember_end(path, last).await,
            None => {
                self.remember(path, last, walk.trail, None);
                Err(Error::NotFound)
            }
        }
    }

    /// Finds a path of a tree of which the server does not count all changes, and caches nothing.
    async fn find_once(&self, path: &[u8], last: Last) -> Result<Resolved> {
        self.counters.request();
        let node = self.tree.find(path, last).await?;
        let attr = node.attr().await?;
        Ok(Resolved { known: Arc::new(CachedNode::new(node)), attr, version: None })
    }

    fn remember(&self, path: &[u8], last: Last, trail: Option<Trail>, end: Option<ResolvedNode>) {
        // With a version missing, the answer's validity could not be checked.
        if let Some(versions) = trail {
            self.places.insert(kind(last), path, Arc::new(CachedPath { versions, end }));
        }
    }

    /// Returns the attributes of a node and the version that it had before they were requested, and caches
    /// both. The version is `None`, and nothing is cached, if the server does not count this node's changes.
    async fn look(&self, versions: &dyn Versions, known: &CachedNode) -> Result<(Attr, Option<Version>)> {
        let state = *known.state();
        if let Some(State { attr, version, .. }) = state
            && versions.hold(&[version])
        {
            return Ok((attr, Some(version)));
        }
        self.counters.request();
        let (attr, version) = versions.look(&self.tree.cx(), known.id()).resolve().await?;
        if let Some(version) = version {
            known.set_state(State { version, attr, granted: AccessMask::empty() });
        }
        Ok((attr, version))
    }
}

struct Walk<'c> {
    cache: &'c Cache,
    versions: &'c dyn Versions,
    names: Names,
    /// The directories from the root to the present position, without the root; the last may be any node.
    nodes: Vec<Arc<CachedNode>>,
    /// All versions that the answer depends on; `None` if one of them cannot be checked.
    trail: Option<Trail>,
}

impl Walk<'_> {
    /// Walks a path; `None`: it does not exist.
    async fn go(&mut self, path: &[u8], last: Last) -> Result<Option<()>> {
        // Components left to walk, the next one last.
        let mut ahead = path::components(path);
        let mut links = 0;
        while let Some(component) = ahead.pop() {
            if self.here().file_type != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            let known = match component.as_slice() {
                b"." => continue,
                b".." => {
                    self.nodes.pop();
                    continue;
                }
                name => match self.step(Name::new(name)?).await? {
                    Some(known) => known,
                    None => return Ok(None),
                },
            };
            if known.file_type != FileType::Symlink || (ahead.is_empty() && last == Last::Keep) {
                self.nodes.push(known);
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::SymlinkLoop);
            }
            let target = self.target(&known).await?;
            if target.is_empty() {
                return Ok(None);
            }
            if path::begins_at_top(&target)? {
                self.nodes.clear();
            }
            ahead.extend(path::components(&target));
        }
        Ok(Some(()))
    }

    fn here(&self) -> &Arc<CachedNode> {
        self.nodes.last().unwrap_or(&self.cache.top)
    }

    /// Returns the node behind a name in the current directory; `None` if the name does not exist.
    async fn step(&mut self, name: Name<'_>) -> Result<Option<Arc<CachedNode>>> {
        let dir = Arc::clone(self.here());
        // The version is read before the look-up, so that a change in between makes the answer invalid.
        let version = self.cache.look(self.versions, &dir).await?.1;
        self.hang_on(version);
        let remembered = self.cache.names.get(dir.id().0, name.as_bytes());
        if let Some(remembered) = &remembered
            && self.names == Names::Believe
            && Some(remembered.version) == version
        {
            return Ok(remembered.node.clone());
        }
        self.cache.counters.request();
        let node = match dir.node.find(name).resolve().await {
            Ok(node) => Some(same_or_new(remembered.and_then(|remembered| remembered.node.clone()), node)),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        if let Some(version) = version {
            let (of, node) = (dir.id().0, node.clone());
            self.cache.names.insert(of, name.as_bytes(), Arc::new(Named { _dir: dir, version, node }));
        }
        Ok(node)
    }

    async fn target(&mut self, link: &Arc<CachedNode>) -> Result<Arc<[u8]>> {
        let (_, version) = self.cache.look(self.versions, link).await?;
        self.hang_on(version);
        if let Some(version) = version
            && let Some(Contents::Target(target)) = self.cache.contents_of(link.id(), version)
        {
            return Ok(target);
        }
        self.cache.target(link, version).await
    }

    /// Makes the answer depend on this version; `None` keeps the answer from being cached.
    fn hang_on(&mut self, version: Option<Version>) {
        match (&mut self.trail, version) {
            (Some(trail), Some(version)) => trail.push(version),
            (trail, _) => *trail = None,
        }
    }

    async fn remember_end(mut self, path: &[u8], last: Last) -> Result<Resolved> {
        let known = Arc::clone(self.here());
        let (attr, version) = self.cache.look(self.versions, &known).await?;
        self.hang_on(version);
        let end = version.map(|version| ResolvedNode { known: Arc::clone(&known), attr, version });
        // Without an end, the path would be cached as one that does not exist.
        if end.is_some() {
            self.cache.remember(path, last, self.trail, end);
        }
        Ok(Resolved { known, attr, version })
    }
}

/// Returns `known`, with all that is cached about it, if it is the node found and not the root; otherwise a
/// new cached node.
fn same_or_new(known: Option<Arc<CachedNode>>, found: Node) -> Arc<CachedNode> {
    let is_same = |known: &Arc<CachedNode>| known.id() == found.id() && known.id() != NodeId::ROOT;
    known.filter(is_same).unwrap_or_else(|| Arc::new(CachedNode::new(found)))
}
