//! Look-up of nodes, their attributes and users' permissions.

use tombolo_core::fs::{AccessMask, Attr, Entry, FileType, NameBuf, NodeId, Ownership, WeakAttr};
use tombolo_core::{Ctx, Error, Identity, Result};

use super::{View, below_cx};
use crate::tree::{Target, Tree, is_hidden};

/// Result of a look-up, and the state that it depends on.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub dir: NodeId,
    pub name: NameBuf,
    /// Target and its attributes.
    pub found: Option<(Target, Attr)>,
    /// Target at the cache, if the name has no local record.
    pub below: Option<Target>,
    /// Local target of the name; `None` if the name has no local record, `Some(None)` if it was removed.
    here: Option<Option<Target>>,
    epoch: u64,
}

impl Seen {
    /// Returns `true` if nothing that this result depends on has changed since, so that a change may rely on
    /// it.
    pub(super) fn holds(&self, tree: &Tree) -> bool {
        tree.epoch == self.epoch
            && tree.place(self.dir, &self.name).map(|place| place.local) == self.here
            && tree.nodes.get(&self.dir).is_none_or(|dir| dir.attr.nlink > 0)
    }

    pub(super) fn target(&self) -> Option<Target> {
        self.found.map(|(target, _)| target)
    }
}

impl View {
    /// Returns a node's attributes as shown locally.
    pub(super) async fn attr(&self, id: NodeId) -> Result<Attr> {
        let (below, kept) = {
            let tree = self.shared().tree();
            match tree.nodes.get(&id) {
                Some(node) if node.attr.nlink == 0 && !tree.open.contains_key(&id) => {
                    return Err(Error::Stale);
                }
                Some(node) if node.is_dirty() => return Ok(node.attr),
                Some(node) => (node.below, node.version.map(|version| (version, node.attr))),
                None => (tree.below(id), None),
            }
        };
        let below = below.ok_or(Error::Stale)?;
        let attr = self.shared().below.getattr(&self.below_cx(), below, None).resolve().await?;
        Ok(shown(id, attr, kept))
    }

    /// Converts the entry of a look-up at the cache to the local target and its attributes as shown locally.
    fn met(&self, tree: &Tree, entry: &Entry) -> (Target, Attr) {
        let id = tree.local_id(entry.node);
        let attr = match tree.nodes.get(&id) {
            Some(node) if node.is_dirty() => node.attr,
            node => shown(id, entry.attr, node.and_then(|node| node.version.map(|kept| (kept, node.attr)))),
        };
        (Target { node: id, file_type: attr.file_type }, attr)
    }

    /// Returns a directory's attributes; fails for other types.
    pub(super) async fn directory(&self, id: NodeId) -> Result<Attr> {
        let attr = self.attr(id).await?;
        match attr.file_type {
            FileType::Directory => Ok(attr),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Looks a name up in a directory; fails if the user may not search it.
    pub(super) async fn find(&self, dir: NodeId, name: &NameBuf) -> Result<Seen> {
        self.check(dir, AccessMask::EXECUTE).await?;
        loop {
            let (epoch, here, below, is_ours) = {
                let tree = self.shared().tree();
                let here = tree.place(dir, name).map(|place| place.local);
                let is_ours = tree.nodes.get(&dir).is_some_and(|dir| dir.is_dirty());
                (tree.epoch, here, tree.below(dir), is_ours)
            };
            let mut seen = Seen { dir, name: name.clone(), found: None, below: None, here, epoch };
            if let Some(now) = here {
                let Some(target) = now else { return Ok(seen) };
                match self.attr(target.node).await {
                    Ok(attr) => seen.found = Some((target, attr)),
                    // The node was removed or replaced meanwhile.
                    Err(Error::Stale) if !seen.holds(&self.shared().tree()) => continue,
                    Err(error) => return Err(error),
                }
                return Ok(seen);
            }
            let Some(below) = below.filter(|_| !is_hidden(name)) else { return Ok(seen) };
            // In a changed directory the superuser looks up: the origin may lack the attributes just checked.
            let cx = if is_ours { below_cx(&self.cx, Identity::ROOT) } else { self.below_cx() };
            let found = match self.shared().below.lookup(&cx, below, name.as_name()).resolve().await {
                Ok(entry) => Some(entry),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            if let Some(entry) = &found {
                self.shared().below.forget(&cx, &[(entry.node, 1)]);
            }
            let tree = self.shared().tree();
            if seen.holds(&tree) {
                seen.found = found.map(|entry| self.met(&tree, &entry));
                seen.below = seen.target();
                return Ok(seen);
            }
            if tree.nodes.get(&dir).is_some_and(|dir| dir.attr.nlink == 0) {
                return Ok(seen);
            }
        }
    }

    pub(super) async fn lookup(self, parent: NodeId, name: NameBuf) -> Result<Entry> {
        self.directory(parent).await?;
        let seen = self.find(parent, &name).await?;
        if let Some((target, _)) = seen.found.filter(|(target, _)| target.file_type == FileType::Regular) {
            self.shared().tree().record_lookup_name(target.node, parent, &name);
        }
        seen.found.map(|(target, attr)| Entry { node: target.node, attr }).ok_or(Error::NotFound)
    }

    /// Checks the user's permissions for a node: by its attributes if this layer has changed it, as the
    /// origin may lack them, and otherwise by the cache.
    pub(super) async fn check(&self, id: NodeId, mask: AccessMask) -> Result<()> {
        let (is_ours, below) = {
            let tree = self.shared().tree();
            (tree.nodes.contains_key(&id), tree.below(id))
        };
        match is_ours {
            true => {
                let owner = Ownership::from(&self.attr(id).await?);
                self.as_either(|user| owner.check_mode(user, mask))
            }
            false => {
                let below = below.ok_or(Error::Stale)?;
                self.shared().below.access(&self.below_cx(), below, mask).resolve().await
            }
        }
    }

    /// Performs a check for the user and, if it fails, for the user to which the origin maps this user, and
    /// who owns this user's files there.
    pub(super) fn as_either(&self, check: impl Fn(&Identity) -> Result<()>) -> Result<()> {
        check(&self.cx.identity).or_else(|error| {
            let other = self.shared().squashed.taken_for(&self.cx.identity);
            other.map_or(Err(error), |other| check(&other))
        })
    }

    pub(super) async fn check_add(&self, dir: NodeId) -> Result<()> {
        self.check(dir, AccessMask::WRITE | AccessMask::EXECUTE).await
    }

    /// Checks that the user may remove a node from a directory.
    pub(super) async fn check_remove(&self, dir: NodeId, dir_attr: &Attr, victim: &Attr) -> Result<()> {
        self.check_add(dir).await?;
        self.as_either(|user| Ownership::from(dir_attr).check_sticky(user, victim.uid))
    }

    /// Returns the parent of a directory. The root is its own parent.
    pub(super) async fn parent_of(&self, dir: NodeId) -> Result<NodeId> {
        let (here, below) = {
            let tree = self.shared().tree();
            (tree.nodes.get(&dir).and_then(|node| node.parent), tree.below(dir))
        };
        match here {
            _ if dir == NodeId::ROOT => Ok(dir),
            Some(parent) => Ok(parent),
            None => {
                let fs = &self.shared().below;
                let handles = fs.persistent_handles().ok_or(Error::NotSupported)?;
                let cx: Ctx = below_cx(&self.cx, Identity::ROOT);
                let above = handles.parent(&cx, below.ok_or(Error::Stale)?).resolve().await?;
                fs.forget(&cx, &[(above.node, 1)]);
                Ok(self.shared().tree().local_id(above.node))
            }
        }
    }

    /// Returns `true` if `dir` is `ancestor` or lies within it.
    pub(super) async fn is_within(&self, dir: NodeId, ancestor: NodeId) -> Result<bool> {
        let mut at = dir;
        loop {
            let above = match at == ancestor {
                true => return Ok(true),
                false => self.parent_of(at).await?,
            };
            if above == at {
                return Ok(false);
            }
            at = above;
        }
    }
}

/// Returns the cache's attributes of a node as shown locally: until another writer changes the node, with
/// those set by write-back, except link count, blocks and a later time of access.
fn shown(id: NodeId, attr: Attr, kept: Option<(WeakAttr, Attr)>) -> Attr {
    match kept {
        Some((version, kept)) if version == WeakAttr::from(&attr) => {
            Attr { nlink: attr.nlink, atime: attr.atime.max(kept.atime), blocks: attr.blocks, ..kept }
        }
        _ => Attr { fileid: id.0, ..attr },
    }
}
