//! Restoration of modification times. Operations on hidden names at the origin also change the times of
//! directories whose times do not differ locally. These times are set back afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tombolo_core::fs::{Attr, NodeId, SetAttr, SetTime};
use tombolo_core::{Error, Identity};

use super::attributes::is_refusal;
use super::round::Round;
use crate::tree::{Set, Tree};

/// Directories whose times do not differ, with their attributes before operations on names in them.
pub(super) struct Times {
    unchanged: HashMap<NodeId, Attr>,
    /// Directories with operations. Their times are differences until they are restored.
    noted: Vec<(NodeId, Attr)>,
}

impl Times {
    /// Queries the attributes of the root and `dirs`, except those whose times are being sent.
    pub(super) fn new(round: &Round, dirs: impl Iterator<Item = NodeId>) -> Self {
        let dirs: HashSet<NodeId> = dirs.chain([NodeId::ROOT]).collect();
        let keeps_time =
            |dir: &NodeId| round.plan.nodes.get(dir).is_none_or(|chosen| !chosen.set.contains(Set::MTIME));
        let others = dirs.into_iter().filter(keeps_time);
        let attr = |dir| {
            let (below, cx) = (round.below(dir).ok()?, round.cx(Identity::ROOT));
            Some((dir, round.shared.below.getattr(&cx, below, None).wait().ok()?))
        };
        Self { unchanged: others.filter_map(attr).collect(), noted: Vec::new() }
    }

    /// Records in the journal that the origin lacks the times of directories in which names are about to be
    /// changed.
    pub(super) fn note(&mut self, round: &Round, dirs: impl Iterator<Item = NodeId>) {
        let new: Vec<_> = dirs.filter_map(|dir| self.unchanged.remove_entry(&dir)).collect();
        if new.is_empty() {
            return;
        }
        let (_, ticket) = round.shared.note(|tree| {
            for (dir, attr) in &new {
                let node = tree.touch(*dir, &Attr { fileid: dir.0, ..*attr });
                if node.attr.mtime == attr.mtime && !node.set.contains(Set::MTIME) {
                    node.imply(Set::MTIME);
                }
            }
        });
        self.noted.extend(new);
        if let Err(error) = tombolo_core::block_on(round.shared.journal.stable(ticket)) {
            round.fail(None, &error);
        }
    }

    /// Restores the times of the noted directories at the origin, if names in them were changed there, or
    /// may have been.
    pub(super) fn restore(self, round: &Arc<Round>) {
        for (dir, attr) in self.noted {
            let has_changed = round.found().changed.contains(&dir);
            if !has_changed && !round.has_failed(dir) {
                round.shared.note(|tree| restored(tree, dir, &attr));
                continue;
            }
            let task = round.clone();
            round.start(dir, async move {
                let set = SetAttr { mtime: Some(SetTime::At(attr.mtime)), ..SetAttr::default() };
                let owner = Identity { uid: attr.uid, gid: attr.gid, groups: None };
                let (fs, below) = (&task.shared.below, task.below(dir)?);
                let users = [Identity::ROOT, owner];
                match task.by_first(&users, |cx| fs.setattr(cx, below, None, &set)).await {
                    Ok(_) => task.set_version(dir, None),
                    Err(Error::Stale | Error::NotFound) => {}
                    // The directory keeps the time of its last change at the origin.
                    Err(error) if is_refusal(&error) => task.set_version(dir, None),
                    Err(error) => return Err(error),
                }
                task.shared.note(|tree| restored(tree, dir, &attr));
                Ok(())
            });
        }
        round.window.wait();
    }
}

/// Records that the origin has the time of a directory, unless the time was changed locally since.
fn restored(tree: &mut Tree, dir: NodeId, attr: &Attr) {
    if let Some(node) = tree.node_mut(dir).filter(|node| node.attr.mtime == attr.mtime) {
        node.set.remove(Set::MTIME);
        node.implied.remove(Set::MTIME);
    }
}
