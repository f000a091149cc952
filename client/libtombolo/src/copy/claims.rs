//! Claims on parts that are being written.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{NameBuf, NodeId};

/// The parts, files under temporary names, that this copy is writing. Two sources with one target would write
/// the same part.
#[derive(Clone, Default)]
pub(super) struct Claims(Arc<Mutex<HashSet<(NodeId, NameBuf)>>>);

pub(super) struct Claim {
    claims: Claims,
    part: (NodeId, NameBuf),
}

impl Claims {
    /// Acquires the claim on a part, unless another file's copy has it.
    pub fn take(&self, dir: NodeId, part: &NameBuf) -> Option<Claim> {
        let part = (dir, part.clone());
        self.lock().insert(part.clone()).then(|| Claim { claims: self.clone(), part })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(NodeId, NameBuf)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.part);
    }
}
