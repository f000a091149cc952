//! Changes that are answered here and brought to a file system that is far away.
//!
//! Over a cache whose nodes are numbers that never change. What differs from it is in memory, and in a journal on the local disk that is
//! committed in groups; data are in sparse files. Not here yet: bringing them to the origin (`docs/decisions/write-back.md`).
//!
//! Reading order: `tree` (what differs), `journal`, `session` (the operations), `shared`.
#![forbid(unsafe_code)]
#![expect(
    dead_code,
    reason = "what brings changes to the origin is to come, and uses it: docs/decisions/write-back.md"
)]

mod data_file;
mod extents;
mod journal;
mod rows;
mod session;
mod shared;
mod tree;

use std::path::Path;
use std::sync::Arc;

use tombolo_core::Result;
use tombolo_core::fs::{Client, Export, FileSystem, PermissionCheck};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

pub use journal::JournalError;

use journal::Journal;
use session::{Session, WriteBackFileSystem};
use shared::{SESSION, Shared};
use tree::Tree;

/// How changes are kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Writers wait while the origin lacks so many bytes.
    pub dirty_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { dirty_bytes_max: 4 << 30 }
    }
}

/// An export whose changes are answered here.
pub struct WriteBackExport {
    shared: Arc<Shared>,
    _pool: ThreadPool,
}

/// Keeps changes of `below` in `dir`. All of `below`'s changes must come by here.
///
/// # Errors
/// The journal cannot be used, or there is no session below.
pub fn over(below: &dyn Export, dir: &Path, options: Options) -> Result<WriteBackExport> {
    let client = Client { session: SESSION, label: "write-back".into(), checks: PermissionCheck::BackEnd };
    let below = below.attach(&client)?;
    let (journal, kept, files) = Journal::open(dir).map_err(tombolo_core::Error::io)?;
    let ids = journal.reserve_ids(kept.next_id.max(1))?;
    let tree = Tree::kept(kept, ids, &files, dir).map_err(tombolo_core::Error::io)?;
    let pool = ThreadPool::new("write-back", ThreadPoolLimits::default());
    let shared = Arc::new(Shared::new(below, options, (journal, tree), pool.lane()));
    Ok(WriteBackExport { shared, _pool: pool })
}

impl Export for WriteBackExport {
    fn attach(&self, _: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(WriteBackFileSystem::new(Session::new(&self.shared))))
    }
}
