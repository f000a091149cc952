//! Differences from the file system below: names, and nodes with their attributes and data ([`node`]).
//!
//! A name has a target below, as far as that is known, and a local target. A node created here has a
//! permanent number of this layer; others have their number below.

mod node;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tombolo_core::Identity;
use tombolo_core::fs::{Attr, FileType, Name, NameBuf, NodeId, Timestamp, WeakAttr};

use crate::data_file::{DataFile, DataFiles};
use crate::database::{JournalError, Kept};
use crate::extents::{Delta, Extents};
use crate::journal::Batch;
use crate::rows::{self, NodeRow};
use crate::sums::Blocks;
pub(crate) use node::{Layer, Node, Piece, Set, Xattrs, pieces};

/// Numbers of what was made here have this bit.
pub(crate) const MADE_HERE: u64 = 1 << 62;

/// Names of this kind are at the origin alone: what has no name there yet, or none any more.
pub(crate) const HIDDEN: &[u8] = b".tombolo-wb-";

/// So many names of files are remembered.
const SEEN_MAX: usize = 1 << 16;

/// A path that is shown has so many names at most.
const SHOWN_DEPTH_MAX: usize = 32;

/// Names that do not differ any more are kept for so long.
const SETTLED_KEPT: Duration = Duration::from_secs(60);

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub node: NodeId,
    pub file_type: FileType,
}

/// A name that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// What it leads to below.
    pub before: Option<Target>,
    /// What it leads to here.
    pub now: Option<Target>,
    /// The user that changed it last.
    pub user: Identity,
    /// An operation at the origin may have changed it: what it leads to there is to be looked at.
    pub is_in_doubt: bool,
    /// Since when both are the same. Kept for a while, so that listings that are under way find it where it
    /// was.
    pub settled: Option<Instant>,
}

/// All that differs.
#[derive(Debug)]
pub(crate) struct Tree {
    pub nodes: HashMap<NodeId, Node>,
    pub names: HashMap<NodeId, BTreeMap<NameBuf, Place>>,
    /// What was made here, by its number below.
    pub made: HashMap<NodeId, NodeId>,
    /// Where files were found last, for a while.
    seen: HashMap<NodeId, (NodeId, NameBuf)>,
    /// How often each node is open.
    pub open: HashMap<NodeId, u32>,
    /// Changes so far.
    pub change: u64,
    /// Counted when what was looked up below may not hold any more.
    pub epoch: u64,
    /// Bytes that the origin does not have.
    pub dirty_bytes: u64,
    pub ids: Range<u64>,
    pub files: Arc<DataFiles>,
    /// Nodes that may differ.
    dirty: HashSet<NodeId>,
    touched_nodes: HashSet<NodeId>,
    touched_names: HashSet<(NodeId, NameBuf)>,
    batch: Batch,
}

impl Tree {
    /// What an earlier life has left.
    pub(crate) fn kept(
        kept: Kept,
        ids: Range<u64>,
        files: &Arc<DataFiles>,
        path: &std::path::Path,
    ) -> Result<Self, JournalError> {
        let damaged = |table| JournalError::Damaged { path: path.to_owned(), table };
        let mut tree = Self {
            nodes: HashMap::new(),
            names: HashMap::new(),
            made: HashMap::new(),
            seen: HashMap::new(),
            open: HashMap::new(),
            change: kept.change,
            epoch: 0,
            dirty_bytes: 0,
            ids,
            files: files.clone(),
            dirty: HashSet::new(),
            touched_nodes: HashSet::new(),
            touched_names: HashSet::new(),
            batch: Batch::default(),
        };
        for (id, row) in kept.nodes {
            let (id, row) = (NodeId(id), NodeRow::decoded(&row).ok_or_else(|| damaged("nodes"))?);
            let layers = row.layers.iter().map(|(generation, below_len)| {
                let mut extents = Extents::default();
                let ranges = kept.extents.get(generation).into_iter().flatten();
                ranges.for_each(|range| drop(extents.insert(range.clone())));
                Layer { file: files.file(*generation), extents, below_len: *below_len, is_frozen: true }
            });
            let layers: Vec<_> = layers.collect();
            tree.dirty_bytes += layers.iter().map(|layer| layer.extents.bytes()).sum::<u64>();
            let NodeRow { attr, below, parent, link, verifier, user, set, implied, xattrs, version, .. } =
                row;
            let made = Node::made(attr, user);
            let node = Node { below, parent, link, verifier, set, implied, xattrs, version, layers, ..made };
            tree.dirty.insert(id);
            tree.made.extend(below.filter(|below| *below != id).map(|below| (below, id)));
            tree.nodes.insert(id, node);
        }
        for (dir, name, row) in kept.names {
            let name = Name::new(&name).map_err(|_| damaged("names"))?.to_owned();
            let place = rows::decoded_place(&row).ok_or_else(|| damaged("names"))?;
            // What was under way there has changed it, perhaps.
            for target in [place.before, place.now].into_iter().flatten().filter(|_| place.is_in_doubt) {
                tree.node_mut(target.node).into_iter().for_each(|node| node.version = None);
            }
            tree.names.entry(NodeId(dir)).or_default().insert(name, place);
        }
        // What was open without a name.
        tree.bury_gone();
        Ok(tree)
    }

    /// Says in the log which files have data that are not as they were written. How many blocks there are.
    pub(crate) fn tell_torn(&self, torn: &HashMap<u64, Vec<Range<u64>>>) -> u64 {
        let mut count = 0;
        for (id, node) in &self.nodes {
            for span in node.layers.iter().filter_map(|layer| torn.get(&layer.file.generation)).flatten() {
                count += 1;
                let mut places = self.names.values().flatten();
                let place = places.find(|(_, place)| place.now.is_some_and(|now| now.node == *id));
                let name = place.map(|(name, _)| String::from_utf8_lossy(name.as_name().as_bytes()));
                tracing::error!(
                    node = id.0,
                    name = name.as_deref().unwrap_or_default(),
                    ?span,
                    "data fail their checksum: kept as found on the disk"
                );
            }
        }
        count
    }

    /// The number here of a node below.
    pub(crate) fn own(&self, below: NodeId) -> NodeId {
        self.made.get(&below).copied().unwrap_or(below)
    }

    /// The number below of a node, if the origin has it.
    pub(crate) fn below(&self, id: NodeId) -> Option<NodeId> {
        match self.nodes.get(&id) {
            Some(node) => node.below,
            None if id.0 & MADE_HERE == 0 => Some(id),
            None => None,
        }
    }

    pub(crate) fn place(&self, dir: NodeId, name: &NameBuf) -> Option<&Place> {
        self.names.get(&dir)?.get(name)
    }

    /// The nodes below that a name speaks of.
    fn numbers_of(&self, dir: NodeId, place: &Place) -> impl Iterator<Item = NodeId> {
        let targets = [place.before, place.now].map(|target| self.below(target?.node));
        targets.into_iter().chain([self.below(dir)]).flatten()
    }

    /// All nodes below that anything here speaks of.
    pub(crate) fn numbers(&self) -> HashSet<NodeId> {
        let of_nodes = self.nodes.values().filter_map(|node| node.below);
        let places = self.names.iter().flat_map(|(dir, names)| names.values().map(|place| (*dir, place)));
        of_nodes.chain(places.flat_map(|(dir, place)| self.numbers_of(dir, place))).collect()
    }

    /// A node that is about to be changed. `attr` is what it is below, unless it is here already.
    pub(crate) fn touch(&mut self, id: NodeId, attr: &Attr) -> &mut Node {
        self.touched(id);
        let node = self.nodes.entry(id).or_insert_with(|| Node::below(id, *attr));
        if !node.is_dirty() {
            if attr.ctime != node.attr.ctime {
                // Another has changed it since, and that was seen.
                node.version = Some(WeakAttr::from(attr));
            }
            node.attr = *attr;
        }
        node
    }

    /// A node that is here, and about to be changed.
    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.touched(id);
        self.nodes.get_mut(&id)
    }

    fn touched(&mut self, id: NodeId) {
        self.touched_nodes.insert(id);
        self.dirty.insert(id);
    }

    pub(crate) fn add(&mut self, id: NodeId, node: Node) {
        self.touched(id);
        self.nodes.insert(id, node);
    }

    /// Forgets a node that was made here and has no name any more, unless it is in use or on its way to the
    /// origin.
    pub(crate) fn bury(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| node.below.is_none()) {
            self.bury_unless(id, |_| false);
        }
    }

    /// The same for all nodes that the origin has no name of either.
    pub(crate) fn bury_gone(&mut self) {
        let gone: Vec<_> = self.dirty.iter().copied().filter(|id| self.is_unnamed(*id)).collect();
        if gone.is_empty() {
            return;
        }
        let places = self.names.values().flat_map(BTreeMap::values);
        let named: HashSet<NodeId> =
            places.filter_map(|place| place.before).map(|target| target.node).collect();
        for id in gone {
            self.bury_unless(id, |id| named.contains(&id));
        }
    }

    fn bury_unless(&mut self, id: NodeId, is_named_below: impl FnOnce(NodeId) -> bool) {
        let is_gone = self.nodes.get(&id).is_some_and(|node| node.attr.nlink == 0 && !node.is_sent);
        if !is_gone || self.open.contains_key(&id) || is_named_below(id) {
            return;
        }
        self.touched_nodes.insert(id);
        self.names.remove(&id).into_iter().flatten().for_each(|(name, _)| {
            self.touched_names.insert((id, name));
        });
        let Some(node) = self.nodes.remove(&id) else { return };
        self.dirty.remove(&id);
        if let Some(below) = node.below {
            self.made.remove(&below);
        }
        node.layers.into_iter().for_each(|layer| self.drop_layer(layer));
    }

    /// A name leads somewhere else here; `below` is what it leads to below, unless that is known.
    pub(crate) fn set_name(
        &mut self,
        dir: NodeId,
        name: &NameBuf,
        below: Option<Target>,
        now: Option<Target>,
        user: &Identity,
    ) {
        self.touched_names.insert((dir, name.clone()));
        let names = self.names.entry(dir).or_default();
        let place = names.entry(name.clone()).or_insert_with(|| Place {
            before: below,
            now: below,
            user: user.clone(),
            is_in_doubt: false,
            settled: None,
        });
        place.now = now;
        place.user = user.clone();
        self.settle(dir, name);
    }

    /// A name leads somewhere else below.
    pub(crate) fn set_below(&mut self, dir: NodeId, name: &NameBuf, below: Option<Target>) {
        self.touched_names.insert((dir, name.clone()));
        let names = self.names.entry(dir).or_default();
        let place = names.entry(name.clone()).or_insert_with(|| Place {
            before: None,
            now: None,
            user: Identity::ROOT,
            is_in_doubt: false,
            settled: None,
        });
        place.before = below;
        self.settle(dir, name);
    }

    /// What a name leads to at the origin is about to be changed, or is known again.
    pub(crate) fn set_doubt(&mut self, dir: NodeId, name: &NameBuf, is_in_doubt: bool) {
        if let Some(place) = self.names.get_mut(&dir).and_then(|names| names.get_mut(name)) {
            place.is_in_doubt = is_in_doubt;
            self.touched_names.insert((dir, name.clone()));
            self.settle(dir, name);
        }
    }

    fn settle(&mut self, dir: NodeId, name: &NameBuf) {
        let Some(is_settled) = self.place(dir, name).map(|place| !self.differs(place)) else { return };
        if let Some(place) = self.names.get_mut(&dir).and_then(|names| names.get_mut(name)) {
            place.settled = is_settled.then(|| place.settled.unwrap_or_else(Instant::now));
        }
    }

    /// Whether the origin lacks something of a name: it leads to something else there, or what it leads to is
    /// only about to be made.
    pub(crate) fn differs(&self, place: &Place) -> bool {
        place.is_in_doubt
            || place.before != place.now
            || place.now.is_some_and(|now| self.below(now.node).is_none())
    }

    /// The names that differ.
    pub(crate) fn differences(&self) -> impl Iterator<Item = (NodeId, &NameBuf, &Place)> {
        let all =
            self.names.iter().flat_map(|(dir, names)| names.iter().map(|(name, place)| (*dir, name, place)));
        all.filter(|(_, _, place)| self.differs(place))
    }

    /// A node that was made here has this number at the origin. Its names there are what they were said to be
    /// before.
    pub(crate) fn bind(&mut self, id: NodeId, below: NodeId) {
        if let Some(node) = self.node_mut(id) {
            node.below = Some(below);
            self.made.insert(below, id);
        }
    }

    /// Forgets names that have not differed for a while.
    pub(crate) fn forget_settled(&mut self) {
        self.names.retain(|_, names| {
            names.retain(|_, place| place.settled.is_none_or(|settled| settled.elapsed() < SETTLED_KEPT));
            !names.is_empty()
        });
    }

    /// Returns the nodes of which the origin lacks something, but for those that have no name; and unless
    /// `tries_refused`, those of which it lacks what it has refused.
    pub(crate) fn dirty_nodes(&mut self, tries_refused: bool) -> Vec<NodeId> {
        let Self { nodes, dirty, .. } = self;
        dirty.retain(|id| nodes.get(id).is_some_and(Node::is_dirty));
        let is_wanted = |id: &NodeId| tries_refused || !self.nodes.get(id).is_some_and(Node::is_refused);
        self.dirty.iter().copied().filter(|id| !self.is_unnamed(*id) && is_wanted(id)).collect()
    }

    /// Counts the nodes of which the origin has refused something.
    pub(crate) fn refused_count(&self) -> usize {
        let is_refused = |id: &&NodeId| self.nodes.get(id).is_some_and(|node| !node.refused.is_empty());
        self.dirty.iter().filter(is_refused).filter(|id| !self.is_unnamed(**id)).count()
    }

    /// Returns the path of a node as far as it is known here, to be shown.
    pub(crate) fn shown_path(&self, id: NodeId) -> String {
        let (mut at, mut parts) = (id, Vec::new());
        while at != NodeId::ROOT && parts.len() < SHOWN_DEPTH_MAX {
            let Some((dir, name)) = self.seen_as(at).or_else(|| self.place_of(at)) else {
                parts.push(format!("(file {:x})", at.0));
                break;
            };
            parts.push(name.as_name().to_string());
            at = dir;
        }
        parts.reverse();
        parts.join("/")
    }

    /// Finds a name that was changed and leads to a node.
    fn place_of(&self, id: NodeId) -> Option<(NodeId, NameBuf)> {
        let mut places = self.names.iter().flat_map(|(dir, names)| names.iter().map(move |one| (*dir, one)));
        let found = places.find(|(_, (_, place))| place.now.is_some_and(|now| now.node == id));
        found.map(|(dir, (name, _))| (dir, name.clone()))
    }

    /// A node is on its way to the origin: what is changed from now on is for the next time.
    pub(crate) fn send(&mut self, id: NodeId) -> Option<&Node> {
        let node = self.nodes.get_mut(&id)?;
        node.is_sent = true;
        node.sending |= std::mem::take(&mut node.set);
        node.layers.iter_mut().for_each(|layer| layer.is_frozen = true);
        Some(node)
    }

    /// The layer of a file that is written now.
    pub(crate) fn top_layer(&mut self, id: NodeId) -> Option<&mut Layer> {
        let node = self.nodes.get(&id)?;
        if node.layers.last().is_none_or(|top| top.is_frozen) {
            let below_len = if node.below.is_none() && node.layers.is_empty() { 0 } else { node.attr.size };
            let generation = self.ids.next()?;
            let file = self.files.file(generation);
            let layer = Layer { file, extents: Extents::default(), below_len, is_frozen: false };
            self.node_mut(id)?.layers.push(layer);
        }
        self.nodes.get_mut(&id)?.layers.last_mut()
    }

    /// Data were written to a file of the local disk; `journaled` are they, where they go to the journal too.
    pub(crate) fn wrote(
        &mut self,
        file: &Arc<DataFile>,
        (blocks, delta): (Blocks, Delta),
        journaled: Option<(u64, Vec<u8>)>,
    ) {
        self.batch.blocks.absorb(blocks);
        self.dirty_bytes = self.dirty_bytes.saturating_add_signed(delta.added);
        self.batch.extents.push((file.generation, delta));
        match journaled {
            Some((offset, bytes)) => {
                self.batch.pieces_bytes += bytes.len() as u64;
                self.batch.pieces.push((file.generation, offset, bytes));
            }
            None => drop(self.batch.files.insert(file.generation, file.clone())),
        }
    }

    /// Gives a file another size.
    pub(crate) fn set_size(&mut self, id: NodeId, size: u64) {
        let before = self.nodes.get(&id).map_or(0, |node| node.attr.size);
        if size == before {
            return;
        }
        let Some(top) = self.top_layer(id) else { return };
        top.below_len = top.below_len.min(size);
        let (generation, delta) = (top.file.generation, top.extents.truncate(size));
        self.dirty_bytes = self.dirty_bytes.saturating_add_signed(delta.added);
        self.batch.extents.push((generation, delta));
        if let Some(node) = self.node_mut(id) {
            node.attr.size = size;
            node.attr.blocks = node.attr.blocks.min(size.div_ceil(512));
        }
    }

    /// Data are at the origin, or not wanted any more.
    pub(crate) fn drop_layer(&mut self, layer: Layer) {
        self.dirty_bytes = self.dirty_bytes.saturating_sub(layer.extents.bytes());
        layer.file.doom();
        self.batch.gone.push(layer.file);
    }

    pub(crate) fn at_origin(&mut self, change: u64) {
        self.batch.at_origin = Some(change);
    }

    /// Whether the origin lacks nothing.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty_count() == 0 && self.differences().next().is_none()
    }

    /// How many nodes the origin lacks something of.
    pub(crate) fn dirty_count(&self) -> usize {
        let is_dirty =
            |id: &&NodeId| self.nodes.get(id).is_some_and(Node::is_dirty) && !self.is_unnamed(**id);
        self.dirty.iter().filter(is_dirty).count()
    }

    /// Whether the data of any file are to go to the origin.
    pub(crate) fn brings_data(&self) -> bool {
        let brings = |id: &NodeId| self.nodes.get(id).is_some_and(|node| !node.layers.is_empty());
        self.dirty.iter().any(|id| brings(id) && !self.is_unnamed(*id))
    }

    /// A file was found under a name.
    pub(crate) fn saw(&mut self, id: NodeId, dir: NodeId, name: &NameBuf) {
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        self.seen.insert(id, (dir, name.clone()));
    }

    /// A name of a file, if it was found by one.
    pub(crate) fn seen_as(&self, id: NodeId) -> Option<(NodeId, NameBuf)> {
        self.seen.get(&id).cloned()
    }

    pub(crate) fn is_dirty(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(Node::is_dirty)
    }

    /// Made here, without a name: it is not for the origin.
    pub(crate) fn is_unnamed(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.attr.nlink == 0)
    }

    /// What is to be written of what was touched.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let mut batch = std::mem::take(&mut self.batch);
        for id in self.touched_nodes.drain() {
            let node = self.nodes.get(&id);
            batch.numbers.extend(node.and_then(|node| node.below));
            batch.nodes.insert(id.0, node.map(|node| node.row().encoded()));
        }
        for (dir, name) in std::mem::take(&mut self.touched_names) {
            let place = self.names.get(&dir).and_then(|names| names.get(&name));
            let place = place.filter(|place| self.differs(place));
            batch.numbers.extend(place.into_iter().flat_map(|place| self.numbers_of(dir, place)));
            batch.names.insert((dir.0, name.as_name().as_bytes().to_vec()), place.map(rows::encoded_place));
        }
        batch.change = self.change;
        batch
    }
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() }
}

pub(crate) fn is_hidden(name: &NameBuf) -> bool {
    name.as_name().as_bytes().starts_with(HIDDEN)
}

/// The name at the origin of a node that has none there otherwise.
pub(crate) fn hidden_name(id: NodeId) -> Option<NameBuf> {
    let name = [HIDDEN, format!("{:x}", id.0).as_bytes()].concat();
    Some(Name::new(&name).ok()?.to_owned())
}
