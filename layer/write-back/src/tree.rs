//! Differences between the local tree and the origin: names, and nodes with their attributes and data
//! ([`node`]).
//!
//! The origin is reached through the cache, the file system *below* this layer, and its nodes are known by
//! the cache's numbers. A name has a target at the origin, as far as that is known, and a local target. A
//! locally created node has a permanent number of this layer, and later also one of the cache; other nodes
//! have only the cache's.

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
use crate::rows;
use crate::sums::Blocks;
pub(crate) use node::{Layer, Node, Piece, Set, Xattrs, pieces};

/// Bit set in the numbers of locally created nodes.
pub(crate) const LOCAL_NODE_BIT: u64 = 1 << 62;

/// Prefix of hidden names, which exist at the origin only, for nodes without another name there.
pub(crate) const HIDDEN: &[u8] = b".tombolo-wb-";

/// Maximum number of files whose last found name is retained; at the limit, all are forgotten.
const SEEN_MAX: usize = 1 << 16;

/// Maximum number of layers of a file. With so many, the top one receives writes even while it is being sent,
/// and is then sent again.
pub(crate) const LAYERS_MAX: usize = 4;

/// Maximum number of names in a displayed path; `…` replaces the others.
const SHOWN_DEPTH_MAX: usize = 32;

/// Time for which names without a difference are retained.
const SETTLED_KEPT: Duration = Duration::from_secs(60);

/// Node that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub node: NodeId,
    pub file_type: FileType,
}

/// A name with a difference: its target at the origin and its local one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Target at the origin, as last known; `None` if the name is absent.
    pub at_origin: Option<Target>,
    /// Local target; `None` if the name is absent locally.
    pub local: Option<Target>,
    /// User of the last change.
    pub user: Identity,
    /// `true` if an operation at the origin may have changed the name, so that it must be looked up there.
    pub is_in_doubt: bool,
    /// Time at which both targets became equal; `None` while they differ. The name is retained for a while,
    /// so that listings in progress find it at its position.
    pub settled: Option<Instant>,
}

/// All differences from the origin, and the rows to write for them.
#[derive(Debug)]
pub(crate) struct Tree {
    pub nodes: HashMap<NodeId, Node>,
    pub names: HashMap<NodeId, BTreeMap<NameBuf, Place>>,
    /// Locally created nodes, by the cache's number.
    pub made: HashMap<NodeId, NodeId>,
    /// Names by which files were last found; cleared when there are too many.
    seen: HashMap<NodeId, (NodeId, NameBuf)>,
    /// Number of openings of each node.
    pub open: HashMap<NodeId, u32>,
    /// Number of the latest change, counted over all runs of the proxy.
    pub change: u64,
    /// Counter, incremented when earlier look-ups at the cache, or walks towards the root, may be invalid.
    pub epoch: u64,
    /// Number of unsent bytes.
    pub dirty_bytes: u64,
    /// Reserved numbers for nodes and data files.
    pub ids: Range<u64>,
    /// Random part of hidden names, which distinguishes them from those of other journals.
    pub tag: u64,
    pub files: Arc<DataFiles>,
    /// Nodes that may differ.
    dirty: HashSet<NodeId>,
    /// Nodes and names whose rows are to be written, and the other parts of the next batch.
    touched_nodes: HashSet<NodeId>,
    touched_names: HashSet<(NodeId, NameBuf)>,
    batch: Batch,
}

impl Tree {
    /// Restores the differences from the journal.
    pub(crate) fn restored(
        saved: Kept,
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
            change: saved.change,
            epoch: 0,
            dirty_bytes: 0,
            ids,
            tag: saved.tag,
            files: files.clone(),
            dirty: HashSet::new(),
            touched_nodes: HashSet::new(),
            touched_names: HashSet::new(),
            batch: Batch::default(),
        };
        for (id, row) in saved.nodes {
            let (node, layers) = rows::decoded_node(&row).ok_or_else(|| damaged("nodes"))?;
            let layers = layers.iter().map(|(generation, below_len)| {
                let mut extents = Extents::default();
                let ranges = saved.extents.get(generation).into_iter().flatten();
                ranges.for_each(|range| drop(extents.insert(range.clone())));
                Layer { file: files.file(*generation), extents, below_len: *below_len, is_frozen: true }
            });
            let layers: Vec<_> = layers.collect();
            tree.dirty_bytes += layers.iter().map(|layer| layer.extents.bytes()).sum::<u64>();
            let (id, below) = (NodeId(id), node.below);
            tree.dirty.insert(id);
            tree.made.extend(below.filter(|below| *below != id).map(|below| (below, id)));
            tree.nodes.insert(id, Node { layers, ..node });
        }
        for (dir, name, row) in saved.names {
            let name = Name::new(&name).map_err(|_| damaged("names"))?.to_owned();
            let place = rows::decoded_place(&row).ok_or_else(|| damaged("names"))?;
            // An unfinished operation may have changed the nodes at the origin: their versions are unknown.
            for target in [place.at_origin, place.local].into_iter().flatten().filter(|_| place.is_in_doubt) {
                tree.node_mut(target.node).into_iter().for_each(|node| node.version = None);
            }
            tree.names.entry(NodeId(dir)).or_default().insert(name, place);
        }
        // Forgets unnamed files that the previous run had open.
        tree.forget_unused();
        Ok(tree)
    }

    /// Logs each block whose data fail their checksum, with its file. Returns the number of blocks.
    pub(crate) fn log_damaged_blocks(&self, torn: &HashMap<u64, Vec<Range<u64>>>) -> u64 {
        let mut count = 0;
        for (id, node) in &self.nodes {
            for span in node.layers.iter().filter_map(|layer| torn.get(&layer.file.generation)).flatten() {
                count += 1;
                tracing::error!(
                    node = id.0,
                    path = self.shown_path(*id),
                    ?span,
                    "data fail their checksum: kept as found on the disk"
                );
            }
        }
        count
    }

    /// Returns the local number of a node of the cache.
    pub(crate) fn local_id(&self, below: NodeId) -> NodeId {
        self.made.get(&below).copied().unwrap_or(below)
    }

    /// Returns the cache's number of a node; `None` if the origin lacks the node, as then the cache does.
    pub(crate) fn below(&self, id: NodeId) -> Option<NodeId> {
        match self.nodes.get(&id) {
            Some(node) => node.below,
            None if id.0 & LOCAL_NODE_BIT == 0 => Some(id),
            None => None,
        }
    }

    pub(crate) fn place(&self, dir: NodeId, name: &NameBuf) -> Option<&Place> {
        self.names.get(&dir)?.get(name)
    }

    /// Returns the nodes of the cache that a name refers to.
    fn cache_ids_of(&self, dir: NodeId, place: &Place) -> impl Iterator<Item = NodeId> {
        let targets = [place.at_origin, place.local].map(|target| self.below(target?.node));
        targets.into_iter().chain([self.below(dir)]).flatten()
    }

    /// Returns all nodes of the cache that differences refer to.
    pub(crate) fn cache_ids(&self) -> HashSet<NodeId> {
        let of_nodes = self.nodes.values().filter_map(|node| node.below);
        let places = self.names.iter().flat_map(|(dir, names)| names.values().map(|place| (*dir, place)));
        of_nodes.chain(places.flat_map(|(dir, place)| self.cache_ids_of(dir, place))).collect()
    }

    /// Marks a node as changed and returns it, created from the cache's attributes `attr` if it has no entry.
    /// A node without unsent changes adopts `attr`, and their version if another writer has changed it.
    pub(crate) fn touch(&mut self, id: NodeId, attr: &Attr) -> &mut Node {
        self.touched(id);
        let node = self.nodes.entry(id).or_insert_with(|| Node::below(id, *attr));
        if !node.is_dirty() {
            if attr.ctime != node.attr.ctime {
                // Another writer has changed the node since, as its new ctime shows.
                node.version = Some(WeakAttr::from(attr));
            }
            node.attr = *attr;
        }
        node
    }

    /// Marks a node as changed, so that its row is written, and returns it; `None` if it has no entry: the
    /// row is then removed.
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

    /// Forgets a node without a name that was never created at the origin, unless it is open or being sent.
    pub(crate) fn forget_if_unused(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| node.below.is_none()) {
            self.forget_unless(id, |_| false);
        }
    }

    /// Forgets all nodes without a local name and without one at the origin, unless they are open or being
    /// sent.
    pub(crate) fn forget_unused(&mut self) {
        let gone: Vec<_> = self.dirty.iter().copied().filter(|id| self.is_unnamed(*id)).collect();
        let places = self.names.values().flat_map(BTreeMap::values);
        // A name in doubt may lead to one of these nodes.
        if gone.is_empty() || places.clone().any(|place| place.is_in_doubt) {
            return;
        }
        let named: HashSet<NodeId> =
            places.filter_map(|place| place.at_origin).map(|target| target.node).collect();
        for id in gone {
            self.forget_unless(id, |id| named.contains(&id));
        }
    }

    fn forget_unless(&mut self, id: NodeId, is_named_below: impl FnOnce(NodeId) -> bool) {
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

    /// Changes the local target of a name. `below` is its target at the origin, used if none is recorded.
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
            at_origin: below,
            local: below,
            user: user.clone(),
            is_in_doubt: false,
            settled: None,
        });
        place.local = now;
        place.user = user.clone();
        self.settle(dir, name);
    }

    /// Records the target of a name at the origin. A name without an entry is absent locally, like a hidden
    /// name: it is to be removed at the origin, too.
    pub(crate) fn set_below(&mut self, dir: NodeId, name: &NameBuf, below: Option<Target>) {
        self.touched_names.insert((dir, name.clone()));
        let names = self.names.entry(dir).or_default();
        let place = names.entry(name.clone()).or_insert_with(|| Place {
            at_origin: None,
            local: None,
            user: Identity::ROOT,
            is_in_doubt: false,
            settled: None,
        });
        place.at_origin = below;
        self.settle(dir, name);
    }

    /// Records whether an operation may have changed the target of a name at the origin.
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

    /// Returns `true` if a name's targets differ, the one at the origin is in doubt, or the local one does
    /// not exist there yet.
    pub(crate) fn differs(&self, place: &Place) -> bool {
        place.is_in_doubt
            || place.at_origin != place.local
            || place.local.is_some_and(|now| self.below(now.node).is_none())
    }

    pub(crate) fn differences(&self) -> impl Iterator<Item = (NodeId, &NameBuf, &Place)> {
        let all =
            self.names.iter().flat_map(|(dir, names)| names.iter().map(|(name, place)| (*dir, name, place)));
        all.filter(|(_, _, place)| self.differs(place))
    }

    /// Records the cache's number of a locally created node, once the origin has it. Recorded names stay.
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

    /// Returns the named nodes of which the origin lacks data or attributes. Without `tries_refused`, those
    /// of which the origin lacks only what it has refused are omitted.
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

    /// Returns the path of a node for display, as far as it is known.
    pub(crate) fn shown_path(&self, id: NodeId) -> String {
        let (mut at, mut parts) = (id, Vec::new());
        while at != NodeId::ROOT && parts.len() < SHOWN_DEPTH_MAX {
            let Some((dir, name)) = self.last_name_of(at).or_else(|| self.place_of(at)) else {
                parts.push(format!("(file {:x})", at.0));
                break;
            };
            parts.push(name.as_name().to_string());
            at = dir;
        }
        if parts.len() == SHOWN_DEPTH_MAX && at != NodeId::ROOT {
            parts.push("…".to_owned());
        }
        parts.reverse();
        parts.join("/")
    }

    /// Finds a changed name that leads to a node.
    pub(crate) fn place_of(&self, id: NodeId) -> Option<(NodeId, NameBuf)> {
        let mut places = self.names.iter().flat_map(|(dir, names)| names.iter().map(move |one| (*dir, one)));
        let found = places.find(|(_, (_, place))| place.local.is_some_and(|now| now.node == id));
        found.map(|(dir, (name, _))| (dir, name.clone()))
    }

    /// Marks a node as being sent: later changes are for the next round.
    pub(crate) fn send(&mut self, id: NodeId) -> Option<&Node> {
        let node = self.nodes.get_mut(&id)?;
        node.is_sent = true;
        node.sending |= std::mem::take(&mut node.set);
        node.layers.iter_mut().for_each(|layer| layer.is_frozen = true);
        Some(node)
    }

    /// Returns the layer of a file that receives writes, added if necessary; `None` if the file is not in
    /// `nodes`, or no number is left.
    pub(crate) fn top_layer(&mut self, id: NodeId) -> Option<&mut Layer> {
        let node = self.nodes.get_mut(&id)?;
        if node.layers.len() >= LAYERS_MAX {
            node.thaw();
        }
        if node.layers.last().is_none_or(|top| top.is_frozen) {
            let below_len = if node.below.is_none() && node.layers.is_empty() { 0 } else { node.attr.size };
            let generation = self.ids.next()?;
            let file = self.files.file(generation);
            let layer = Layer { file, extents: Extents::default(), below_len, is_frozen: false };
            self.node_mut(id)?.layers.push(layer);
        }
        self.nodes.get_mut(&id)?.layers.last_mut()
    }

    /// Returns the data file of a file's top layer, if it has layers.
    pub(crate) fn top_file(&self, id: NodeId) -> Option<&Arc<DataFile>> {
        Some(&self.nodes.get(&id)?.layers.last()?.file)
    }

    /// Records data written to a file of the local disk; `journaled` go to the journal, too.
    pub(crate) fn record_write(
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

    /// Changes the size of a file. Data beyond the new size are dropped, and read as zeroes if the file grows
    /// again.
    pub(crate) fn set_size(&mut self, id: NodeId, size: u64) {
        let before = self.nodes.get(&id).map_or(0, |node| node.attr.size);
        if size == before {
            return;
        }
        // The caller has the node's entry, and `Shared::change` reserves numbers for each change.
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

    /// Drops a layer whose data are at the origin, or obsolete.
    pub(crate) fn drop_layer(&mut self, layer: Layer) {
        self.dirty_bytes = self.dirty_bytes.saturating_sub(layer.extents.bytes());
        layer.file.mark_for_removal();
        self.batch.gone.push(layer.file);
    }

    pub(crate) fn at_origin(&mut self, change: u64) {
        self.batch.at_origin = Some(change);
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.dirty_count() == 0 && self.differences().next().is_none()
    }

    /// Counts the nodes of which the origin lacks something.
    pub(crate) fn dirty_count(&self) -> usize {
        let is_dirty =
            |id: &&NodeId| self.nodes.get(id).is_some_and(Node::is_dirty) && !self.is_unnamed(**id);
        self.dirty.iter().filter(is_dirty).count()
    }

    /// Returns `true` if any of the selected files has data to send.
    pub(crate) fn has_unsent_data(&self, is_selected: impl Fn(NodeId) -> bool) -> bool {
        let has_data = |id: &NodeId| self.nodes.get(id).is_some_and(|node| !node.layers.is_empty());
        self.dirty.iter().any(|id| has_data(id) && !self.is_unnamed(*id) && is_selected(*id))
    }

    /// Records the name by which a file was found.
    pub(crate) fn record_lookup_name(&mut self, id: NodeId, dir: NodeId, name: &NameBuf) {
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        self.seen.insert(id, (dir, name.clone()));
    }

    pub(crate) fn last_name_of(&self, id: NodeId) -> Option<(NodeId, NameBuf)> {
        self.seen.get(&id).cloned()
    }

    pub(crate) fn is_dirty(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(Node::is_dirty)
    }

    /// Returns `true` for a node without a name, which is not sent.
    pub(crate) fn is_unnamed(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.attr.nlink == 0)
    }

    /// Takes the rows of everything changed since the last call.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let mut batch = std::mem::take(&mut self.batch);
        for id in self.touched_nodes.drain() {
            let node = self.nodes.get(&id);
            batch.numbers.extend(node.and_then(|node| node.below));
            batch.nodes.insert(id.0, node.map(rows::encoded_node));
        }
        for (dir, name) in std::mem::take(&mut self.touched_names) {
            let place = self.names.get(&dir).and_then(|names| names.get(&name));
            let place = place.filter(|place| self.differs(place));
            batch.numbers.extend(place.into_iter().flat_map(|place| self.cache_ids_of(dir, place)));
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

/// Returns the hidden name at the origin of a node without another name there. `tag` is the journal's.
pub(crate) fn hidden_name(tag: u64, id: NodeId) -> Option<NameBuf> {
    let name = [HIDDEN, format!("{tag:08x}-{:x}", id.0).as_bytes()].concat();
    Some(Name::new(&name).ok()?.to_owned())
}
