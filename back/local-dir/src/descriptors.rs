//! Resolution of nodes to descriptors, and the limit on their number.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_core::fs::{Entry, Name, NodeId};
use tombolo_core::{Error, Permit, Resource, Result, lock};
use tombolo_sys::handle::FileHandle;
use tombolo_sys::open::{OpenFlags, open_place};
use tombolo_sys::stat::{self, Stat};

use crate::attr::{attr_of, birth_ns};
use crate::mounts::packed;
use crate::state::{Location, Session, is_big};
use crate::table::{Anchor, Cooled, Freed, Identity, Key, NodeState};

impl Session {
    /// Returns a node's location. May block if the node has no open descriptor.
    pub(crate) fn location(&self, node: NodeId) -> Result<Location> {
        if node == NodeId::ROOT {
            return Ok(self.export.root.clone());
        }
        match self.table.find(node)? {
            NodeState::Open(identity, descriptor) => Ok(Location::new(identity, descriptor)),
            NodeState::Closed(identity, anchor) => self.find_again(node, identity, anchor),
        }
    }

    /// Returns a node's location if it has an open descriptor; never blocks.
    pub(crate) fn open_location(&self, node: NodeId) -> Result<Option<Location>> {
        if node == NodeId::ROOT {
            return Ok(Some(self.export.root.clone()));
        }
        Ok(match self.table.find(node)? {
            NodeState::Open(identity, descriptor) => Some(Location::new(identity, descriptor)),
            NodeState::Closed(..) => None,
        })
    }

    /// Returns the entry of a file that already has a node, and counts a look-up; `None` if it has none, or
    /// if the file must be opened to decide that.
    pub(crate) fn recognise(&self, stat: &Stat) -> Option<Entry> {
        let identity = self.identity(stat, self.export.mounts.index_of(stat)?);
        if identity.key == self.export.root.identity.key {
            return Some(Entry { node: NodeId::ROOT, attr: attr_of(stat) });
        }
        self.table.hit(&identity).map(|node| Entry { node, attr: self.attr(node, stat) })
    }

    /// Creates or finds the node of the file open as `location`, found in `parent` as `name`. With `keep` the
    /// node takes the descriptor, which must be an `O_PATH` descriptor; otherwise the descriptor is returned.
    /// `permit` is the permit for the node. Counts a look-up.
    pub(crate) fn adopt(
        &self,
        location: OwnedFd,
        keep: bool,
        stat: &Stat,
        permit: Permit,
        parent: NodeId,
        name: Option<Name<'_>>,
    ) -> Result<(Entry, Option<OwnedFd>)> {
        let mount_index = self.export.register_mount_of(location.as_fd(), stat)?;
        let identity = self.identity(stat, mount_index);
        if identity.key == self.export.root.identity.key {
            return Ok((Entry { node: NodeId::ROOT, attr: attr_of(stat) }, (!keep).then_some(location)));
        }
        let handles = self.export.mounts.mount(mount_index)?.handles;
        let anchor = match name {
            _ if handles && keep && identity.birth != 0 && !self.table.is_ambiguous(&identity.key) => {
                Anchor::None
            }
            _ if handles => Anchor::Handle(FileHandle::of(location.as_fd())?.0),
            Some(name) => Anchor::Name(Box::new((parent, name.to_owned()))),
            None => Anchor::None,
        };
        let (descriptor, opening) = match (keep, handles) {
            (true, _) => (Some(Arc::new(location)), None),
            (false, true) => (None, Some(location)),
            (false, false) => {
                let reopened =
                    self.export.own.reopen(location.as_fd(), OpenFlags::PATH | OpenFlags::NOFOLLOW)?;
                (Some(Arc::new(reopened)), Some(location))
            }
        };
        let place = descriptor.clone();
        let node = self.enter_node(identity, descriptor.as_ref(), anchor, permit);
        // The attributes are read again: changes made after the caller's stat and before the node existed
        // were not reported to this session.
        let again = match (self.notices.is_watched(), &place, &opening) {
            (true, Some(place), _) => Some(stat::stat(place.as_fd())?),
            (true, None, Some(opening)) => Some(stat::stat(opening.as_fd())?),
            _ => None,
        };
        Ok((Entry { node, attr: self.attr(node, again.as_ref().unwrap_or(stat)) }, opening))
    }

    /// Creates or finds the node of a file that is not open and can be opened by `handle`.
    pub(crate) fn adopt_by_handle(&self, stat: &Stat, mount_index: u32, handle: FileHandle) -> Result<Entry> {
        let permit = self.node_permit()?;
        let node = self.enter_node(self.identity(stat, mount_index), None, Anchor::Handle(handle), permit);
        Ok(Entry { node, attr: self.attr(node, stat) })
    }

    /// Takes a permit for one more node; [`Error::NoMemory`] if the session has reached its limit.
    pub(crate) fn node_permit(&self) -> Result<Permit> {
        self.budget.take(Resource::Nodes, 1).ok_or(Error::NoMemory)
    }

    fn enter_node(
        &self,
        identity: Identity,
        descriptor: Option<&Arc<OwnedFd>>,
        anchor: Anchor,
        permit: Permit,
    ) -> NodeId {
        let adopted = self.table.adopt(identity, descriptor, anchor);
        if let Ok(mount) = self.export.mounts.mount(identity.key.mount)
            && mount.device != identity.key.device
        {
            self.export.host_watch.met_volume(&self.export, &mount);
        }
        if adopted.is_new {
            // The permit is returned when the table frees the node.
            permit.keep();
        }
        if adopted.installed {
            self.opened(adopted.node);
        }
        adopted.node
    }

    /// Returns the node of a file without counting a look-up.
    pub(crate) fn node_of_stat(&self, stat: &Stat) -> Option<NodeId> {
        self.table.peek(&self.identity(stat, self.export.mounts.index_of(stat)?).key)
    }

    /// Gives a node a descriptor, unless it has one.
    pub(crate) fn give_descriptor(&self, node: NodeId, descriptor: &Arc<OwnedFd>) {
        if self.table.install(node, descriptor) {
            self.opened(node);
        }
    }

    /// Subtracts look-ups from a node. Returns the descriptor of a deleted file if closing it may free much
    /// space.
    pub(crate) fn forget_node(&self, node: NodeId, count: u64) -> Option<Arc<OwnedFd>> {
        if node == NodeId::ROOT {
            return None;
        }
        let mut slow = None;
        if let Some((descriptor, is_findable)) = self.table.last_descriptor(node, count) {
            // Remote files are not checked, because a stat of them is a round trip.
            let stat = self.is_local(node).then(|| stat::stat(descriptor.as_fd()).ok()).flatten();
            match stat.filter(|stat| stat.links == 0) {
                Some(stat) => slow = is_big(&stat).then_some(descriptor),
                // The client's kernel may have put the node's number into a file handle and look it up
                // again, so the handle is stored. A retained descriptor would keep the space of a file that
                // is deleted later.
                None if !is_findable => {
                    let handle = FileHandle::of(descriptor.as_fd());
                    handle.into_iter().for_each(|(handle, _)| self.table.remember_handle(node, handle));
                }
                None => {}
            }
        }
        self.freed(self.table.forget(node, count));
        slow
    }

    /// Returns freed nodes to the budget and closes their descriptors.
    pub(crate) fn freed(&self, freed: Freed) {
        if freed.nodes > 0 {
            self.budget.give_back(Resource::Nodes, freed.nodes);
        }
        self.clock.open.fetch_sub(freed.descriptors.len() as isize, Ordering::Relaxed);
        drop(freed.descriptors);
    }

    /// Returns the number of descriptors that the nodes of this session have open.
    pub(crate) fn open_places(&self) -> usize {
        usize::try_from(self.clock.open.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns `true` if both stats are of one file.
    pub(crate) fn is_same(&self, a: &Stat, b: &Stat) -> bool {
        a.mount == b.mount && self.identity(a, 0) == self.identity(b, 0)
    }

    pub(crate) fn identity(&self, stat: &Stat, mount: u32) -> Identity {
        let key = Key { inode: stat.inode, device: packed(stat.device), mount };
        Identity { key, birth: birth_ns(stat), kind: stat.kind() }
    }

    fn find_again(&self, node: NodeId, identity: Identity, anchor: Anchor) -> Result<Location> {
        match anchor {
            Anchor::Handle(handle) => {
                let mount = self.export.mounts.mount(identity.key.mount)?;
                let found = mount.find(&handle)?;
                // A node from a listing was never open, and its handle was fetched after its attributes, so
                // the identity of the file found is verified.
                if mount.handles_have_inodes
                    && self.identity(&stat::stat(found.as_fd())?, identity.key.mount) != identity
                {
                    return Err(Error::Stale);
                }
                Ok(self.install(node, identity, found))
            }
            Anchor::Name(location) => {
                self.walk_again(node, identity, location.0, location.1.as_name().as_bytes())
            }
            Anchor::None => Err(Error::Stale),
        }
    }

    /// Walks by name from the nearest ancestor with a descriptor, and verifies the identity at each step. The
    /// walk is not recursive, because the client determines the depth of directories.
    fn walk_again(&self, node: NodeId, identity: Identity, parent: NodeId, name: &[u8]) -> Result<Location> {
        let mut steps = vec![(node, identity, name.to_vec())];
        let mut next = parent;
        let mut location = loop {
            if next == NodeId::ROOT {
                break self.export.root.clone();
            }
            match self.table.find(next)? {
                NodeState::Open(identity, descriptor) => break Location::new(identity, descriptor),
                NodeState::Closed(identity, Anchor::Name(location)) => {
                    steps.push((next, identity, location.1.as_name().as_bytes().to_vec()));
                    next = location.0;
                }
                NodeState::Closed(identity, anchor) => break self.find_again(next, identity, anchor)?,
            }
        };
        while let Some((node, identity, name)) = steps.pop() {
            let opened = open_place(location.fd(), &name).map_err(gone)?;
            let now = self.identity(&stat::stat(opened.as_fd())?, identity.key.mount);
            if now != identity {
                return Err(Error::Stale);
            }
            location = self.install(node, identity, opened);
        }
        Ok(location)
    }

    fn install(&self, node: NodeId, identity: Identity, descriptor: OwnedFd) -> Location {
        let descriptor = Arc::new(descriptor);
        self.give_descriptor(node, &descriptor);
        Location::new(identity, descriptor)
    }

    /// Counts a node's new descriptor, and closes others above the limit.
    fn opened(&self, node: NodeId) {
        let open = self.clock.open.fetch_add(1, Ordering::Relaxed) + 1;
        let limit = self.export.descriptors_each();
        let mut round = lock(&self.clock.round);
        round.push_back(node);
        if round.len() > 2 * limit + 64 {
            // Most of the entries are of nodes without a descriptor.
            round.retain(|&node| self.table.is_open(node));
        }
        let mut excess = usize::try_from(open).unwrap_or(0).saturating_sub(limit);
        // Two rounds: the first may only clear the recently-used flags.
        let mut looks = 2 * round.len();
        let mut closed = Vec::new();
        while excess > 0 && looks > 0 {
            looks -= 1;
            let Some(candidate) = round.pop_front() else { break };
            match self.table.cool(candidate) {
                Cooled::NoDescriptor => {}
                Cooled::InUse => round.push_back(candidate),
                Cooled::Idle { descriptor, anchor, mount } => {
                    match self.anchor_once_closed(&descriptor, anchor, mount) {
                        Some(anchor) => {
                            closed.extend(self.table.close(candidate, anchor));
                            excess -= 1;
                        }
                        None => round.push_back(candidate),
                    }
                }
            }
        }
        drop(round);
        self.clock.open.fetch_sub(closed.len() as isize, Ordering::Relaxed);
    }

    /// Returns the anchor that a node has once its descriptor is closed; `None` if the node could not be
    /// found again without its descriptor.
    fn anchor_once_closed(&self, descriptor: &OwnedFd, anchor: Anchor, mount: u32) -> Option<Anchor> {
        let handles = || self.export.mounts.mount(mount).is_ok_and(|mount| mount.handles);
        match anchor {
            Anchor::None if handles() => {
                FileHandle::of(descriptor.as_fd()).ok().map(|(it, _)| Anchor::Handle(it))
            }
            Anchor::None => None,
            anchor => Some(anchor),
        }
    }
}

/// Maps errors that mean that a file is gone to [`Error::Stale`].
fn gone(errno: tombolo_sys::Errno) -> Error {
    match errno {
        tombolo_sys::Errno::NOENT | tombolo_sys::Errno::NOTDIR | tombolo_sys::Errno::LOOP => Error::Stale,
        errno => errno.into(),
    }
}
