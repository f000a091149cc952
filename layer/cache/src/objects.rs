//! All objects that are in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{Entry, NodeId, PersistentHandle};
use tombolo_core::{Error, Result};

use crate::object::Object;
use crate::origin::Origin;
use crate::store::{ObjectId, Store};

/// The objects, by their numbers and by the origin's handles.
#[derive(Default)]
pub(crate) struct Objects(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_id: HashMap<ObjectId, Arc<Object>>,
    by_handle: HashMap<PersistentHandle, ObjectId>,
}

impl Objects {
    pub(crate) fn object(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.tables().by_id.get(&id).cloned()
    }

    /// The object of an entry that the origin gave in answer to what was asked at `asked`. The entry's look-up is the object's then.
    pub(crate) fn met(
        &self,
        store: &Store,
        origin: &Origin,
        handle: PersistentHandle,
        entry: &Entry,
        asked: Instant,
    ) -> Result<Arc<Object>> {
        let object = {
            let mut tables = self.tables();
            let known = tables.by_handle.get(&handle).and_then(|id| tables.by_id.get(id).cloned());
            match known {
                Some(object) => object,
                None => {
                    let id = store.id_of(&handle)?;
                    let object = Arc::new(Object::new(id, handle.clone(), entry.node, entry.attr));
                    tables.by_handle.insert(handle.clone(), id);
                    tables.by_id.insert(id, object.clone());
                    drop(tables);
                    object.learn(&entry.attr, asked);
                    return Ok(object);
                }
            }
        };
        if !object.learn(&entry.attr, asked) {
            // The handle names another file now: that one is new here, and the one before is gone.
            self.forget(&object);
            store.remove(object.id);
            return self.met(store, origin, handle, entry, asked);
        }
        let before = object.state().node.replace(entry.node);
        if let Some(before) = before {
            origin.forget(before);
        }
        Ok(object)
    }

    /// Takes an object in, unless there is one of that number.
    pub(crate) fn add(&self, object: Object) -> Arc<Object> {
        let mut tables = self.tables();
        tables.by_handle.insert(object.handle.clone(), object.id);
        tables.by_id.entry(object.id).or_insert_with(|| Arc::new(object)).clone()
    }

    /// An object is gone at the origin.
    pub(crate) fn forget(&self, object: &Object) {
        let mut tables = self.tables();
        if tables.by_handle.get(&object.handle) == Some(&object.id) {
            tables.by_handle.remove(&object.handle);
        }
        tables.by_id.remove(&object.id);
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
