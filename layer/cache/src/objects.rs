//! All objects that are in memory; the others are in the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{Entry, NodeId, PersistentHandle};
use tombolo_core::{Error, Result};

use crate::object::Object;
use crate::options::Contract;
use crate::origin::Origin;
use crate::removals::UnknownRemoval;
use crate::store::{ObjectId, Store};

/// The objects, by their numbers and by the origin's handles.
#[derive(Default)]
pub(crate) struct Objects {
    tables: Mutex<Tables>,
    /// Held while one is taken in that was not in memory.
    first: Mutex<()>,
    /// Some that were here are in the store alone.
    let_go: AtomicBool,
    pub removal: Arc<UnknownRemoval>,
}

#[derive(Default)]
struct Tables {
    by_id: HashMap<ObjectId, Arc<Object>>,
    by_handle: HashMap<PersistentHandle, ObjectId>,
}

/// So many are in memory: beyond, those that nothing uses go back to the store.
const OBJECTS_MAX: usize = 200_000;

impl Objects {
    /// The object of this number.
    pub(crate) fn object(&self, store: &Store, id: ObjectId) -> Option<Arc<Object>> {
        let known = self.tables().by_id.get(&id).cloned();
        known.or_else(|| self.restore(store, id))
    }

    /// The object of this number, if it is in memory.
    pub(crate) fn in_memory(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.tables().by_id.get(&id).cloned()
    }

    fn restore(&self, store: &Store, id: ObjectId) -> Option<Arc<Object>> {
        let object = match store.queued(id) {
            // Its rows may be being written while it goes.
            Some(object) => Some(object).filter(|object| !object.state().is_gone)?,
            None => {
                let (row, names) = store.object(id)?;
                Arc::new(Object::restored(id, row, names, &self.removal))
            }
        };
        Some(self.add(object))
    }

    /// Takes an object in, unless there is one of that number.
    pub(crate) fn add(&self, object: Arc<Object>) -> Arc<Object> {
        let mut tables = self.tables();
        tables.by_handle.insert(object.handle.clone(), object.id);
        tables.by_id.entry(object.id).or_insert(object).clone()
    }

    /// Takes an object in, in place of any of that number.
    pub(crate) fn replace(&self, object: Arc<Object>) -> Arc<Object> {
        self.tables().by_id.remove(&object.id);
        self.add(object)
    }

    /// The object of an entry that the origin gave in answer to what was asked at `asked`. The entry's look-up is the object's then.
    pub(crate) fn met(
        &self,
        store: &Store,
        origin: &Origin,
        handle: &PersistentHandle,
        (entry, asked, contract): (&Entry, Instant, Contract),
    ) -> Result<Arc<Object>> {
        let object = match self.of_handle(handle).filter(|object| object.learn(&entry.attr, asked, contract))
        {
            Some(object) => object,
            None => self.met_first(store, origin, handle, (entry, asked, contract))?,
        };
        let before = object.state().node.replace(entry.node);
        if let Some(before) = before {
            origin.forget(before);
        }
        Ok(object)
    }

    /// One that is not in memory, or is another file now. One at a time, so that no two numbers are given to one handle.
    fn met_first(
        &self,
        store: &Store,
        origin: &Origin,
        handle: &PersistentHandle,
        (entry, asked, contract): (&Entry, Instant, Contract),
    ) -> Result<Arc<Object>> {
        self.make_room(origin);
        let _one = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let object = match self.of_handle(handle) {
            Some(object) => object,
            None => {
                // Where the index has nothing that is not in memory, it is not asked for each of a million names.
                let is_all_here = store.began_empty && !self.let_go.load(Ordering::Relaxed);
                let known = if is_all_here { None } else { store.id_of(handle) };
                match known.and_then(|id| self.object(store, id)) {
                    Some(object) => object,
                    None => {
                        let id = known.map_or_else(|| store.new_id(), Ok)?;
                        self.add(Arc::new(Object::new(id, handle.clone(), entry.attr, &self.removal)))
                    }
                }
            }
        };
        if object.learn(&entry.attr, asked, contract) {
            return Ok(object);
        }
        // The handle names another file now: that one is new here, and the one before is gone.
        self.forget(&object);
        store.remove(&object);
        let new = self.add(Arc::new(Object::new(store.new_id()?, handle.clone(), entry.attr, &self.removal)));
        new.learn(&entry.attr, asked, contract);
        Ok(new)
    }

    /// The object that the origin calls so, if it was met before.
    pub(crate) fn known(&self, store: &Store, handle: &PersistentHandle) -> Option<Arc<Object>> {
        self.of_handle(handle).or_else(|| self.object(store, store.id_of(handle)?))
    }

    fn of_handle(&self, handle: &PersistentHandle) -> Option<Arc<Object>> {
        let tables = self.tables();
        tables.by_id.get(tables.by_handle.get(handle)?).cloned()
    }

    /// An object is gone at the origin.
    pub(crate) fn forget(&self, object: &Object) {
        object.state().is_gone = true;
        let mut tables = self.tables();
        if tables.by_handle.get(&object.handle) == Some(&object.id) {
            tables.by_handle.remove(&object.handle);
        }
        tables.by_id.remove(&object.id);
    }

    /// All that is known is to be asked for again. What is not in memory is anyway.
    pub(crate) fn doubt_all(&self) {
        let all: Vec<_> = self.tables().by_id.values().cloned().collect();
        all.iter().for_each(|object| object.doubt());
    }

    /// When there are too many, half of those that nothing uses go: what is known of them is in the store.
    fn make_room(&self, origin: &Origin) {
        let mut nodes = Vec::new();
        {
            let mut tables = self.tables();
            if tables.by_id.len() < OBJECTS_MAX {
                return;
            }
            self.let_go.store(true, Ordering::Relaxed);
            let (mut excess, Tables { by_id, by_handle }) = (OBJECTS_MAX / 2, &mut *tables);
            by_id.retain(|id, object| {
                // One that is to be written is held by the queue.
                let is_used = Arc::strong_count(object) > 1 || *id == ObjectId::ROOT;
                if is_used || excess == 0 {
                    return true;
                }
                excess -= 1;
                by_handle.remove(&object.handle);
                nodes.extend(object.state().node);
                false
            });
        }
        nodes.into_iter().for_each(|node| origin.forget(node));
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node of an object here: its number.
pub(crate) fn node_of(id: ObjectId) -> NodeId {
    NodeId(id.0)
}

/// The object that a node stands for.
pub(crate) fn id_of(node: NodeId) -> Result<ObjectId> {
    if node == NodeId::NONE { Err(Error::Stale) } else { Ok(ObjectId(node.0)) }
}
