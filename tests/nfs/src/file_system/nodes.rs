//! Which node has which handle.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::NodeId;
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::FileHandleBuf;

/// The nodes that a session knows, each with its look-ups.
#[derive(Debug)]
pub struct Nodes(Mutex<Table>);

#[derive(Debug)]
struct Table {
    root: NodeId,
    by_id: HashMap<NodeId, Known>,
    by_handle: HashMap<FileHandleBuf, NodeId>,
    last: NodeId,
}

#[derive(Debug)]
struct Known {
    handle: FileHandleBuf,
    look_ups: u64,
}

impl Nodes {
    /// Only the root, which stays.
    pub fn new(root: NodeId, handle: FileHandleBuf) -> Self {
        let by_id = HashMap::from([(root, Known { handle, look_ups: 0 })]);
        let by_handle = HashMap::from([(handle, root)]);
        Self(Mutex::new(Table { root, by_id, by_handle, last: root }))
    }

    /// Counts a look-up of the node of this handle.
    pub fn enter(&self, handle: FileHandleBuf) -> NodeId {
        let mut table = self.lock();
        let node = table.by_handle.get(&handle).copied().unwrap_or_else(|| {
            table.last = NodeId(table.last.0 + 1);
            let node = table.last;
            table.by_handle.insert(handle, node);
            table.by_id.insert(node, Known { handle, look_ups: 0 });
            node
        });
        if let Some(known) = table.by_id.get_mut(&node) {
            known.look_ups += 1;
        }
        node
    }

    /// The handle of a node that is known.
    pub fn handle(&self, node: NodeId) -> Result<FileHandleBuf> {
        self.lock().by_id.get(&node).map(|known| known.handle).ok_or(Error::Stale)
    }

    /// Takes look-ups back.
    pub fn forget(&self, node: NodeId, look_ups: u64) {
        let mut table = self.lock();
        if node == table.root {
            return;
        }
        let Some(known) = table.by_id.get_mut(&node) else { return };
        known.look_ups = known.look_ups.saturating_sub(look_ups);
        if known.look_ups == 0 {
            let handle = known.handle;
            table.by_handle.remove(&handle);
            table.by_id.remove(&node);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
