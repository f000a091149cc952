//! Descriptors handed to the keeper for the next process: of openings with locks, and of open files that have
//! no name or are about to lose one.

use std::collections::{HashMap, HashSet, hash_map};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Attr, Descriptors, Entry, File, FileType, Lock, LockFamily, LockOwner, LockRange, Name, NodeId, OpenId,
    within,
};
use tombolo_core::{Answer, Ctx, lock};
use tombolo_host_vhost::{FdKey, FdStore};

use super::Inner;
use super::area::{Number, Records};

/// Descriptors that the keeper holds, by the guest's numbers.
#[derive(Debug)]
pub(super) struct StoredDescriptors {
    store: Arc<FdStore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    openings: HashSet<OpenId>,
    /// Owners of record locks on each file, and the openings used to lock: closing any of these releases all
    /// of the owner's locks.
    owners: HashMap<(NodeId, LockOwner), Vec<OpenId>>,
    /// Owners whose locks are being released, and how many releases run concurrently.
    flushes: HashMap<(NodeId, LockOwner), usize>,
}

impl StoredDescriptors {
    pub(super) fn new(store: Arc<FdStore>) -> Self {
        Self { store, state: Mutex::default() }
    }

    /// Makes the keeper release all descriptors.
    pub(super) fn clear(&self) {
        *lock(&self.state) = State::default();
        self.store.clear();
    }

    fn keep(&self, open: OpenId, owner: Option<LockOwner>, descriptor: &OwnedFd) -> bool {
        let outcome = self.store.put(key_of(open, owner), descriptor.as_fd());
        if let Err(error) = &outcome {
            tracing::warn!(%error, "a guest's locks and open removed files will not survive a restart of this server");
        }
        outcome.is_ok()
    }

    /// Sends the keeper the descriptor of an owner's current record locks on a file, if the owner has any.
    fn keep_records(
        &self,
        state: &mut State,
        descriptors: &dyn Descriptors,
        local: File,
        (node, owner): (NodeId, LockOwner),
    ) {
        let through = state.owners.get(&(node, owner));
        let Some(&first) = through.and_then(|through| through.first()) else { return };
        let descriptor = descriptors.of_records(local, owner).ok().flatten();
        if !descriptor.is_some_and(|descriptor| self.keep(first, Some(owner), &descriptor)) {
            state.owners.remove(&(node, owner));
            self.store.release(key_of(first, Some(owner)));
        }
    }
}

/// A release of an owner's record locks; in progress until dropped.
pub(super) struct Flush {
    inner: Arc<Inner>,
    node: NodeId,
    owner: LockOwner,
}

impl Flush {
    /// Completes the release. If the owner has locked again meanwhile, the keeper gets the new descriptor.
    pub(super) fn ended(self, local: File) {
        let (Some(stored), Some(descriptors)) = (&self.inner.stored, self.inner.below.descriptors()) else {
            return;
        };
        stored.keep_records(&mut lock(&stored.state), descriptors, local, (self.node, self.owner));
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let Some(stored) = &self.inner.stored else { return };
        if let hash_map::Entry::Occupied(mut flushes) =
            lock(&stored.state).flushes.entry((self.node, self.owner))
        {
            *flushes.get_mut() -= 1;
            if *flushes.get() == 0 {
                flushes.remove();
            }
        }
    }
}

fn key_of(open: OpenId, owner: Option<LockOwner>) -> FdKey {
    FdKey { number: open.0, owner: owner.map(|owner| owner.0) }
}

/// A removal of a name; in progress until dropped.
pub(super) struct Removal {
    inner: Arc<Inner>,
    cx: Ctx,
    /// The node with that name; `None` while unknown: then any node may be concerned.
    node: Option<NodeId>,
    /// The node's attributes, for the removal; `None` if the node was not looked up.
    pub(super) found: Option<Arc<Attr>>,
}

impl Removal {
    /// Records the node about to lose a name and returns its openings if it is a regular file. Openings made
    /// from now on find the removal.
    fn found(&mut self, entry: &Entry) -> Vec<OpenId> {
        self.found = Some(Arc::new(entry.attr));
        let mut table = self.inner.table();
        table.removes(Some(entry.node));
        table.removed(self.node.replace(entry.node));
        match entry.attr.file_type {
            FileType::Regular => table.openings_of(&self.inner.area, entry.node),
            _ => Vec::new(),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if self.inner.stored.is_none() {
            return;
        }
        self.inner.table().removed(self.node);
        // The look-up that found the node is forgotten.
        self.node.into_iter().for_each(|node| self.inner.forget(&self.cx, &[(node, 1)]));
    }
}

impl Inner {
    /// Sends the keeper the descriptor of an opening. An opening whose descriptor cannot be sent loses its
    /// locks, or its file without a name, with the process.
    pub(super) fn store_opening(&self, open: OpenId, local: File) {
        let (Some(stored), Some(descriptors)) = (&self.stored, self.below.descriptors()) else { return };
        let mut state = lock(&stored.state);
        if self.is_open(open)
            && !state.openings.contains(&open)
            && let Ok(descriptor) = descriptors.of_opening(local)
            && stored.keep(open, None, &descriptor)
        {
            state.openings.insert(open);
        }
    }

    /// Returns `true` unless the opening or the session has ended: the keeper would never release a
    /// descriptor sent after that. To be called under the lock of `state`, under which the descriptors of an
    /// opening are released once it has ended.
    fn is_open(&self, open: OpenId) -> bool {
        self.openings.local(Number(open.0)).is_some()
    }

    /// Gives the keeper the descriptor of a lock, taken through `file`.
    pub(super) fn store_lock(&self, file: File, local: File, taken: &Lock) {
        self.store_opening(file.open, local);
        let (Some(stored), Some(descriptors)) = (&self.stored, self.below.descriptors()) else { return };
        if taken.family == LockFamily::Flock {
            return;
        }
        let mut state = lock(&stored.state);
        if !self.is_open(file.open) {
            return;
        }
        let key = (file.node, taken.owner);
        // A release of the owner's locks is in progress: the keeper's descriptor may be from before it.
        let is_flushed = state.flushes.contains_key(&key);
        let through = state.owners.entry(key).or_default();
        let is_first = through.is_empty();
        if !through.contains(&file.open) {
            through.push(file.open);
        }
        if is_first || is_flushed {
            stored.keep_records(&mut state, descriptors, local, key);
        }
    }

    /// Begins the release of an owner's record locks on a file; `None` if no descriptors are kept.
    pub(super) fn flushes(self: &Arc<Self>, node: NodeId, owner: LockOwner) -> Option<Flush> {
        let stored = self.stored.as_ref()?;
        *lock(&stored.state).flushes.entry((node, owner)).or_default() += 1;
        Some(Flush { inner: Arc::clone(self), node, owner })
    }

    /// Releases the descriptors of an ended opening. Its flock is released explicitly, because the keeper's
    /// duplicate descriptor would hold it a moment longer.
    pub(super) fn release_descriptors(&self, cx: &Ctx, open: OpenId, local: Option<File>) {
        let Some(stored) = &self.stored else { return };
        let mut state = lock(&stored.state);
        let was_held = state.openings.remove(&open);
        let owners = state.owners.extract_if(|_, through| through.contains(&open));
        let keys = owners.filter_map(|((_, owner), through)| Some(key_of(*through.first()?, Some(owner))));
        keys.for_each(|key| stored.store.release(key));
        drop(state);
        if !was_held {
            return;
        }
        if let Some(local) = local {
            let cx = Ctx { key: None, ..cx.clone() };
            let unlock = within(self.below.locks(), |locks| {
                locks.unlock(&cx, local, LockFamily::Flock, LockRange::ALL, LockOwner(0))
            });
            drop(unlock);
        }
        stored.store.release(key_of(open, None));
    }

    /// Gives the keeper the openings of a file before one of its names is removed, and returns the removal
    /// with the attributes found. Files with several names are included, since all names may be removed at
    /// the same time.
    pub(super) fn before_removal(
        self: &Arc<Self>,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
    ) -> Answer<Removal> {
        let mut removal = Removal { inner: Arc::clone(self), cx: cx.beside(), node: None, found: None };
        if self.stored.is_none() {
            return Answer::ok(removal);
        }
        let has_openings = self.table().removes(None);
        if !has_openings {
            return Answer::ok(removal);
        }
        let (inner, cx) = (Arc::clone(self), removal.cx.clone());
        let found = self.below.lookup(&cx.clone(), parent, name).then(move |entry| inner.adopt(&cx, entry));
        // The removal itself reports an error if the name cannot be looked up.
        found.map_result(Ok).then(move |entry| {
            let Ok(entry) = entry else { return Answer::ok(removal) };
            let openings = removal.found(&entry);
            let inner = Arc::clone(&removal.inner);
            let is_local = |open: &OpenId| inner.openings.local(Number(open.0)).is_some();
            if openings.iter().all(is_local) {
                inner.store_all(entry.node, &openings);
                return Answer::ok(removal);
            }
            Answer::later(async move {
                for open in &openings {
                    inner.find_opening(&removal.cx, *open).await;
                }
                inner.store_all(entry.node, &openings);
                Ok(removal)
            })
        })
    }

    fn store_all(&self, node: NodeId, openings: &[OpenId]) {
        for &open in openings {
            if let Ok(local) = self.file(File { node, open }) {
                self.store_opening(open, local);
            }
        }
    }

    /// Sends the keeper a registered but unanswered opening of a file without a name, or about to lose one: a
    /// removal may have listed the file's openings before this one was registered.
    pub(super) fn store_nameless(self: &Arc<Self>, cx: &Ctx, file: File) -> Answer<()> {
        let local = match self.file(file) {
            Ok(local) if self.stored.is_some() => local,
            _ => return Answer::ok(()),
        };
        if self.table().may_lose_name(file.node) {
            self.store_opening(file.open, local);
            return Answer::ok(());
        }
        let inner = Arc::clone(self);
        self.below.getattr(&cx.beside(), local.node, Some(local)).map_result(move |attr| {
            if attr.is_ok_and(|attr| attr.nlink == 0) {
                inner.store_opening(file.open, local);
            }
            Ok(())
        })
    }

    /// Restores the descriptors that the keeper held when an earlier process died. Releases them if this
    /// process began the session.
    pub(super) fn restore(&self, cx: &Ctx) {
        let Some(stored) = &self.stored else { return };
        let found = stored.store.take_stored();
        if !self.is_resumed {
            return stored.store.clear();
        }
        let (records, openings): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(key, _)| key.owner.is_some());
        for (key, descriptor) in openings.into_iter().chain(records) {
            let open = OpenId(key.number);
            let taken = match key.owner.map(LockOwner) {
                None => self.take_opening(cx, stored, open, descriptor),
                Some(owner) => self.take_records(stored, open, owner, descriptor),
            };
            if taken.is_none() {
                stored.store.release(key);
            }
        }
    }

    fn take_opening(
        &self,
        cx: &Ctx,
        stored: &StoredDescriptors,
        open: OpenId,
        descriptor: OwnedFd,
    ) -> Option<()> {
        let number = Number(open.0);
        let opening = self.area.opening(self.area.find(Records::Openings, number)?);
        let node = self.area.node_handle(self.area.find(Records::Nodes, Number(opening.node.0))?)?;
        let opened = self.below.descriptors()?.opening(cx, &node, descriptor, opening.flags);
        let (local, open_here) = opened.ok()?;
        let is_needed = self.table().recovered(&self.area, &self.nodes, Number(opening.node.0), local);
        if !is_needed {
            self.give_back(cx, local);
        }
        let is_it = self.node(opening.node).is_ok_and(|node| node == local);
        if !is_it || !self.table().reopened(&self.area, &self.openings, number, open_here) {
            self.below.release(cx, File { node: local, open: open_here });
            return None;
        }
        lock(&stored.state).openings.insert(open);
        Some(())
    }

    fn take_records(
        &self,
        stored: &StoredDescriptors,
        open: OpenId,
        owner: LockOwner,
        descriptor: OwnedFd,
    ) -> Option<()> {
        let node = self.area.opening(self.area.find(Records::Openings, Number(open.0))?).node;
        let local = self.file(File { node, open }).ok()?;
        self.below.descriptors()?.records(local, owner, descriptor).ok()?;
        lock(&stored.state).owners.insert((node, owner), vec![open]);
        Some(())
    }
}
