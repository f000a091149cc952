//! Names: the differences between local names and those at the origin become renames, links and removals at
//! the origin, in an order in which no file loses its only name.
//!
//! A name is added once its node's data are committed, and once it is free or leads to a file to be removed,
//! which a rename replaces. Nodes that wait for each other's names, and nodes that no rename can replace,
//! move to a hidden name in the root first. Removals are performed last.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{FileType, NodeId, RenameFlags};
use tombolo_core::{Error, Identity, Result, lock};

use super::attributes::is_refusal;
use super::conflicts;
use super::plan::Key;
use super::round::{Round, WAITS};
use super::times::Times;
use crate::tree::{Target, is_hidden};

/// One operation on names at the origin, and the user who made the change.
#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    target: Target,
    user: Identity,
}

#[derive(Clone, Debug)]
enum Kind {
    Rename {
        from: Key,
        to: Key,
    },
    /// A rename to a hidden name.
    Hide {
        from: Key,
        to: Key,
    },
    Link {
        to: Key,
    },
    Remove {
        from: Key,
    },
}

/// Outcome of an operation on names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Performed {
    Done,
    /// Another writer's version stays.
    GaveWay,
    /// EINVAL for a directory: the rename might move it into itself, unless others are renamed first.
    MayLoop,
    Refused,
    Failed,
}

/// Names that differ, and the progress of operations on these names.
struct Names<'a> {
    round: &'a Arc<Round>,
    /// Target of each name at the origin; `None` if the name is free.
    holders: BTreeMap<Key, Option<Target>>,
    /// Directories whose last rename failed with EINVAL: another one in their way may have to move first.
    stuck: HashSet<NodeId>,
    /// Nodes for which no further operation is tried.
    failed: HashSet<NodeId>,
    /// Names that the origin has refused to change.
    refused: HashSet<Key>,
    /// Names that the origin has refused to create as links. A rename may still be accepted.
    refused_links: HashSet<Key>,
    /// Names that nodes had before this round gave them hidden names.
    hidden: BTreeMap<NodeId, Key>,
    times: Times,
}

/// Names to remove from and to add to nodes.
#[derive(Default)]
struct Moves {
    /// Names that each node is to lose.
    from: BTreeMap<NodeId, Vec<Key>>,
    /// Names that each node is to get.
    to: BTreeMap<NodeId, Vec<Key>>,
}

impl Round {
    /// Makes the names at the origin equal the local ones.
    pub(super) fn send_names(self: &Arc<Self>) {
        let unknown = self.look_at_names();
        let mut names = Names::new(self, &unknown);
        while !self.is_over() {
            let ops = match names.next() {
                ops if !ops.is_empty() => ops,
                _ => names.unblock().into_iter().collect(),
            };
            if ops.is_empty() || !names.perform(ops) {
                break;
            }
        }
        names.give_up_the_rest();
        names.unhide();
        while !self.is_over() {
            let ops = names.removals();
            if ops.is_empty() || !names.perform(ops) {
                break;
            }
        }
        // The nodes of the remaining moves stay different, so their local attributes are shown.
        let Moves { from, to } = names.moves();
        self.keep_links(from.values().chain(to.values()).flatten());
        self.found().undone.extend(from.into_keys().chain(to.into_keys()));
        names.times.restore(self);
    }

    /// Looks up names that are about to be added or removed, except hidden ones and those in new directories.
    /// Returns those that another writer may have changed, or that the origin refuses to look up: this round
    /// leaves them alone.
    fn look_at_names(self: &Arc<Self>) -> HashSet<Key> {
        let is_old = |key: &Key| {
            let dir = self.plan.nodes.get(&key.0);
            !is_hidden(&key.1) && dir.is_none_or(|dir| dir.home.is_none()) && self.below(key.0).is_ok()
        };
        let old: Vec<Key> = self.plan.names.keys().filter(|key| is_old(key)).cloned().collect();
        let before: HashMap<Key, NodeId> = {
            let tree = self.shared.tree();
            let before = |key: &Key| Some((key.clone(), tree.place(key.0, &key.1)?.at_origin?.node));
            old.iter().filter_map(before).collect()
        };
        let (mut unknown, refused) = self.look_at(old);
        for key in unknown.iter().chain(&refused) {
            let wanted = self.plan.names.get(key).and_then(|wanted| wanted.target);
            let wanted = wanted.map(|target| target.node);
            let nodes = [wanted, before.get(key).copied()].into_iter().flatten();
            match refused.contains(key) {
                true => self.found().undone.extend(nodes),
                false => self.put_off(nodes.chain([key.0])),
            }
        }
        unknown.extend(refused);
        unknown
    }

    /// Retains the local link count of directories with names that the origin lacks.
    fn keep_links<'a>(&self, undone: impl Iterator<Item = &'a Key>) {
        let missing = self.plan.directories().filter(|chosen| self.below(chosen.id).is_err());
        let homes = missing.filter_map(|chosen| Some(chosen.home.as_ref()?.0));
        self.found().links_differ.extend(undone.map(|key| key.0).chain(homes));
    }

    /// Adopts another writer's change if that made an operation impossible; otherwise returns `error`.
    async fn give_way(&self, op: &Op, error: Error) -> Result<()> {
        let (id, is_directory) = (op.target.node, op.target.file_type == FileType::Directory);
        match (&op.kind, &error) {
            (Kind::Remove { from }, Error::NotEmpty) if !self.has_own_names(id) => {
                let cx = self.cx(Identity::ROOT);
                let attr = self.shared.below.getattr(&cx, self.below(id)?, None).resolve().await?;
                self.yield_to_another(id, |tree| conflicts::bring_back(tree, op.target, from, &attr))
            }
            (Kind::Link { to }, _)
                if !is_hidden(&to.1) && (is_directory || matches!(error, Error::Stale | Error::NotFound)) =>
            {
                self.yield_to_another(id, |tree| conflicts::give_up(tree, id, to))
            }
            _ => Err(error),
        }
    }

    /// Returns `true` if a directory at the origin may contain names of this layer.
    fn has_own_names(&self, dir: NodeId) -> bool {
        let tree = self.shared.tree();
        let mut places = tree.names.get(&dir).into_iter().flatten();
        places.any(|(_, place)| place.at_origin.is_some())
            || self.found().in_doubt.iter().any(|key| key.0 == dir)
    }

    /// Records a name in the journal before it is created if it is hidden, so that it is found after a crash.
    async fn write_down(&self, op: &Op, to: &Key) -> Result<()> {
        if !is_hidden(&to.1) {
            return Ok(());
        }
        let (_, ticket) = self.shared.note(|tree| tree.set_below(to.0, &to.1, Some(op.target)));
        self.shared.journal.stable(ticket).await
    }

    /// Returns the kind of an operation's failure. Records the failure, unless it is [`Performed::MayLoop`].
    fn not_performed(&self, op: &Op, error: &Error) -> Performed {
        if matches!(error, Error::InvalidArgument) && op.may_loop() {
            return Performed::MayLoop;
        }
        self.found().in_doubt.extend(op.keys());
        self.fail_name(op.target.node, error);
        if is_refusal(error) {
            return Performed::Refused;
        }
        op.directories().for_each(|dir| self.fail(Some(dir), error));
        Performed::Failed
    }

    /// Performs one operation at the origin, and records the names' new targets.
    async fn perform(&self, op: &Op) -> Result<()> {
        let fs = &self.shared.below;
        let users = [op.user.clone(), Identity::ROOT];
        match &op.kind {
            Kind::Rename { from, to } | Kind::Hide { from, to } => {
                self.write_down(op, to).await?;
                let (from_dir, to_dir) = (self.below(from.0)?, self.below(to.0)?);
                let (from_name, to_name) = (from.1.as_name(), to.1.as_name());
                let flags = RenameFlags::empty();
                self.by_first(&users, |cx| fs.rename(cx, from_dir, from_name, to_dir, to_name, flags))
                    .await?;
                self.shared.note(|tree| {
                    tree.set_below(from.0, &from.1, None);
                    tree.set_below(to.0, &to.1, Some(op.target));
                });
            }
            Kind::Link { to } => {
                self.write_down(op, to).await?;
                let (node, dir) = (self.below(op.target.node)?, self.below(to.0)?);
                let (made, cx) = self.by_first(&users, |cx| fs.link(cx, node, dir, to.1.as_name())).await?;
                fs.forget(&cx, &[(made.entry.node, 1)]);
                self.shared.note(|tree| tree.set_below(to.0, &to.1, Some(op.target)));
            }
            Kind::Remove { from } => {
                let (dir, name) = (self.below(from.0)?, from.1.as_name());
                let is_directory = op.target.file_type == FileType::Directory;
                let remove = |cx: &_| match is_directory {
                    true => fs.rmdir(cx, dir, name),
                    false => fs.unlink(cx, dir, name),
                };
                match self.by_first(&users, remove).await {
                    Ok(_) | Err(Error::NotFound) => {}
                    Err(error) => return Err(error),
                }
                self.shared.note(|tree| tree.set_below(from.0, &from.1, None));
            }
        }
        Ok(())
    }
}

impl<'a> Names<'a> {
    fn new(round: &'a Arc<Round>, unknown: &HashSet<Key>) -> Self {
        let tree = round.shared.tree();
        let holder = |key: &Key| tree.place(key.0, &key.1).and_then(|place| place.at_origin);
        let known = round.plan.names.keys().filter(|key| !unknown.contains(key));
        let holders: BTreeMap<_, _> = known.map(|key| (key.clone(), holder(key))).collect();
        drop(tree);
        let times = Times::new(round, holders.keys().map(|key| key.0));
        let failed = round.found().all_failed();
        let (refused, refused_links, hidden) = (HashSet::new(), HashSet::new(), BTreeMap::new());
        Self { round, holders, stuck: HashSet::new(), failed, refused, refused_links, hidden, times }
    }

    /// Returns the local target of a name.
    fn wanted(&self, key: &Key) -> Option<Target> {
        self.round.plan.names.get(key).and_then(|wanted| wanted.target)
    }

    fn user(&self, key: &Key) -> Identity {
        self.round.plan.names.get(key).map_or(Identity::ROOT, |wanted| wanted.user.clone())
    }

    fn moves(&self) -> Moves {
        let mut moves = Moves::default();
        for (key, holder) in &self.holders {
            let wanted = self.wanted(key);
            if wanted == *holder {
                continue;
            }
            if let Some(holder) = holder {
                moves.from.entry(holder.node).or_default().push(key.clone());
            }
            if let Some(wanted) = wanted {
                moves.to.entry(wanted.node).or_default().push(key.clone());
            }
        }
        // Hidden names are sorted last and taken first: no other node waits for them.
        for from in moves.from.values_mut() {
            from.sort_by_key(|key| is_hidden(&key.1));
        }
        moves
    }

    /// Returns operations that can be performed now, concurrently.
    fn next(&self) -> Vec<Op> {
        let mut moves = self.moves();
        let (mut ops, mut busy) = (Vec::new(), HashSet::new());
        // Number of names that each node is to lose without getting others: these may be replaced.
        let mut spare: HashMap<NodeId, usize> = HashMap::new();
        for (node, from) in &moves.from {
            let to = moves.to.get(node).map_or(0, Vec::len);
            spare.insert(*node, from.len().saturating_sub(to));
        }
        for (node, keys) in &moves.to {
            if self.failed.contains(node) || self.stuck.contains(node) {
                continue;
            }
            for key in keys {
                // The directory could not be created, or the origin has refused to change the name.
                if self.round.below(key.0).is_err() || self.refused.contains(key) {
                    continue;
                }
                let Some(target) = self.wanted(key).filter(|_| !busy.contains(key)) else { continue };
                let holder = self.holders.get(key).copied().flatten();
                if let Some(holder) = holder {
                    let spare = spare.entry(holder.node).or_default();
                    if *spare == 0 || self.round.has_failed(holder.node) {
                        continue;
                    }
                    *spare -= 1;
                    if !self.can_replace(target, holder) {
                        busy.insert(key.clone());
                        ops.extend(self.hide(key, holder).filter(|op| op.takes_hidden_name(&mut busy)));
                        continue;
                    }
                    // The operation replaces `holder` under this name, so `holder` cannot be renamed from it.
                    moves.from.entry(holder.node).or_default().retain(|from| from != key);
                }
                let free = moves.from.entry(*node).or_default();
                free.retain(|from| !busy.contains(from));
                let kind = match free.pop() {
                    Some(from) => {
                        busy.insert(from.clone());
                        Kind::Rename { from, to: key.clone() }
                    }
                    None if self.is_refused(key) => continue,
                    None if holder.is_none() => Kind::Link { to: key.clone() },
                    // A link cannot replace the holder: the node gets its hidden name, to be renamed next. It
                    // may still have that name, until another of these operations renames it.
                    None => match self.round.plan.hidden_name(*node).map(|name| (key.0, name)) {
                        Some(hidden) if !self.is_refused(&hidden) && busy.insert(hidden.clone()) => {
                            Kind::Link { to: hidden }
                        }
                        _ => continue,
                    },
                };
                busy.insert(key.clone());
                ops.push(Op { kind, target, user: self.user(key) });
            }
        }
        ops
    }

    /// Returns `true` for a name that the origin has refused to change, or to create as a link.
    fn is_refused(&self, key: &Key) -> bool {
        self.refused.contains(key) || self.refused_links.contains(key)
    }

    /// Returns `true` if a rename can replace `holder` with `target`: neither is a directory, and `holder` is
    /// not in use.
    fn can_replace(&self, target: Target, holder: Target) -> bool {
        let is_directory = |target: Target| target.file_type == FileType::Directory;
        !is_directory(target) && !is_directory(holder) && !self.is_in_use(holder.node)
    }

    /// Returns `true` for a node without a local name that is still open, so that its data may be read.
    fn is_in_use(&self, node: NodeId) -> bool {
        let tree = self.round.shared.tree();
        tree.is_unnamed(node) && tree.open.contains_key(&node)
    }

    fn hide(&self, from: &Key, target: Target) -> Option<Op> {
        let (from, to) = (from.clone(), (NodeId::ROOT, self.round.plan.hidden_name(target.node)?));
        let user = self.user(&from);
        // Between two names of one file, a rename does nothing (rename(2)).
        let kind = match self.holders.get(&to).copied().flatten() == Some(target) {
            true => Kind::Remove { from },
            false => Kind::Hide { from, to },
        };
        Some(Op { kind, target, user })
    }

    /// Returns an operation that moves a node to a hidden name where nodes wait for each other's names.
    fn unblock(&self) -> Option<Op> {
        let moves = self.moves();
        let may_take = |key: &&Key| !self.is_refused(key);
        let is_moving = |node: NodeId| {
            let keys = moves.to.get(&node).filter(|_| !self.failed.contains(&node));
            keys.is_some_and(|keys| keys.iter().any(|key| may_take(&key)))
        };
        let is_directory = |key| self.wanted(key).is_some_and(|it| it.file_type == FileType::Directory);
        moves.to.iter().filter(|(node, _)| is_moving(**node)).find_map(|(node, keys)| {
            if !self.stuck.contains(node) {
                return keys.iter().filter(may_take).find_map(|key| {
                    let held = self.holders.get(key).copied().flatten()?;
                    is_moving(held.node).then(|| self.hide(key, held)).flatten()
                });
            }
            // EINVAL means that the origin cannot store the name, unless another directory has to move first.
            let mut others = moves.to.iter().filter(|(other, _)| *other != node && is_moving(**other));
            let from = others.find(|(_, keys)| keys.iter().any(is_directory)).and(moves.from.get(node))?;
            let from = from.iter().filter(may_take).find(|key| !is_hidden(&key.1))?;
            self.hide(from, self.holders.get(from).copied().flatten()?)
        })
    }

    /// Records the remaining nodes as lacking names: those that wait for failed ones, and those whose
    /// operations cannot be ordered.
    fn give_up_the_rest(&self) {
        let (round, to) = (self.round, self.moves().to);
        self.stuck.iter().for_each(|node| round.fail_name(*node, &Error::InvalidArgument));
        loop {
            let waits = |key: &Key| {
                let holder = self.holders.get(key).copied().flatten();
                round.below(key.0).is_err() || holder.is_some_and(|holder| round.has_failed(holder.node))
            };
            let waiting =
                to.iter().filter(|(node, keys)| !round.has_failed(**node) && keys.iter().any(waits));
            let waiting: Vec<NodeId> = waiting.map(|(node, _)| *node).collect();
            if waiting.is_empty() {
                break;
            }
            round.wait_for_others(waiting);
        }
        for (node, keys) in to.into_iter().filter(|(node, _)| !round.has_failed(*node)) {
            for id in keys.into_iter().map(|key| key.0).chain([node]) {
                round.fail(Some(id), &Error::io(WAITS));
            }
        }
    }

    /// Restores the names of hidden nodes if their replacement, or their own move, has failed.
    fn unhide(&mut self) {
        let op = |(node, key): (&NodeId, &Key)| {
            let replacement = self.wanted(key).map(|wanted| wanted.node);
            let has_failed =
                [Some(*node), replacement].into_iter().flatten().any(|id| self.round.has_failed(id));
            let from = (NodeId::ROOT, self.round.plan.hidden_name(*node)?);
            let target = self.holders.get(&from).copied().flatten().filter(|target| target.node == *node)?;
            let is_free = self.holders.get(key).is_some_and(Option::is_none);
            let kind = Kind::Rename { from, to: key.clone() };
            (has_failed && is_free).then(|| Op { kind, target, user: self.user(key) })
        };
        let ops: Vec<Op> = self.hidden.iter().filter_map(op).collect();
        self.perform(ops);
    }

    /// Returns removals that can be performed now.
    fn removals(&self) -> Vec<Op> {
        let moves = self.moves();
        let is_over = |node: &NodeId| !moves.to.contains_key(node) && !self.round.has_failed(*node);
        let gone = moves.from.iter().filter(|(node, _)| is_over(node)).flat_map(|(_, keys)| keys);
        let is_there = |key: &&Key| self.wanted(key).is_none() && self.round.below(key.0).is_ok();
        let gone: Vec<&Key> = gone.filter(is_there).collect();
        // Directories that still have entries to be removed, refused removals included.
        let full: HashSet<NodeId> = moves.from.values().flatten().map(|key| key.0).collect();
        let (mut ops, mut busy) = (Vec::new(), HashSet::new());
        for key in gone {
            let Some(target) = self.holders.get(key).copied().flatten() else { continue };
            if target.file_type == FileType::Directory && full.contains(&target.node) {
                continue;
            }
            if self.is_in_use(target.node) {
                let op = self.hide(key, target).filter(|_| !is_hidden(&key.1));
                ops.extend(op.filter(|op| op.takes_hidden_name(&mut busy)));
                continue;
            }
            let kind = Kind::Remove { from: key.clone() };
            ops.push(Op { kind, target, user: self.user(key) });
        }
        ops
    }

    /// Performs operations concurrently. Returns `true` if any was tried.
    fn perform(&mut self, ops: Vec<Op>) -> bool {
        self.times.note(self.round, ops.iter().flat_map(Op::directories));
        let done = Arc::new(Mutex::new(Vec::new()));
        for op in ops {
            let (round, done) = (self.round.clone(), done.clone());
            self.round.start(op.target.node, async move {
                let result = match round.perform(&op).await {
                    Ok(()) => Ok(Performed::Done),
                    Err(error) => round.give_way(&op, error).await.map(|()| Performed::GaveWay),
                };
                let performed = result.unwrap_or_else(|error| round.not_performed(&op, &error));
                lock(&done).push((op, performed));
                Ok(())
            });
        }
        self.round.window.wait();
        let done = std::mem::take(&mut *lock(&done));
        let any = !done.is_empty();
        for (op, performed) in done {
            let node = op.target.node;
            match performed {
                Performed::Done => {}
                Performed::GaveWay | Performed::Failed => drop(self.failed.insert(node)),
                Performed::MayLoop => drop(self.stuck.insert(node)),
                Performed::Refused => match &op.kind {
                    Kind::Link { to } => drop(self.refused_links.insert(to.clone())),
                    _ => self.refused.extend(op.refused_keys()),
                },
            }
            if matches!(performed, Performed::Done | Performed::GaveWay) {
                self.done(op);
                continue;
            }
            // The origin may have performed the operation nevertheless.
            let held = op.keys().filter_map(|key| self.holders.get(&key).copied().flatten());
            held.chain([op.target]).for_each(|target| self.round.set_version(target.node, None));
        }
        any
    }

    fn done(&mut self, op: Op) {
        self.stuck.clear();
        self.round.set_version(op.target.node, None);
        self.round.found().changed.extend(op.directories());
        let Op { kind, target, .. } = op;
        if let Kind::Hide { from, .. } = &kind {
            self.hidden.insert(target.node, from.clone());
        }
        match kind {
            Kind::Rename { from, to } | Kind::Hide { from, to } => {
                self.holders.insert(from, None);
                if let Some(replaced) = self.holders.insert(to, Some(target)).flatten() {
                    self.round.set_version(replaced.node, None);
                }
            }
            Kind::Link { to } => drop(self.holders.insert(to, Some(target))),
            Kind::Remove { from } => drop(self.holders.insert(from, None)),
        }
    }
}

impl Op {
    /// Reserves the hidden name that this operation creates, if any; returns `false` if another one uses it.
    fn takes_hidden_name(&self, busy: &mut HashSet<Key>) -> bool {
        match &self.kind {
            Kind::Hide { to, .. } => busy.insert(to.clone()),
            _ => true,
        }
    }

    /// Returns `true` if EINVAL may mean that the directory would become part of itself.
    fn may_loop(&self) -> bool {
        matches!(self.kind, Kind::Rename { .. }) && self.target.file_type == FileType::Directory
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        let (one, other) = match &self.kind {
            Kind::Rename { from, to } | Kind::Hide { from, to } => (from, Some(to)),
            Kind::Link { to: key } | Kind::Remove { from: key } => (key, None),
        };
        [Some(one.clone()), other.cloned()].into_iter().flatten()
    }

    /// Returns the names that no further operation of this round uses once this one was refused.
    fn refused_keys(&self) -> impl Iterator<Item = Key> {
        let from = match &self.kind {
            Kind::Rename { from, .. } => Some(from.clone()),
            _ => None,
        };
        self.keys().filter(move |key| Some(key) != from.as_ref())
    }

    fn directories(&self) -> impl Iterator<Item = NodeId> {
        self.keys().map(|key| key.0)
    }
}
