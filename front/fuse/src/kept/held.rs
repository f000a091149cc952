//! Descriptors handed to the keeper for the next process: of openings with locks, and of open files without a
//! name.

use std::collections::{HashMap, HashSet, hash_map};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Attr, Descriptors, Entry, File, FileType, Lock, LockFamily, LockOwner, LockRange, Name, NodeId, OpenId,
    within,
};
use tombolo_core::{Answer, Ctx};
use tombolo_host_runtime::lock;
use tombolo_host_vhost::{FdKey, FdStore};

use super::Inner;
use super::area::{Number, Records};

/// Descriptors that the keeper holds, by the guest's numbers.
#[derive(Debug)]
pub(super) struct Held {
    store: Arc<FdStore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    openings: HashSet<OpenId>,
    /// Owners of record locks on each file, and the openings used to lock: the end of any of them ends all
    /// locks.
    owners: HashMap<(NodeId, LockOwner), Vec<OpenId>>,
    /// Owners whose locks are being released, and how many releases run concurrently.
    flushes: HashMap<(NodeId, LockOwner), usize>,
}

impl Held {
    pub(super) fn new(store: Arc<FdStore>) -> Self {
        Self { store, state: Mutex::default() }
    }

    /// Releases all descriptors.
    pub(super) fn clear(&self) {
        *lock(&self.state) = State::default();
        self.store.clear();
    }

    fn keep(&self, open: OpenId, owner: Option<LockOwner>, descriptor: &OwnedFd) -> bool {
        let outcome = self.store.keep(key_of(open, owner), descriptor.as_fd());
        if let Err(error) = &outcome {
            tracing::warn!(%error, "a guest's locks and open removed files will not survive a restart of this server");
        }
        outcome.is_ok()
    }

    /// Gives the keeper the descriptor of an owner's current record locks on a file, if there are any.
    fn keep_records(
        &self,
        state: &mut State,
        descriptors: &dyn Descriptors,
        here: File,
        (node, owner): (NodeId, LockOwner),
    ) {
        let through = state.owners.get(&(node, owner));
        let Some(&first) = through.and_then(|through| through.first()) else { return };
        let descriptor = descriptors.of_records(here, owner).ok().flatten();
        if !descriptor.is_some_and(|descriptor| self.keep(first, Some(owner), &descriptor)) {
            state.owners.remove(&(node, owner));
            self.store.let_go(key_of(first, Some(owner)));
        }
    }
}

/// A release of an owner's record locks; in progress until dropped.
pub(super) struct Flush {
    kept: Arc<Inner>,
    node: NodeId,
    owner: LockOwner,
}

impl Flush {
    /// Completes the release. If the owner has locked again meanwhile, the keeper gets the new descriptor.
    pub(super) fn ended(self, here: File) {
        let (Some(held), Some(descriptors)) = (&self.kept.held, self.kept.below.descriptors()) else {
            return;
        };
        held.keep_records(&mut lock(&held.state), descriptors, here, (self.node, self.owner));
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let Some(held) = &self.kept.held else { return };
        if let hash_map::Entry::Occupied(mut flushes) =
            lock(&held.state).flushes.entry((self.node, self.owner))
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
    kept: Arc<Inner>,
    cx: Ctx,
    /// The node with that name; `None` if unknown, so that it may be any.
    node: Option<NodeId>,
    /// The node's attributes.
    pub(super) found: Option<Arc<Attr>>,
}

impl Removal {
    /// Records the node that was found and returns its openings; openings made from now on see the removal.
    fn found(&mut self, entry: &Entry) -> Vec<OpenId> {
        self.found = Some(Arc::new(entry.attr));
        let mut table = self.kept.table();
        table.removes(Some(entry.node));
        table.removed(self.node.replace(entry.node));
        match entry.attr.file_type {
            FileType::Regular => table.openings_of(&self.kept.area, entry.node),
            _ => Vec::new(),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if self.kept.held.is_none() {
            return;
        }
        self.kept.table().removed(self.node);
        // The look-up that found the node.
        self.node.into_iter().for_each(|node| self.kept.forget(&self.cx, &[(node, 1)]));
    }
}

impl Inner {
    /// Gives the keeper the descriptor of an opening. An opening that cannot be given loses its locks with
    /// the process.
    pub(super) fn hold(&self, open: OpenId, here: File) {
        let (Some(held), Some(descriptors)) = (&self.held, self.below.descriptors()) else { return };
        let mut state = lock(&held.state);
        // Nothing would release an opening that has ended meanwhile.
        if self.openings.here(Number(open.0)).is_some()
            && !state.openings.contains(&open)
            && let Ok(descriptor) = descriptors.of_opening(here)
            && held.keep(open, None, &descriptor)
        {
            state.openings.insert(open);
        }
    }

    /// Gives the keeper the descriptor of a lock, taken through `file`.
    pub(super) fn hold_lock(&self, file: File, here: File, taken: &Lock) {
        self.hold(file.open, here);
        let (Some(held), Some(descriptors)) = (&self.held, self.below.descriptors()) else { return };
        if taken.family == LockFamily::Flock {
            return;
        }
        let mut state = lock(&held.state);
        let key = (file.node, taken.owner);
        // The keeper's descriptor may be from before the flush.
        let is_flushed = state.flushes.contains_key(&key);
        let through = state.owners.entry(key).or_default();
        let is_first = through.is_empty();
        if !through.contains(&file.open) {
            through.push(file.open);
        }
        if is_first || is_flushed {
            held.keep_records(&mut state, descriptors, here, key);
        }
    }

    /// Begins the release of the owner's record locks on the file.
    pub(super) fn flushes(self: &Arc<Self>, node: NodeId, owner: LockOwner) -> Option<Flush> {
        let held = self.held.as_ref()?;
        *lock(&held.state).flushes.entry((node, owner)).or_default() += 1;
        Some(Flush { kept: Arc::clone(self), node, owner })
    }

    /// Releases the descriptors of an ended opening, and its flock at once, which the keeper's duplicate
    /// would hold a moment longer.
    pub(super) fn let_go(&self, cx: &Ctx, open: OpenId, here: Option<File>) {
        let Some(held) = &self.held else { return };
        let mut state = lock(&held.state);
        let was_held = state.openings.remove(&open);
        let owners = state.owners.extract_if(|_, through| through.contains(&open));
        let keys = owners.filter_map(|((_, owner), through)| Some(key_of(*through.first()?, Some(owner))));
        keys.for_each(|key| held.store.let_go(key));
        drop(state);
        if !was_held {
            return;
        }
        if let Some(here) = here {
            let cx = Ctx { key: None, ..cx.clone() };
            let unlock = within(self.below.locks(), |locks| {
                locks.unlock(&cx, here, LockFamily::Flock, LockRange::ALL, LockOwner(0))
            });
            drop(unlock);
        }
        held.store.let_go(key_of(open, None));
    }

    /// Gives the keeper the openings of a file before one of its names is removed, and returns the attributes
    /// found. Also for files with several names, which may be removed at the same time.
    pub(super) fn before_removal(
        self: &Arc<Self>,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
    ) -> Answer<Removal> {
        let mut removal = Removal { kept: Arc::clone(self), cx: cx.beside(), node: None, found: None };
        if self.held.is_none() {
            return Answer::ok(removal);
        }
        let has_openings = self.table().removes(None);
        if !has_openings {
            return Answer::ok(removal);
        }
        let (kept, cx) = (Arc::clone(self), removal.cx.clone());
        let found = self.below.lookup(&cx.clone(), parent, name).then(move |entry| kept.adopt(&cx, entry));
        // The removal will fail with the same error.
        found.map_result(Ok).then(move |entry| {
            let Ok(entry) = entry else { return Answer::ok(removal) };
            let openings = removal.found(&entry);
            let kept = Arc::clone(&removal.kept);
            let is_here = |open: &OpenId| kept.openings.here(Number(open.0)).is_some();
            if openings.iter().all(is_here) {
                kept.hold_all(entry.node, &openings);
                return Answer::ok(removal);
            }
            Answer::later(async move {
                for open in &openings {
                    kept.find_opening(&removal.cx, *open).await;
                }
                kept.hold_all(entry.node, &openings);
                Ok(removal)
            })
        })
    }

    fn hold_all(&self, node: NodeId, openings: &[OpenId]) {
        for &open in openings {
            if let Ok(here) = self.file(File { node, open }) {
                self.hold(open, here);
            }
        }
    }

    /// Gives the keeper a registered but unanswered opening of a file without a name: a concurrent removal
    /// may have looked before it was registered, and a completed one may have removed the last name.
    pub(super) fn hold_nameless(self: &Arc<Self>, cx: &Ctx, file: File) -> Answer<()> {
        let here = match self.file(file) {
            Ok(here) if self.held.is_some() => here,
            _ => return Answer::ok(()),
        };
        if self.table().is_removed(file.node) {
            self.hold(file.open, here);
            return Answer::ok(());
        }
        let kept = Arc::clone(self);
        self.below.getattr(&cx.beside(), here.node, Some(here)).map_result(move |attr| {
            if attr.is_ok_and(|attr| attr.nlink == 0) {
                kept.hold(file.open, here);
            }
            Ok(())
        })
    }

    /// Restores the descriptors that the keeper held when an earlier process died.
    pub(super) fn take_back(&self, cx: &Ctx) {
        let Some(held) = &self.held else { return };
        let found = held.store.take_found();
        if !self.is_resumed {
            return held.store.clear();
        }
        let (records, openings): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(key, _)| key.owner.is_some());
        for (key, descriptor) in openings.into_iter().chain(records) {
            let open = OpenId(key.number);
            let taken = match key.owner.map(LockOwner) {
                None => self.take_opening(cx, held, open, descriptor),
                Some(owner) => self.take_records(held, open, owner, descriptor),
            };
            if taken.is_none() {
                held.store.let_go(key);
            }
        }
    }

    fn take_opening(&self, cx: &Ctx, held: &Held, open: OpenId, descriptor: OwnedFd) -> Option<()> {
        let number = Number(open.0);
        let opening = self.area.opening(self.area.find(Records::Openings, number)?);
        let node = self.area.node_handle(self.area.find(Records::Nodes, Number(opening.node.0))?)?;
        let opened = self.below.descriptors()?.opening(cx, &node, descriptor, opening.flags);
        let (here, open_here) = opened.ok()?;
        let is_news = self.table().found(&self.area, &self.nodes, Number(opening.node.0), here);
        if !is_news {
            self.give_back(cx, here);
        }
        let is_it = self.node(opening.node).is_ok_and(|node| node == here);
        if !is_it || !self.table().reopened(&self.area, &self.openings, number, open_here) {
            self.below.release(cx, File { node: here, open: open_here });
            return None;
        }
        lock(&held.state).openings.insert(open);
        Some(())
    }

    fn take_records(&self, held: &Held, open: OpenId, owner: LockOwner, descriptor: OwnedFd) -> Option<()> {
        let node = self.area.opening(self.area.find(Records::Openings, Number(open.0))?).node;
        let here = self.file(File { node, open }).ok()?;
        self.below.descriptors()?.records(here, owner, descriptor).ok()?;
        lock(&held.state).owners.insert((node, owner), vec![open]);
        Some(())
    }
}
