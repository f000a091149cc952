//! The export: a tree that its sessions share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use tombolo_core::Result;
use tombolo_core::fs::{Client, Export, FileSystem, LockTable, Watchers};

use crate::options::Options;
use crate::session::Session;
use crate::tree::{ExportState, Tree};

/// An in-memory file system that sessions attach to. All share one tree, whose root initially belongs to the
/// superuser and has mode 0755. The tree lives as long as the export or any session.
pub struct Memory {
    shared: Arc<ExportState>,
}

impl Memory {
    /// Creates an export of an empty tree.
    pub fn new(options: Options) -> Self {
        let tree = Mutex::new(Tree::new(&options));
        Self {
            shared: Arc::new(ExportState {
                options,
                tree,
                locks: LockTable::default(),
                next_id: AtomicU64::new(1),
                watchers: Watchers::default(),
                window: OnceLock::new(),
            }),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Export for Memory {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Session::new(self.shared.clone(), client.checks))
    }
}
