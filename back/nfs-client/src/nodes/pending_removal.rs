//! Nodes whose name is being removed.
//!
//! The decision between removal and silly rename precedes the REMOVE. A later open must not use a reply from
//! before the decision, so it waits for the end of the removal before it queries the server. An open that
//! queries the server counts its opening before it looks for pending removals, and a removal is recorded
//! before it looks for openings: at least one of the two sees the other.

use std::sync::{Arc, Mutex};

use tombolo_core::{Interrupt, Raised, lock};

use super::Node;

/// Pending removals of the node's name, and the event that opens wait for.
#[derive(Debug, Default)]
pub(super) struct PendingRemovals(Mutex<(u32, Interrupt)>);

/// Guard of a removal, from before the decision until the reply.
#[derive(Debug)]
pub(crate) struct PendingRemoval(Arc<Node>);

impl PendingRemoval {
    pub(crate) fn begin(node: Arc<Node>) -> Self {
        {
            let mut removals = lock(&node.removals.0);
            if removals.0 == 0 {
                removals.1 = Interrupt::new();
            }
            removals.0 += 1;
        }
        Self(node)
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.0
    }
}

impl Drop for PendingRemoval {
    fn drop(&mut self) {
        let mut removals = lock(&self.0.removals.0);
        removals.0 = removals.0.saturating_sub(1);
        if removals.0 > 0 {
            return;
        }
        let over = std::mem::take(&mut removals.1);
        drop(removals);
        over.raise();
    }
}

impl PendingRemovals {
    /// Returns a future that is ready once the pending removals have ended; `None` if there are none.
    pub(super) fn end(&self) -> Option<Raised> {
        let removals = lock(&self.0);
        (removals.0 > 0).then(|| removals.1.raised())
    }
}
