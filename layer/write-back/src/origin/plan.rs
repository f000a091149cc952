//! Plan of a round: all differences at one time, which the round sends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tombolo_core::Identity;
use tombolo_core::fs::{Attr, NameBuf, NodeId, WeakAttr};

use crate::tree::{self, Layer, Node, Piece, Set, Target, Tree, Xattrs, hidden_name, is_hidden};

/// A directory and a name in it.
pub(super) type Key = (NodeId, NameBuf);

/// State of a differing node when the plan was made.
#[derive(Debug)]
pub(super) struct Chosen {
    pub id: NodeId,
    pub attr: Attr,
    pub set: Set,
    /// Attributes of `set` that no caller has requested ([`Node::implied`]).
    pub implied: Set,
    pub xattrs: Xattrs,
    pub layers: Vec<Layer>,
    pub link: Option<Vec<u8>>,
    pub user: Identity,
    /// Version last seen at the origin. Another size or modification time there shows another writer's
    /// change.
    pub version: Option<WeakAttr>,
    /// Directory and name under which a new node is created; `None` if the origin has the node.
    pub home: Option<Key>,
}

/// Local target of a name, and the user who set it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub target: Option<Target>,
    pub user: Identity,
}

/// All differences at one time, to be sent in one round.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Number of the latest change in the plan.
    pub change: u64,
    /// Random part of hidden names.
    tag: u64,
    /// Differing nodes, by number.
    pub nodes: BTreeMap<NodeId, Arc<Chosen>>,
    /// New directories in levels, parents before children.
    pub new_directories: Vec<Vec<NodeId>>,
    pub names: BTreeMap<Key, Wanted>,
}

impl Plan {
    /// Takes all differences, and freezes the layers of their data, so that later writes go to new layers.
    /// Nodes of which the origin lacks only refused attributes are omitted unless `tries_refused`. Records in
    /// the tree under which names new nodes are created.
    pub(super) fn choose(tree: &mut Tree, tries_refused: bool) -> Self {
        let mut plan = Self { change: tree.change, tag: tree.tag, ..Self::default() };
        let (mut homes, mut places, mut lacking) = (HashMap::new(), HashMap::new(), Vec::new());
        let is_new = |tree: &Tree, id| tree.below(id).is_none();
        for (dir, name, place) in tree.differences() {
            let key = (dir, name.clone());
            let wanted = Wanted { target: place.local, user: place.user.clone() };
            match place.at_origin {
                // The directory was found missing at the origin, so this name does not exist there.
                Some(_) if is_new(tree, dir) => lacking.push(key.clone()),
                Some(before) => drop(homes.entry(before.node).or_insert_with(|| key.clone())),
                None => {}
            }
            if let Some(now) = place.local {
                places.entry(now.node).or_insert_with(|| key.clone());
            }
            plan.names.insert(key, wanted);
        }
        lacking.iter().for_each(|(dir, name)| tree.set_below(*dir, name, None));
        let ids = tree.dirty_nodes(tries_refused);
        let new: HashSet<NodeId> = ids.iter().copied().filter(|id| is_new(tree, *id)).collect();
        for id in ids {
            let home = new.contains(&id).then(|| {
                let kept = homes.get(&id).cloned();
                kept.or_else(|| places.get(&id).and_then(|place| plan.home_by(place, id, &new)))
            });
            let home = match home {
                // Nodes without a name are not created.
                Some(None) => continue,
                home => home.flatten(),
            };
            let Some(node) = tree.send(id) else { continue };
            let chosen = Chosen::of(id, node, home.clone());
            let target = Target { node: id, file_type: chosen.attr.file_type };
            if let Some((dir, name)) = home {
                tree.set_below(dir, &name, Some(target));
                if is_hidden(&name) {
                    let wanted = Wanted { target: None, user: chosen.user.clone() };
                    plan.names.insert((dir, name), wanted);
                }
            }
            plan.nodes.insert(id, Arc::new(chosen));
        }
        plan.order_new_directories(&new);
        for (dir, name) in plan.names.keys() {
            tree.set_doubt(*dir, name, true);
        }
        plan
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty()
    }

    fn order_new_directories(&mut self, new: &HashSet<NodeId>) {
        let mut by_parent: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        let mut level = Vec::new();
        for chosen in self.nodes.values().filter(|chosen| chosen.is_directory()) {
            let Some((dir, _)) = &chosen.home else { continue };
            match new.contains(dir) {
                true => by_parent.entry(*dir).or_default().push(chosen.id),
                false => level.push(chosen.id),
            }
        }
        while !level.is_empty() {
            let next = level.iter().filter_map(|id| by_parent.remove(id)).flatten().collect();
            self.new_directories.push(std::mem::replace(&mut level, next));
        }
    }

    /// Returns the hidden name at the origin of a node without another name there.
    pub(super) fn hidden_name(&self, id: NodeId) -> Option<NameBuf> {
        hidden_name(self.tag, id)
    }

    /// Returns the place of creation of a new node: its local name in a new directory, else a hidden name in
    /// its directory.
    fn home_by(&self, (dir, name): &Key, id: NodeId, new: &HashSet<NodeId>) -> Option<Key> {
        match new.contains(dir) {
            true => Some((*dir, name.clone())),
            false => Some((*dir, self.hidden_name(id)?)),
        }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<Chosen>> {
        self.nodes.values().filter(|chosen| !chosen.is_directory())
    }

    pub(super) fn directories(&self) -> impl Iterator<Item = &Arc<Chosen>> {
        self.nodes.values().filter(|chosen| chosen.is_directory())
    }
}

impl Chosen {
    fn of(id: NodeId, node: &Node, home: Option<Key>) -> Self {
        let Node { attr, sending: set, implied, xattrs, layers, link, user, version, .. } = node.clone();
        Self { id, attr, set, implied, xattrs, layers, link, user, version, home }
    }

    /// Returns the locations of the file's data, in order.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        tree::pieces(&self.layers, 0..self.attr.size)
    }

    /// Returns the user as whom the node is created: an implied owner, even if another user has changed the
    /// node since.
    pub(super) fn maker(&self) -> Identity {
        let Attr { uid, gid, .. } = self.attr;
        match self.implied.contains(Set::OWNER) && self.user.uid != uid {
            true => Identity { uid, gid, groups: None },
            false => self.user.clone(),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attr.file_type == tombolo_core::fs::FileType::Directory
    }
}
