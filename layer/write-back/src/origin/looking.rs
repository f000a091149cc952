//! Look-ups of names at the origin: of all names that differ, after a restart, a failed attempt or a change
//! of permissions there; otherwise only of names about to be added or removed.
//!
//! A file found at the origin that this layer has not put there belongs to another writer and keeps its name;
//! the local one gets a conflict name.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tombolo_core::fs::{Entry, Name, NameBuf, NodeId};
use tombolo_core::{Ctx, Error, Identity, Result, lock};

use super::attributes::is_refusal;
use super::plan::Key;
use super::round::Round;
use crate::tree::{Target, Tree, is_hidden};

/// Maximum length of a conflict name, in bytes: the limit of most file systems (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;

/// Outcome of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// The recorded target.
    Same,
    /// Not the recorded target, because of this layer's own changes: none, or a node that it has created,
    /// moved or changed.
    Moved,
    /// Another writer's node.
    Conflict,
}

impl Round {
    /// Looks up all names that differ, and records their targets at the origin.
    pub(super) fn look_at_all(self: &Arc<Self>) {
        let mut seen = HashSet::new();
        loop {
            let keys: Vec<Key> = {
                let tree = self.shared.tree();
                let all = tree.differences().map(|(dir, name, _)| (dir, name.clone()));
                all.filter(|key| !seen.contains(key) && tree.below(key.0).is_some()).collect()
            };
            if keys.is_empty() || self.is_over() {
                return;
            }
            seen.extend(keys.iter().cloned());
            self.look_at(keys);
        }
    }

    /// Looks up names, and records their targets. Returns the names with another target than was recorded,
    /// and the names that the origin refuses to look up.
    pub(super) fn look_at(self: &Arc<Self>, keys: Vec<Key>) -> (HashSet<Key>, HashSet<Key>) {
        let looked = Arc::new(Mutex::new(Vec::new()));
        let refused = Arc::new(Mutex::new(HashSet::new()));
        let ours: HashSet<NodeId> = {
            let tree = self.shared.tree();
            let places = tree.differences().flat_map(|(_, _, place)| [place.at_origin, place.local]);
            places.flatten().map(|target| target.node).collect()
        };
        for key in keys {
            let (round, looked, refused) = (self.clone(), looked.clone(), refused.clone());
            self.start(key.0, async move {
                match round.look(&key).await {
                    Ok(found) => lock(&looked).push((key, found)),
                    Err(error) if is_refusal(&error) => {
                        round.fail_name(key.0, &error);
                        lock(&refused).insert(key);
                    }
                    Err(error) => return Err(error),
                }
                Ok(())
            });
        }
        self.window.wait();
        let looked = std::mem::take(&mut *lock(&looked));
        let (mut others, mut conflicts) = (HashSet::new(), 0);
        for (key, found) in looked {
            let differs = |tree: &mut Tree| {
                let found = found.map(|entry| target(tree, &entry));
                take_in(tree, &key, found, &ours, !self.plan.is_empty())
            };
            match self.shared.note(differs).0 {
                Looked::Same => continue,
                Looked::Moved => {}
                Looked::Conflict => conflicts += 1,
            }
            others.insert(key);
        }
        if conflicts > 0 {
            self.shared.control.tell(|state| state.conflicts += conflicts);
        }
        (others, std::mem::take(&mut *lock(&refused)))
    }

    async fn look(&self, key: &Key) -> Result<Option<Entry>> {
        let (fs, below, since) = (&self.shared.below, self.below(key.0)?, Some(Instant::now()));
        let (place, was_there) = {
            let tree = self.shared.tree();
            let place = tree.place(key.0, &key.1).cloned();
            let before = place.as_ref().and_then(|place| place.at_origin);
            // A recorded target may be absent still: that of a new node is recorded before it is created.
            (place, before.is_some_and(|before| tree.below(before.node).is_some()))
        };
        let user = place.map(|place| place.user);
        // A squashed superuser may lack the user's search permission.
        let users = [Identity::ROOT, user.unwrap_or(Identity::ROOT)];
        let look = |cx: &Ctx| fs.lookup(&Ctx { fetched_since: since, ..cx.clone() }, below, key.1.as_name());
        match self.by_first(&users, look).await {
            Ok((entry, cx)) => {
                self.shared.below.forget(&cx, &[(entry.node, 1)]);
                Ok(Some(entry))
            }
            // ESTALE: the directory itself is gone.
            Err(Error::NotFound | Error::Stale) => Ok(None),
            // A name that the origin cannot have.
            Err(Error::InvalidArgument | Error::NameTooLong) if !was_there => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn target(tree: &Tree, entry: &Entry) -> Target {
    Target { node: tree.local_id(entry.node), file_type: entry.attr.file_type }
}

/// Records the target of a name at the origin. `ours` are nodes whose names differ. With `is_begun`, the name
/// is about to be changed at the origin and stays in doubt; otherwise it is not in doubt any more.
fn take_in(
    tree: &mut Tree,
    key: &Key,
    found: Option<Target>,
    ours: &HashSet<NodeId>,
    is_begun: bool,
) -> Looked {
    let (dir, name) = (key.0, &key.1);
    let Some(place) = tree.place(dir, name).cloned() else { return Looked::Same };
    if place.is_in_doubt && !is_begun {
        tree.set_doubt(dir, name, false);
    }
    let Some(found) = found else {
        if place.at_origin.is_none() {
            return Looked::Same;
        }
        tree.set_below(dir, name, None);
        return Looked::Moved;
    };
    match place.at_origin {
        Some(before) if before.node == found.node => Looked::Same,
        // The journal says that the node would be created under this name.
        Some(before) if tree.below(before.node).is_none() && before.file_type == found.file_type => {
            match tree.nodes.contains_key(&before.node) {
                true => {
                    tree.bind(before.node, found.node);
                    tree.set_below(dir, name, Some(before));
                }
                // The node was removed locally since.
                false => tree.set_below(dir, name, Some(found)),
            }
            Looked::Moved
        }
        _ if is_hidden(name) || ours.contains(&found.node) || tree.is_dirty(found.node) => {
            tree.set_below(dir, name, Some(found));
            Looked::Moved
        }
        _ => {
            keep_both(tree, key, found);
            Looked::Conflict
        }
    }
}

/// Leaves a name to another writer's node. The local target gets a conflict name in the same directory.
fn keep_both(tree: &mut Tree, key: &Key, theirs: Target) {
    let (dir, name) = (key.0, &key.1);
    let Some(place) = tree.place(dir, name).cloned() else { return };
    tracing::warn!(name = %name.as_name(), directory = dir.0, "another client has changed this name at the origin: both files are kept");
    if let Some(ours) = place.local
        && let Some(other) = conflict_name(tree, name)
    {
        tree.set_name(dir, &other, None, Some(ours), &place.user);
    }
    tree.set_below(dir, name, Some(theirs));
    tree.set_name(dir, name, None, Some(theirs), &place.user);
    tree.change += 1;
    tree.epoch += 1;
}

/// Returns a conflict name: `name`, cut if necessary, plus `.conflict-` and a unique number. `None` if no
/// numbers are left.
pub(super) fn conflict_name(tree: &mut Tree, name: &NameBuf) -> Option<NameBuf> {
    let end = format!(".conflict-{:x}", tree.ids.next()?);
    let bytes = name.as_name().as_bytes();
    let kept = bytes.len().min(NAME_BYTES_MAX - end.len());
    let name = [bytes.get(..kept)?, end.as_bytes()].concat();
    Some(Name::new(&name).ok()?.to_owned())
}
