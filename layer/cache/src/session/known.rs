//! Nodes that a session knows by look-ups. The session is notified only of changes of these nodes and of the
//! root; a file stays usable through its node after its last name was removed.

use std::collections::HashMap;
use std::sync::Mutex;

use tombolo_core::fs::{NodeId, Notice};
use tombolo_core::lock;

/// Look-up counts of a session's nodes.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashMap<NodeId, u64>>);

impl Known {
    /// Adds a look-up of a node, before its attributes are read, so that no later change goes unnotified.
    pub(crate) fn given(&self, node: NodeId) {
        *lock(&self.0).entry(node).or_default() += 1;
    }

    pub(crate) fn forget(&self, nodes: &[(NodeId, u64)]) {
        let mut lookups = lock(&self.0);
        for (node, count) in nodes {
            if let Some(left) = lookups.get_mut(node) {
                *left = left.saturating_sub(*count);
                if *left == 0 {
                    lookups.remove(node);
                }
            }
        }
    }

    pub(crate) fn forget_all(&self) {
        lock(&self.0).clear();
    }

    pub(crate) fn contains(&self, node: NodeId) -> bool {
        lock(&self.0).contains_key(&node)
    }

    /// Returns `true` if the session is to be notified.
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
}
