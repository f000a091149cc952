//! Nodes known to a session: it is notified of their changes only, and they stay usable without a name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{NodeId, Notice};

/// The nodes that a session was given, and how often.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashMap<NodeId, u64>>);

impl Known {
    /// The session is given a node. To be called before its attributes are looked at: later changes are told.
    pub(crate) fn given(&self, node: NodeId) {
        *self.lookups().entry(node).or_default() += 1;
    }

    /// The session gives back nodes, each so often.
    pub(crate) fn forget(&self, nodes: &[(NodeId, u64)]) {
        let mut lookups = self.lookups();
        for (node, count) in nodes {
            if let Some(left) = lookups.get_mut(node) {
                *left = left.saturating_sub(*count);
                if *left == 0 {
                    lookups.remove(node);
                }
            }
        }
    }

    /// The session ends.
    pub(crate) fn forget_all(&self) {
        self.lookups().clear();
    }

    /// Whether the session was given a node that it has not given back.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.lookups().contains_key(&node)
    }

    /// Whether the session is to be told.
    pub(crate) fn concerns(&self, notice: &Notice) -> bool {
        match notice {
            Notice::Attributes(node) | Notice::Gone { node, .. } | Notice::Data { node, .. } => {
                self.knows(*node)
            }
            Notice::Name { dir, .. } => self.knows(*dir),
            Notice::Everything => true,
        }
    }

    fn knows(&self, node: NodeId) -> bool {
        node == NodeId::ROOT || self.contains(node)
    }

    fn lookups(&self) -> MutexGuard<'_, HashMap<NodeId, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
