//! State and memory accounting shared by all objects of a cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tombolo_core::fs::NodeId;

use crate::granted::Term;
use crate::origin::Origin;
use crate::removals::UnknownRemoval;

/// Memory and node counts, the origin's lease, and the last removal of a name whose target was uncertain.
pub(crate) struct Shared {
    pub removal: UnknownRemoval,
    /// Term of the lease granted by the origin, if any is.
    pub term: Arc<Term>,
    origin: Arc<Origin>,
    began: Instant,
    bytes: AtomicUsize,
    nodes: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(origin: &Arc<Origin>) -> Arc<Self> {
        let (bytes, nodes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self {
            removal: UnknownRemoval::default(),
            term: Arc::default(),
            origin: origin.clone(),
            began: Instant::now(),
            bytes,
            nodes,
        })
    }

    pub(crate) fn age_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Returns the approximate memory of all objects, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of objects with a node of the origin.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed)
    }

    pub(crate) fn weighs(&self, before_bytes: usize, now_bytes: usize) {
        self.bytes.fetch_add(now_bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(before_bytes, Ordering::Relaxed);
    }

    /// Records that an object's node at the origin has changed, and releases the look-up of the former node.
    pub(crate) fn has_node(&self, before: Option<NodeId>, now: Option<NodeId>) {
        self.nodes.fetch_add(now.is_some().into(), Ordering::Relaxed);
        if let Some(before) = before {
            self.nodes.fetch_sub(1, Ordering::Relaxed);
            self.origin.forget(before);
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("bytes", &self.bytes)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}
