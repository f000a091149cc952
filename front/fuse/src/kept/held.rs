//! What the keeper holds for the next process: openings through which something is locked, and those of files that have no name any more.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Attr, File, FileType, Lock, LockFamily, LockOwner, LockRange, Name, NodeId, OpenId, within,
};
use tombolo_core::{Answer, Ctx, Identity, Want};
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
    /// Who has record locks on which file, and the openings through which they were asked for: with one of them they all end.
    owners: HashMap<(NodeId, LockOwner), Vec<OpenId>>,
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
}

fn key_of(open: OpenId, owner: Option<LockOwner>) -> FdKey {
    FdKey { number: open.0, owner: owner.map(|owner| owner.0) }
}

impl Inner {
    /// Has an opening outlive the process. One that cannot is as any other: what it has locked ends with the process.
    pub(super) fn hold(&self, open: OpenId, here: File) {
        let (Some(held), Some(descriptors)) = (&self.held, self.below.descriptors()) else { return };
        let mut state = lock(&held.state);
        if !state.openings.contains(&open)
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
        let through = state.owners.entry((file.node, taken.owner)).or_default();
        if !through.is_empty() {
            if !through.contains(&file.open) {
                through.push(file.open);
            }
            return;
        }
        if let Ok(Some(descriptor)) = descriptors.of_records(here, taken.owner)
            && held.keep(file.open, Some(taken.owner), &descriptor)
        {
            through.push(file.open);
        } else {
            state.owners.remove(&(file.node, taken.owner));
        }
    }

    /// The owner has no record locks on the file any more.
    pub(super) fn flushed(&self, node: NodeId, owner: LockOwner) {
        let Some(held) = &self.held else { return };
        let through = lock(&held.state).owners.remove(&(node, owner));
        if let Some(first) = through.as_ref().and_then(|through| through.first()) {
            held.store.let_go(key_of(*first, Some(owner)));
        }
    }

    /// An opening has ended. The keeper would hold its lock a moment longer.
    pub(super) fn let_go(&self, cx: &Ctx, open: OpenId, here: Option<File>) {
        let Some(held) = &self.held else { return };
        let mut state = lock(&held.state);
        if !state.openings.remove(&open) {
            return;
        }
        let owners = state.owners.extract_if(|_, through| through.contains(&open));
        let keys = owners.filter_map(|((_, owner), through)| Some(key_of(*through.first()?, Some(owner))));
        keys.for_each(|key| held.store.let_go(key));
        drop(state);
        if let Some(here) = here {
            let cx = Ctx { key: None, ..cx.clone() };
            let unlock = within(self.below.locks(), |locks| {
                locks.unlock(&cx, here, LockFamily::Flock, LockRange::ALL, LockOwner(0))
            });
            drop(unlock);
        }
        held.store.let_go(key_of(open, None));
    }

    /// Before a name goes: has the openings of its file outlive the process, if it is the last one. What was found there.
    pub(super) fn before_removal(
        self: &Arc<Self>,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
    ) -> Answer<Option<Arc<Attr>>> {
        if self.held.is_none() || !self.table().has_openings() {
            return Answer::ok(None);
        }
        let cx = Ctx { identity: Identity::ROOT, key: None, want: Want::empty(), ..cx.clone() };
        let kept = Arc::clone(self);
        let cx_then = cx.clone();
        let found = self.below.lookup(&cx, parent, name).then(move |entry| kept.adopt(&cx_then, entry));
        let kept = Arc::clone(self);
        let answer = found.then(move |entry| {
            let is_last = entry.attr.nlink == 1 && entry.attr.file_type == FileType::Regular;
            let openings =
                if is_last { kept.table().openings_of(&kept.area, entry.node) } else { Vec::new() };
            let is_here = |open: &OpenId| kept.openings.here(Number(open.0)).is_some();
            if openings.iter().all(is_here) {
                kept.hold_all(&cx, entry.node, &openings);
                return Answer::ok(Some(Arc::new(entry.attr)));
            }
            Answer::later(async move {
                for open in &openings {
                    kept.find_opening(&cx, *open).await;
                }
                kept.hold_all(&cx, entry.node, &openings);
                Ok(Some(Arc::new(entry.attr)))
            })
        });
        // What goes wrong goes wrong again when the name is to go, and is told then.
        answer.map_result(|found| Ok(found.unwrap_or_default()))
    }

    /// And gives the look-up back by which the node was found.
    fn hold_all(&self, cx: &Ctx, node: NodeId, openings: &[OpenId]) {
        for &open in openings {
            if let Ok(here) = self.file(File { node, open }) {
                self.hold(open, here);
            }
        }
        self.forget(cx, &[(node, 1)]);
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
