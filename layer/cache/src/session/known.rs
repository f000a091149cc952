//! The nodes that a session knows: it is told of changes of these alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{NodeId, Notice};

/// The nodes that a session was given, and how often; `None` where sessions are not told of changes.
#[derive(Debug)]
pub(crate) struct Known(Option<Mutex<HashMap<NodeId, u64>>>);

impl Known {
    pub(crate) fn new(is_told: bool) -> Self {
        Self(is_told.then(Mutex::default))
    }

    /// The session is given a node. To be called before its attributes are looked at: later changes are told.
    pub(crate) fn given(&self, node: NodeId) {
        if let Some(mut lookups) = self.lookups() {
            *lookups.entry(node).or_default() += 1;
        }
    }

    /// The session gives back nodes, each so often.
    pub(crate) fn forget(&self, nodes: &[(NodeId, u64)]) {
        let Some(mut lookups) = self.lookups() else { return };
        for (node, count) in nodes {
            if let Some(left) = lookups.get_mut(node) {
                *left = left.saturating_sub(*count);
                if *left == 0 {
                    lookups.remove(node);
                }
            }
        }
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
        node == NodeId::ROOT || self.lookups().is_some_and(|lookups| lookups.contains_key(&node))
    }

    fn lookups(&self) -> Option<MutexGuard<'_, HashMap<NodeId, u64>>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
