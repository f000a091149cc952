//! Table of the objects in memory; other objects are loaded from the store when they are used. Unused objects
//! are evicted from memory when the objects exceed their limit.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use hashbrown::HashTable;
use tombolo_core::fs::{Entry, NodeId, PersistentHandle};
use tombolo_core::{Error, Result, lock};

use crate::object::Object;
use crate::options::Contract;
use crate::origin::Origin;
use crate::shared::Shared;
use crate::store::{ObjectId, Store};

/// Objects by number and by the origin's handle.
pub(crate) struct Objects {
    tables: Mutex<Tables>,
    /// Locked while a handle gets an object, so that no handle gets two objects.
    first: Mutex<()>,
    left: Mutex<Left>,
    /// Number of removals of unused rows so far: if it has changed, rows read meanwhile may be outdated.
    removals: AtomicU64,
    /// `true` once objects were evicted from memory, so that some may be only in the store.
    let_go: AtomicBool,
    /// Memory limit, and the memory and number of nodes at which the next eviction starts.
    memory_bytes: usize,
    bytes_max: AtomicUsize,
    nodes_max: AtomicUsize,
    pub shared: Arc<Shared>,
}

/// Objects in memory: by number, and by the origin's handle unless another object has taken the handle over.
#[derive(Default)]
struct Tables {
    by_id: HashMap<ObjectId, Arc<Object>>,
    by_handle: HashTable<Arc<Object>>,
    hasher: RandomState,
}

/// Times of the last local changes of objects that have left memory: answers to requests made before are not
/// used when the object is loaded again.
#[derive(Default)]
struct Left {
    hasher: RandomState,
    /// Changes by the hash of the origin's handle.
    recent: HashMap<u64, Instant>,
    /// Last change of any object no longer in `recent`.
    before: Option<Instant>,
}

/// Maximum number of changes recorded by handle.
const LEFT_MAX: usize = 4096;

/// Bytes of the memory limit per node of the origin's session; a node takes about 1 KB in the NFS client.
const NODE_BYTES: usize = 2048;

impl Objects {
    pub(crate) fn new(origin: &Arc<Origin>, memory_bytes: usize) -> Self {
        Self {
            tables: Mutex::default(),
            first: Mutex::default(),
            left: Mutex::default(),
            removals: AtomicU64::new(0),
            let_go: AtomicBool::new(false),
            memory_bytes,
            bytes_max: AtomicUsize::new(memory_bytes),
            nodes_max: AtomicUsize::new(memory_bytes / NODE_BYTES),
            shared: Shared::new(origin),
        }
    }

    /// Returns the object of this number, loaded from the store if necessary. Counts as a use.
    pub(crate) fn object(&self, store: &Store, id: ObjectId) -> Option<Arc<Object>> {
        let known = lock(&self.tables).by_id.get(&id).cloned();
        let object = known.or_else(|| self.restore(store, id));
        object.inspect(|object| object.use_it())
    }

    pub(crate) fn in_memory(&self, id: ObjectId) -> Option<Arc<Object>> {
        lock(&self.tables).by_id.get(&id).cloned()
    }

    /// Loads an object of the store, unless it is in memory. Does not count as a use.
    pub(crate) fn restored(&self, store: &Store, id: ObjectId) -> Option<Arc<Object>> {
        self.in_memory(id).or_else(|| self.restore(store, id))
    }

    fn restore(&self, store: &Store, id: ObjectId) -> Option<Arc<Object>> {
        loop {
            let removals = self.removals.load(Ordering::Acquire);
            let object = match store.queued(id) {
                // The object may have been removed while its rows are being written.
                Some(object) => Some(object).filter(|object| !object.state().is_gone)?,
                None => {
                    let (row, names) = store.object(id)?;
                    let object = Object::restored(id, row, names, &self.shared);
                    // Answers to earlier requests do not show the last local change.
                    let changed = lock(&self.left).last_change(&object.handle);
                    let mut state = object.state();
                    (state.latest, state.changed) = (state.latest.max(changed), changed);
                    drop(state);
                    Arc::new(object)
                }
            };
            self.make_room();
            let mut tables = lock(&self.tables);
            // The object's rows may have been removed since they were read, and the file may have got another
            // number.
            if self.removals.load(Ordering::Acquire) == removals {
                let (object, before) = tables.add(object);
                drop(tables);
                drop(before);
                return Some(object);
            }
        }
    }

    /// Removes an object and its row. Returns `false`, and changes nothing, if it is the root or in use, or
    /// `is_wanted` returns `true`.
    pub(crate) fn remove_unused(
        &self,
        store: &Store,
        (id, handle): (ObjectId, &PersistentHandle),
        is_wanted: impl FnOnce() -> bool,
    ) -> bool {
        let mut tables = lock(&self.tables);
        let known = tables.by_id.get(&id);
        let is_unused = known.is_none_or(|known| tables.is_unused(known) && !known.state().is_in_use());
        // A session takes a look-up only while it refers to the object, so none can do so now.
        if id == ObjectId::ROOT || !is_unused || is_wanted() {
            return false;
        }
        let object = tables.by_id.remove(&id);
        let by_handle = object.as_ref().map(|object| tables.take_handle(object));
        self.removals.fetch_add(1, Ordering::Release);
        store.remove_row(id, handle);
        object.iter().for_each(|object| lock(&self.left).add(object, object.state().changed));
        drop(tables);
        drop((object, by_handle));
        true
    }

    /// Adds an object, unless there is one of that number.
    pub(crate) fn add(&self, object: Arc<Object>) -> Arc<Object> {
        self.make_room();
        let mut tables = lock(&self.tables);
        let (object, before) = tables.add(object);
        drop(tables);
        drop(before);
        object
    }

    /// Adds an object, replacing any of that number.
    pub(crate) fn replace(&self, object: Arc<Object>) -> Arc<Object> {
        let before = lock(&self.tables).by_id.remove(&object.id);
        drop(before);
        self.add(object)
    }

    /// Returns the object of an entry from an answer to a request made at `asked`. The object takes over the
    /// entry's look-up.
    pub(crate) fn met(
        &self,
        store: &Store,
        handle: &PersistentHandle,
        (entry, asked, contract): (&Entry, Instant, Contract),
    ) -> Result<Arc<Object>> {
        let object = match self.of_handle(handle).filter(|object| object.learn(&entry.attr, asked, contract))
        {
            Some(object) => object,
            None => self.met_first(store, handle, (entry, asked, contract))?,
        };
        object.set_node(Some(entry.node));
        Ok(object)
    }

    /// Returns the object of a handle that has none in memory, or that the origin now uses for another file
    /// than before. Serialised, so that a handle never gets two numbers.
    fn met_first(
        &self,
        store: &Store,
        handle: &PersistentHandle,
        (entry, asked, contract): (&Entry, Instant, Contract),
    ) -> Result<Arc<Object>> {
        let _one = lock(&self.first);
        let object = match self.of_handle(handle) {
            Some(object) => object,
            None => {
                // If the whole index is in memory, the store is not queried for each of a million new names.
                let is_all_here = store.began_empty && !self.let_go.load(Ordering::Relaxed);
                let known = if is_all_here { None } else { store.id_of(handle) };
                match known.and_then(|id| self.object(store, id)) {
                    Some(object) => object,
                    None => {
                        let id = known.map_or_else(|| store.new_id(), Ok)?;
                        self.add(Arc::new(Object::new(id, handle.clone(), entry.attr, &self.shared)))
                    }
                }
            }
        };
        if object.learn(&entry.attr, asked, contract) {
            self.doubt_late(&object, asked);
            return Ok(object);
        }
        // The handle is another file's now, or another version's of a held file: it gets a new number, and
        // the former object is gone.
        self.forget(&object);
        store.remove(&object);
        let new = self.add(Arc::new(Object::new(store.new_id()?, handle.clone(), entry.attr, &self.shared)));
        new.learn(&entry.attr, asked, contract);
        Ok(new)
    }

    /// Marks an object that was not in memory for revalidation, if the answer to a request made at `asked`
    /// may precede a local change of it.
    pub(crate) fn doubt_late(&self, object: &Object, asked: Instant) {
        if lock(&self.left).last_change(&object.handle).is_some_and(|changed| asked < changed) {
            let mut state = object.state();
            (state.asked, state.latest) = (None, Some(Instant::now()));
        }
    }

    /// Adds an object under the number it had before its row was removed. Returns `None` if the origin's
    /// handle has another number by now, or the number another handle.
    pub(crate) fn add_again(&self, store: &Store, object: Object) -> Option<Arc<Object>> {
        let _one = lock(&self.first);
        let (id, handle) = (object.id, object.handle.clone());
        let known = self.known(store, &handle).or_else(|| self.object(store, id));
        let object = known.unwrap_or_else(|| self.add(Arc::new(object)));
        Some(object).filter(|object| object.id == id && object.handle == handle)
    }

    /// Returns the object with this origin handle, if it is known.
    pub(crate) fn known(&self, store: &Store, handle: &PersistentHandle) -> Option<Arc<Object>> {
        self.of_handle(handle).or_else(|| self.object(store, store.id_of(handle)?))
    }

    fn of_handle(&self, handle: &PersistentHandle) -> Option<Arc<Object>> {
        let found = lock(&self.tables).of_handle(handle).cloned();
        found.inspect(|object| object.use_it())
    }

    /// Marks an object as gone, and removes it from the tables.
    pub(crate) fn forget(&self, object: &Object) {
        object.state().is_gone = true;
        lock(&self.left).add(object, Some(Instant::now()));
        let mut tables = lock(&self.tables);
        let both = (tables.take_handle(object), tables.by_id.remove(&object.id));
        drop(tables);
        drop(both);
    }

    /// Marks everything for revalidation. Objects not in memory are revalidated once loaded.
    pub(crate) fn doubt_all(&self) {
        let all: Vec<_> = lock(&self.tables).by_id.values().cloned().collect();
        all.iter().for_each(|object| object.doubt_all());
    }

    /// Evicts unused objects from memory when all objects together take too much of it, or have too many
    /// nodes of the origin's session. The node of an evicted object is released.
    fn make_room(&self) {
        let (shared, most) = (&self.shared, self.memory_bytes);
        self.keep_below(&self.bytes_max, most, || shared.bytes(), Object::weight_bytes);
        let has_node = |object: &Object| object.node().is_some().into();
        self.keep_below(&self.nodes_max, most / NODE_BYTES, || shared.nodes(), has_node);
    }

    /// Evicts unused objects once the sum `taken`, to which each object contributes `part`, exceeds
    /// `looked_for_at`: until the sum is three quarters of `most`, or no object is unused.
    fn keep_below(
        &self,
        looked_for_at: &AtomicUsize,
        most: usize,
        taken: impl Fn() -> usize,
        part: impl Fn(&Object) -> usize,
    ) {
        if taken() <= looked_for_at.load(Ordering::Relaxed) {
            return;
        }
        let mut tables = lock(&self.tables);
        let gone = tables.take_unused(taken().saturating_sub(most / 4 * 3), part);
        gone.iter().for_each(|object| lock(&self.left).add(object, object.state().changed));
        drop(tables);
        self.let_go.store(true, Ordering::Relaxed);
        drop(gone);
        // The next eviction starts later: if most objects are in use, not each call is to search for others.
        looked_for_at.store(most.max(taken() + most / 4), Ordering::Relaxed);
    }
}

impl Left {
    fn add(&mut self, object: &Object, changed: Option<Instant>) {
        let Some(changed) = changed else { return };
        if self.recent.len() >= LEFT_MAX {
            self.before = self.before.max(self.recent.drain().map(|(_, changed)| changed).max());
        }
        self.recent.insert(self.hasher.hash_one(&object.handle), changed);
    }

    fn last_change(&self, handle: &PersistentHandle) -> Option<Instant> {
        self.before.max(self.recent.get(&self.hasher.hash_one(handle)).copied())
    }
}

impl Tables {
    /// Adds an object, unless there is one of that number. Returns also the former object of its handle,
    /// which must be dropped without the lock, as the drop may call the origin.
    fn add(&mut self, object: Arc<Object>) -> (Arc<Object>, Option<Arc<Object>>) {
        let object = self.by_id.entry(object.id).or_insert(object).clone();
        let before = self.set_handle(&object);
        (object, before)
    }

    fn of_handle(&self, handle: &PersistentHandle) -> Option<&Arc<Object>> {
        self.by_handle.find(self.hasher.hash_one(handle), |object| object.handle == *handle)
    }

    /// Maps the origin's handle to this object. Returns the object to which it led before.
    fn set_handle(&mut self, object: &Arc<Object>) -> Option<Arc<Object>> {
        let hash = self.hasher.hash_one(&object.handle);
        if let Some(known) = self.by_handle.find_mut(hash, |known| known.handle == object.handle) {
            return Some(std::mem::replace(known, object.clone()));
        }
        let hash_of = |object: &Arc<Object>| self.hasher.hash_one(&object.handle);
        self.by_handle.insert_unique(hash, object.clone(), hash_of);
        None
    }

    /// Removes the mapping of the origin's handle to this object.
    fn take_handle(&mut self, object: &Object) -> Option<Arc<Object>> {
        let hash = self.hasher.hash_one(&object.handle);
        let found =
            self.by_handle.find_entry(hash, |known| known.handle == object.handle && known.id == object.id);
        found.ok().map(|found| found.remove().0)
    }

    /// Returns `true` if only these tables refer to an object, so that it may leave memory; never for the
    /// root or a file with an unanswered write. An object queued for writing is referenced by the queue.
    fn is_unused(&self, object: &Arc<Object>) -> bool {
        let by_handle = self.of_handle(&object.handle).is_some_and(|known| Arc::ptr_eq(known, object));
        let is_held = Arc::strong_count(object) > 1 + usize::from(by_handle);
        object.id != ObjectId::ROOT && !is_held && !object.is_unanswered()
    }

    /// Removes unused objects until their parts reach `excess`, as far as there are any; first those not used
    /// lately whose state is in the store.
    fn take_unused(&mut self, excess: usize, part: impl Fn(&Object) -> usize) -> Vec<Arc<Object>> {
        let (mut gone, mut left) = (Vec::new(), excess);
        for spares_used in [true, false] {
            let mut unused = Vec::new();
            for object in self.by_id.values().filter(|object| self.is_unused(object)) {
                let part = part(object);
                if left > 0 && part > 0 && !(spares_used && (object.was_used() || object.state().is_dirty)) {
                    left = left.saturating_sub(part);
                    unused.push(object.clone());
                }
            }
            for object in unused {
                self.by_id.remove(&object.id);
                self.take_handle(&object);
                gone.push(object);
            }
        }
        gone
    }
}

pub(crate) fn node_of(id: ObjectId) -> NodeId {
    NodeId(id.0)
}

/// Returns the number of a node's object; fails with `Stale` for [`NodeId::NONE`].
pub(crate) fn id_of(node: NodeId) -> Result<ObjectId> {
    if node == NodeId::NONE { Err(Error::Stale) } else { Ok(ObjectId(node.0)) }
}
