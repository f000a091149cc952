//! The nodes of a session: identities, look-up counts, and the means to open them again.
//!
//! Sized for a hundred thousand nodes: slots are small, and shards reduce contention.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use tombolo_core::fs::{Name, NameBuf, NodeId};
use tombolo_core::{Error, Result, lock};
use tombolo_sys::handle::FileHandle;

/// Key of a file, unique among living files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub inode: u64,
    /// The device, packed as the kernel does (12 and 20 bits).
    pub device: u32,
    /// Mount through which the file was reached: an index of `Mounts`.
    pub mount: u32,
}

/// Identity of a node's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub key: Key,
    /// Birth time, see [`crate::attr::birth_ns`].
    pub birth: u64,
    /// Type bits of the file's mode.
    pub kind: u32,
}

/// The means to find a node without a descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Anchor {
    /// None yet: the descriptor must stay open, on a file system with handles until one is fetched.
    None,
    /// Handle by which the file can be opened.
    Handle(FileHandle),
    /// Name under which the file was looked up.
    Name(Box<(NodeId, NameBuf)>),
}

impl Anchor {
    /// Returns the directory that an anchoring name is in.
    fn parent(&self) -> Option<NodeId> {
        match self {
            Self::Name(location) => Some(location.0),
            _ => None,
        }
    }
}

/// Volatility of a file, according to the names under which it was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Naming {
    /// The file was not looked up under a name yet.
    #[default]
    Unnamed,
    /// All names seen so far are ordinary.
    Plain,
    /// At least one name makes the file volatile.
    Volatile,
}

/// State of a node: its descriptor, or the means to find its file again.
pub(crate) enum NodeState {
    Open(Identity, Arc<OwnedFd>),
    Closed(Identity, Anchor),
}

/// Result of [`NodeTable::adopt`].
pub(crate) struct Adopted {
    pub node: NodeId,
    /// `true` if the node is new, or was forgotten.
    pub is_new: bool,
    /// `true` if the table took the descriptor.
    pub installed: bool,
}

/// Result of trying to close a node's descriptor.
pub(crate) enum Cooled {
    /// The node has no descriptor.
    NoDescriptor,
    /// The node was used since the last attempt.
    InUse,
    /// The descriptor may be closed, if the file can be found again without it.
    Idle { descriptor: Arc<OwnedFd>, anchor: Anchor, mount: u32 },
}

/// Resources released by forgotten nodes.
#[derive(Default)]
pub(crate) struct Freed {
    /// Number of freed nodes.
    pub nodes: u64,
    /// Descriptors from the table; closed when dropped.
    pub descriptors: Vec<Arc<OwnedFd>>,
}

/// Number of parts of the table, each with a lock of its own.
const SHARDS: usize = 16;

/// Maximum number of forgotten nodes whose numbers a shard retains: the client's kernel puts numbers into
/// file handles (open_by_handle_at(2)), and may look them up after it has forgotten the node.
const FORGOTTEN_MAX: usize = 1024;

/// All nodes of a session except the root.
pub(crate) struct NodeTable {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    slots: Vec<NodeSlot>,
    free: Vec<u32>,
    /// Slots of forgotten nodes with their generations, oldest first; some are in use again, possibly by
    /// other nodes.
    forgotten: VecDeque<(u32, u32)>,
    index: HashMap<Key, u32, BuildHasherDefault<KeyHasher>>,
}

struct NodeSlot {
    /// Incremented when a node takes the slot and when it leaves, so that no id is issued twice. Odd while
    /// the slot has a node.
    generation: u32,
    /// Number of nodes anchored to this one by name, which it must outlive.
    dependants: u32,
    look_ups: u64,
    /// `true` once the client has forgotten the node, whose number is retained.
    forgotten: bool,
    identity: Identity,
    /// `true` if used since [`NodeTable::cool`] last examined the node.
    recently_used: bool,
    descriptor: Option<Arc<OwnedFd>>,
    /// Number of open files of this node, which have descriptors of their own.
    openings: u32,
    anchor: Anchor,
    /// `true` if the file was last known alive within a clock tick of its birth, and the node has no
    /// descriptor. Ignored while files of it are open. If it has been deleted since, another file may have
    /// got its inode number and birth within the same tick: only the handle tells them apart.
    ambiguous: bool,
    naming: Naming,
}

impl NodeTable {
    pub fn new() -> Self {
        Self { shards: Default::default() }
    }

    /// Counts a look-up of the node of this file. Returns `None` if there is no node, or if it is not certain
    /// that its file is still the same.
    pub fn hit(&self, identity: &Identity) -> Option<NodeId> {
        let shard_number = shard_of(&identity.key);
        let mut shard = self.lock(shard_number);
        let index = *shard.index.get(&identity.key)?;
        let slot = shard.slots.get_mut(index as usize)?;
        if slot.forgotten {
            return None;
        }
        // A descriptor keeps the inode alive, so the inode number identifies the file; otherwise the birth
        // time must match.
        let born_then = identity.birth != 0 && slot.identity.birth == identity.birth;
        let same = slot.is_alive() || (born_then && !slot.ambiguous);
        if !same {
            return None;
        }
        slot.look_ups += 1;
        slot.recently_used = true;
        Some(slot.id(shard_number, index))
    }

    /// Finds or creates the node of a file, and counts a look-up of it. A node without a descriptor gets
    /// `descriptor`.
    pub fn adopt(&self, identity: Identity, descriptor: Option<&Arc<OwnedFd>>, anchor: Anchor) -> Adopted {
        let shard_number = shard_of(&identity.key);
        let mut shard = self.lock(shard_number);
        if let Some(&index) = shard.index.get(&identity.key)
            && let Some(slot) = shard.slots.get_mut(index as usize)
            && slot.is(&identity, &anchor)
        {
            let is_new = std::mem::take(&mut slot.forgotten);
            slot.look_ups += 1;
            slot.recently_used = true;
            let installed = slot.descriptor.is_none() && descriptor.is_some();
            if installed {
                slot.descriptor = descriptor.cloned();
                slot.ambiguous = false;
            } else if slot.ambiguous && !is_newborn(identity.birth) {
                // The handle proves that the file is alive, and no other file can get its birth any more.
                slot.ambiguous = false;
            }
            return Adopted { node: slot.id(shard_number, index), is_new, installed };
        }
        let index = shard.vacant(identity);
        shard.index.insert(identity.key, index);
        let slot = &mut shard.slots[index as usize];
        slot.look_ups = 1;
        slot.recently_used = true;
        slot.descriptor = descriptor.cloned();
        slot.ambiguous =
            descriptor.is_none() && matches!(anchor, Anchor::Handle(_)) && is_newborn(identity.birth);
        let parent = anchor.parent();
        slot.anchor = anchor;
        let node = slot.id(shard_number, index);
        drop(shard);
        if let Some(parent) = parent {
            self.with(parent, |slot| slot.dependants += 1);
        }
        Adopted { node, is_new: true, installed: descriptor.is_some() }
    }

    /// Returns a node's state; [`Error::Stale`] if there is no such node.
    pub fn find(&self, node: NodeId) -> Result<NodeState> {
        self.with(node, |slot| {
            slot.recently_used = true;
            match &slot.descriptor {
                Some(descriptor) => NodeState::Open(slot.identity, descriptor.clone()),
                None => NodeState::Closed(slot.identity, slot.anchor.clone()),
            }
        })
        .ok_or(Error::Stale)
    }

    /// Gives a node a descriptor, unless it has one. Returns `true` if the node got this one.
    pub fn install(&self, node: NodeId, descriptor: &Arc<OwnedFd>) -> bool {
        let taken = self.with(node, |slot| {
            let vacant = slot.descriptor.is_none();
            if vacant {
                slot.descriptor = Some(descriptor.clone());
                slot.ambiguous = false;
            }
            vacant
        });
        taken.unwrap_or(false)
    }

    /// Counts an open file of the node: until [`NodeTable::closes`], its inode number is not reused.
    pub fn opens(&self, node: NodeId) {
        self.with(node, |slot| slot.openings += 1);
    }

    /// Discounts an open file. Must be called before its descriptor is closed, because the inode number may
    /// be reused from then on.
    pub fn closes(&self, node: NodeId) {
        self.with(node, |slot| {
            slot.openings = slot.openings.saturating_sub(1);
            slot.ambiguous &= is_newborn(slot.identity.birth);
        });
    }

    /// Checks if a node's descriptor may be closed: it may be if the node was not used since the last check.
    pub fn cool(&self, node: NodeId) -> Cooled {
        let cooled = self.with(node, |slot| match &slot.descriptor {
            None => Cooled::NoDescriptor,
            Some(_) if slot.recently_used => {
                slot.recently_used = false;
                Cooled::InUse
            }
            Some(descriptor) => Cooled::Idle {
                descriptor: descriptor.clone(),
                anchor: slot.anchor.clone(),
                mount: slot.identity.key.mount,
            },
        });
        cooled.unwrap_or(Cooled::NoDescriptor)
    }

    /// Replaces a node's descriptor by `anchor`. Returns the descriptor for the caller to drop.
    pub fn close(&self, node: NodeId, anchor: Anchor) -> Option<Arc<OwnedFd>> {
        self.with(node, |slot| {
            slot.ambiguous = matches!(anchor, Anchor::Handle(_)) && is_newborn(slot.identity.birth);
            slot.anchor = anchor;
            slot.descriptor.take()
        })?
    }

    /// Calls `act` with a node's handle and the index of its mount, if the handle is cached.
    pub fn with_handle<T>(&self, node: NodeId, act: impl FnOnce(&FileHandle, u32) -> T) -> Option<T> {
        self.with(node, |slot| match &slot.anchor {
            Anchor::Handle(handle) => Some(act(handle, slot.identity.key.mount)),
            _ => None,
        })?
    }

    /// Caches the handle of a node without an anchor.
    pub fn remember_handle(&self, node: NodeId, handle: FileHandle) {
        self.with(node, |slot| {
            if matches!(slot.anchor, Anchor::None) {
                slot.anchor = Anchor::Handle(handle);
            }
        });
    }

    /// Returns the descriptor of a node if subtracting this many look-ups leaves none, and `true` if the node
    /// has an anchor.
    pub fn last_descriptor(&self, node: NodeId, look_ups: u64) -> Option<(Arc<OwnedFd>, bool)> {
        self.with(node, |slot| {
            let descriptor = slot.descriptor.as_ref().filter(|_| slot.look_ups <= look_ups)?;
            Some((descriptor.clone(), !matches!(slot.anchor, Anchor::None)))
        })?
    }

    /// Returns the identity and the handle of a forgotten node whose number is still retained.
    pub fn forgotten(&self, node: NodeId) -> Option<(Identity, FileHandle)> {
        let (shard_number, index, generation) = parts(node);
        let shard = self.lock(shard_number);
        let slot = shard.slots.get(index as usize)?;
        match &slot.anchor {
            Anchor::Handle(handle) if slot.forgotten && slot.generation == generation => {
                Some((slot.identity, handle.clone()))
            }
            _ => None,
        }
    }

    /// Returns a node's key; `None` if the node is unknown or forgotten.
    pub fn key_of(&self, node: NodeId) -> Option<Key> {
        self.with(node, |slot| slot.identity.key)
    }

    /// Records that a file was looked up under a name that makes it `volatile` or not. Returns its
    /// volatility, and `true` if it had been looked up under ordinary names only and is now volatile.
    pub fn note_name(&self, node: NodeId, volatile: bool) -> (bool, bool) {
        let volatility = self.with(node, |slot| {
            let before = slot.naming;
            if before != Naming::Volatile {
                slot.naming = if volatile { Naming::Volatile } else { Naming::Plain };
            }
            (slot.naming == Naming::Volatile, volatile && before == Naming::Plain)
        });
        volatility.unwrap_or((true, false))
    }

    /// Returns `true` if a file was looked up under a volatile name, or under none.
    pub fn is_volatile(&self, node: NodeId) -> bool {
        self.with(node, |slot| slot.naming != Naming::Plain).unwrap_or(true)
    }

    pub fn is_open(&self, node: NodeId) -> bool {
        self.with(node, |slot| slot.descriptor.is_some()).unwrap_or(false)
    }

    /// Returns `true` if a node has this key and only a handle can tell whether a file with the key is the
    /// node's.
    pub fn is_ambiguous(&self, key: &Key) -> bool {
        let shard = self.lock(shard_of(key));
        let slot = shard.index.get(key).and_then(|&index| shard.slots.get(index as usize));
        slot.is_some_and(|slot| slot.ambiguous)
    }

    /// Returns the node with this key, without counting a look-up.
    pub fn peek(&self, key: &Key) -> Option<NodeId> {
        let shard_number = shard_of(key);
        let shard = self.lock(shard_number);
        let index = *shard.index.get(key)?;
        let slot = shard.slots.get(index as usize).filter(|slot| !slot.forgotten)?;
        Some(slot.id(shard_number, index))
    }

    pub fn anchored_to(&self, node: NodeId, parent: NodeId, name: Name<'_>) -> bool {
        let by_name = |slot: &mut NodeSlot| match &slot.anchor {
            Anchor::Name(location) => location.0 == parent && location.1.as_name() == name,
            _ => false,
        };
        self.with(node, by_name).unwrap_or(false)
    }

    /// Replaces a node's anchor. Returns the resources of nodes that existed only for the former one.
    pub fn re_anchor(&self, node: NodeId, anchor: Anchor) -> Freed {
        let parent = anchor.parent();
        if let Some(parent) = parent {
            self.with(parent, |slot| slot.dependants += 1);
        }
        let before = self.with(node, |slot| std::mem::replace(&mut slot.anchor, anchor).parent());
        self.release_parents(before.unwrap_or(parent))
    }

    /// Subtracts look-ups, at most as many as there are, and frees nodes not needed any more.
    pub fn forget(&self, node: NodeId, count: u64) -> Freed {
        self.with(node, |slot| slot.look_ups = slot.look_ups.saturating_sub(count));
        self.free_chain(node)
    }

    fn release_parents(&self, parent: Option<NodeId>) -> Freed {
        let Some(parent) = parent else { return Freed::default() };
        self.with(parent, |slot| slot.dependants = slot.dependants.saturating_sub(1));
        self.free_chain(parent)
    }

    /// Frees an unneeded node, then the one that it was anchored to, and so on.
    fn free_chain(&self, node: NodeId) -> Freed {
        let mut freed = Freed::default();
        let mut next = Some(node);
        while let Some(node) = next.take() {
            let (shard_number, index, generation) = parts(node);
            let mut shard = self.lock(shard_number);
            let Some(slot) = shard.slots.get_mut(index as usize) else { break };
            let is_needed = slot.look_ups > 0 || slot.dependants > 0;
            if slot.generation != generation || slot.forgotten || is_needed {
                break;
            }
            next = slot.anchor.parent();
            freed.nodes += 1;
            freed.descriptors.extend(slot.descriptor.take());
            if matches!(slot.anchor, Anchor::Handle(_)) && slot.identity.birth != 0 {
                shard.keep_number(index);
            } else {
                shard.vacate(index);
            }
            drop(shard);
            if let Some(parent) = next {
                self.with(parent, |slot| slot.dependants = slot.dependants.saturating_sub(1));
            }
        }
        freed
    }

    /// Calls `act` with a node's slot; `None` if the node is unknown or forgotten.
    fn with<T>(&self, node: NodeId, act: impl FnOnce(&mut NodeSlot) -> T) -> Option<T> {
        let (shard_number, index, generation) = parts(node);
        let mut shard = self.lock(shard_number);
        let slot = shard.slots.get_mut(index as usize)?;
        (slot.generation == generation && !slot.forgotten).then(|| act(slot))
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard])
    }
}

impl Shard {
    /// Retains the number of a forgotten node; above the limit, gives up the oldest retained one.
    fn keep_number(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        slot.forgotten = true;
        // Later closes are not counted: [`NodeTable::closes`] ignores forgotten nodes.
        slot.openings = 0;
        slot.ambiguous = is_newborn(slot.identity.birth);
        self.forgotten.push_back((index, slot.generation));
        if self.forgotten.len() > FORGOTTEN_MAX
            && let Some((oldest, generation)) = self.forgotten.pop_front()
            && self.slots.get(oldest as usize).is_some_and(|slot| slot.is_kept(generation))
        {
            self.vacate(oldest);
        }
    }

    /// Frees a slot and invalidates the id of the node in it.
    fn vacate(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        slot.anchor = Anchor::None;
        slot.forgotten = false;
        slot.generation = slot.generation.wrapping_add(1);
        // Slots with exhausted generations are not reused.
        let reusable = slot.generation < u32::MAX - 1;
        let key = slot.identity.key;
        if self.index.get(&key) == Some(&index) {
            self.index.remove(&key);
        }
        if reusable {
            self.free.push(index);
        }
    }

    /// Returns the index of a slot for a new node, a freed one if possible.
    fn vacant(&mut self, identity: Identity) -> u32 {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.generation += 1;
            slot.identity = identity;
            slot.dependants = 0;
            slot.openings = 0;
            slot.naming = Naming::Unnamed;
            return index;
        }
        let slot = NodeSlot {
            generation: 1,
            dependants: 0,
            look_ups: 0,
            forgotten: false,
            identity,
            recently_used: true,
            descriptor: None,
            openings: 0,
            anchor: Anchor::None,
            ambiguous: false,
            naming: Naming::Unnamed,
        };
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }
}

impl NodeSlot {
    fn id(&self, shard: usize, index: u32) -> NodeId {
        NodeId((u64::from(self.generation) << 32) | (u64::from(index) * SHARDS as u64 + shard as u64))
    }

    /// Returns `true` if a descriptor keeps the inode alive.
    fn is_alive(&self) -> bool {
        self.descriptor.is_some() || self.openings > 0
    }

    /// Returns `true` if the slot retains the number of a forgotten node of this generation.
    fn is_kept(&self, generation: u32) -> bool {
        self.forgotten && self.generation == generation
    }

    /// Returns `true` if the slot's file has this identity, and is not an earlier file with the same inode
    /// number.
    fn is(&self, identity: &Identity, anchor: &Anchor) -> bool {
        if self.is_alive() {
            return true;
        }
        if identity.birth != 0 && (self.identity.birth != identity.birth || !self.ambiguous) {
            return self.identity.birth == identity.birth;
        }
        match (&self.anchor, anchor) {
            (Anchor::Handle(known), Anchor::Handle(met)) => known == met,
            (Anchor::Name(known), Anchor::Name(met)) => known == met,
            _ => false,
        }
    }
}

/// Returns `true` if another file may still get this birth time. The clocks of file systems advance at least
/// once a second.
fn is_newborn(birth: u64) -> bool {
    const TICK_NS: u64 = 1_000_000_000;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
    now.abs_diff(birth) < TICK_NS
}

/// Splits a node id into shard, index and generation.
fn parts(node: NodeId) -> (usize, u32, u32) {
    let low = node.0 as u32;
    ((low as usize) % SHARDS, low / SHARDS as u32, (node.0 >> 32) as u32)
}

fn shard_of(key: &Key) -> usize {
    let mut hasher = KeyHasher::default();
    std::hash::Hash::hash(key, &mut hasher);
    // The shard's hash map uses other bits of the hash.
    (hasher.finish() >> 24) as usize % SHARDS
}

/// Hasher for inode numbers. Mixing the bits is enough, because the file system chooses the numbers, not an
/// attacker.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests;
