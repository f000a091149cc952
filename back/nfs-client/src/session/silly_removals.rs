//! Removals of the temporary names of files whose last opening has ended. Callers have nothing of these files any more: a directory that
//! holds no other name is empty for them, so its removal waits for the end of these.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::NodeId;
use tombolo_core::{Interrupt, Raised};

/// Those that are under way: how many in a directory, and the event that all have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct SillyRemovals(Arc<Mutex<HashMap<NodeId, (usize, Interrupt)>>>);

/// Held while a name in a directory is being removed.
#[derive(Debug)]
pub(super) struct SillyRemoval {
    all: SillyRemovals,
    dir: NodeId,
}

impl SillyRemovals {
    pub(super) fn begin(&self, dir: NodeId) -> SillyRemoval {
        self.lock().entry(dir).or_insert_with(|| (0, Interrupt::new())).0 += 1;
        SillyRemoval { all: self.clone(), dir }
    }

    /// The end of those that are under way in a directory, if any are.
    pub(super) fn end(&self, dir: NodeId) -> Option<Raised> {
        self.lock().get(&dir).map(|(_, over)| over.raised())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, (usize, Interrupt)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SillyRemoval {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let Some((count, _)) = all.get_mut(&self.dir) else { return };
        *count -= 1;
        let over = if *count == 0 { all.remove(&self.dir) } else { None };
        drop(all);
        // Outside of the lock: those that wait may go on here.
        over.iter().for_each(|(_, over)| over.raise());
    }
}
