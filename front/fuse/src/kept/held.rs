//! What the keeper holds for the next process: openings through which something is locked, and those of files
//! that have no name any more.

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

/// All by the guest's numbers.
#[derive(Debug)]
pub(super) struct Held {
    store: Arc<FdStore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    openings: HashSet<OpenId>,
    /// The owners of record locks on each file, and the openings through which they were asked for: with one
    /// of them they all end.
    owners: HashMap<(NodeId, LockOwner), Vec<OpenId>>,
    /// Owners whose locks are being ended, and how often at once.
    flushes: HashMap<(NodeId, LockOwner), usize>,
}

impl Held {
    pub(super) fn new(store: Arc<FdStore>) -> Self {
        Self { store, state: Mutex::default() }
    }

    /// All that is held goes.
    pub(super) fn clear(&self) {
        *lock(&self.state) = State::default();
        self.store.clear();
    }

    fn keep(&self, open: OpenId, owner: Option<LockOwner>, descriptor: &OwnedFd) -> bool {
        let outcome = self.store.keep(key_of(open, owner), descriptor.as_fd());
        if let Err(error) = &outcome {
            tracing::warn!(%error, "what a guest has locked, or removed while it is open, ends with this server");
        }
        outcome.is_ok()
    }

    /// Has the keeper hold what an owner's record locks on a file are held by now, if there are any.
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

/// The record locks of an owner are being ended, until this is dropped.
pub(super) struct Flush {
    kept: Arc<Inner>,
    node: NodeId,
    owner: LockOwner,
}

impl Flush {
    /// They have ended. Of what was locked since, the keeper gets the descriptor anew.
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

/// A name is being taken away, until this is dropped.
pub(super) struct Removal {
    kept: Arc<Inner>,
    cx: Ctx,
    /// Whose name; `None` where it is not known, so that it may be any.
    node: Option<NodeId>,
    /// What was found there.
    pub(super) found: Option<Arc<Attr>>,
}

impl Removal {
    /// The openings of what was found, and from now on they are told of it.
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
        // The look-up by which the node was found.
        self.node.into_iter().for_each(|node| self.kept.forget(&self.cx, &[(node, 1)]));
    }
}

impl Inner {
    /// Has an opening outlive the process. One that cannot is as any other: what it has locked ends with the
    /// process.
    pub(super) fn hold(&self, open: OpenId, here: File) {
        let (Some(held), Some(descriptors)) = (&self.held, self.below.descriptors()) else { return };
        let mut state = lock(&held.state);
        // One that has ended meanwhile is let go by no other.
        if self.openings.here(Number(open.0)).is_some()
            && !state.openings.contains(&open)
            && let Ok(descriptor) = descriptors.of_opening(here)
            && held.keep(open, None, &descriptor)
        {
            state.openings.insert(open);
        }
    }

    /// Has a lock outlive it, which was taken through that opening.
    pub(super) fn hold_lock(&self, file: File, here: File, taken: &Lock) {
        self.hold(file.open, here);
        let (Some(held), Some(descriptors)) = (&self.held, self.below.descriptors()) else { return };
        if taken.family == LockFamily::Flock {
            return;
        }
        let mut state = lock(&held.state);
        let key = (file.node, taken.owner);
        // What the keeper has may be of before the flush.
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

    /// The owner's record locks on the file are about to end.
    pub(super) fn flushes(self: &Arc<Self>, node: NodeId, owner: LockOwner) -> Option<Flush> {
        let held = self.held.as_ref()?;
        *lock(&held.state).flushes.entry((node, owner)).or_default() += 1;
        Some(Flush { kept: Arc::clone(self), node, owner })
    }

    /// An opening has ended. The keeper would hold its lock a moment longer.
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

    /// Before a name goes: has the openings of its file outlive the process, and says what was found there.
    /// Also where the file has other names: they may go at the same time.
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
        // What goes wrong goes wrong again when the name is to go, and is told then.
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

    /// After an opening was entered, before it is answered: a removal that is under way may have looked
    /// before, and one that has ended has perhaps taken the file's last name.
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

    /// What the keeper has held over the death of an earlier process.
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
