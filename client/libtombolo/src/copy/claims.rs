//! Claims on parts that are being written.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{NameBuf, NodeId};
use tombolo_core::lock;

/// The parts, files under temporary names, that this copy is writing. Two sources with one target would write
/// the same part.
#[derive(Clone, Default)]
pub(super) struct Claims(Arc<Mutex<HashSet<(NodeId, NameBuf)>>>);

pub(super) struct Claim {
    claims: Claims,
    part: (NodeId, NameBuf),
}

impl Claims {
    /// Acquires the claim on a part; `None` while the copy of another source has it.
    pub fn take(&self, dir: NodeId, part: &NameBuf) -> Option<Claim> {
        let part = (dir, part.clone());
        lock(&self.0).insert(part.clone()).then(|| Claim { claims: self.clone(), part })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.claims.0).remove(&self.part);
    }
}
