//! Write-back: changes that are answered locally and sent to a remote file system later.
//!
//! The layer runs over a cache with persistent node numbers, called `below` in the code: a node's *number
//! below* is the cache's. Differences from the cache are in memory and in a local journal that is committed
//! in groups; data are in sparse files, in *layers* per file. A thread sends them to the origin in
//! *attempts*, each of one or more *rounds* (`docs/decisions/write-back.md`).
//!
//! Reading order: `tree` (the differences), `journal`, `database`, `session` (the operations), `origin`
//! (sending changes), `shared`; `trial` (probing the origin's permissions).
#![forbid(unsafe_code)]

mod ahead;
mod below;
mod data_file;
mod database;
mod extents;
mod journal;
mod origin;
mod rows;
mod session;
mod shared;
mod sums;
mod tree;
mod trial;
mod unproven;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::{Client, Export, FileSystem, NodeId};
use tombolo_core::{Ctx, Identity, Result};
use tombolo_host_runtime::task;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

pub use database::JournalError;
pub use origin::{Report, Status};
pub use trial::{Allowed, try_out};

use journal::Journal;
use origin::Sender;
use session::{Session, WriteBackFileSystem};
use shared::{SESSION, Shared, client};
use tree::Tree;

/// Limits and delays of write-back.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Limit of unsent bytes, beyond which writers wait.
    pub dirty_bytes_max: u64,
    /// Time without changes after which pending ones are sent.
    pub idle: Duration,
    /// Age of the oldest unsent change at which changes are sent even while others are made.
    pub delay_max: Duration,
    /// Maximum number of concurrent operations at the origin.
    pub in_flight_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        let (idle, delay_max) = (Duration::from_secs(1), Duration::from_secs(5));
        Self { dirty_bytes_max: 4 << 30, idle, delay_max, in_flight_max: 128 }
    }
}

/// An export whose changes are answered locally and sent to the origin later.
pub struct WriteBackExport {
    sender: Sender,
    shared: Arc<Shared>,
    _pool: ThreadPool,
}

/// Creates an export over `below`, with the unsent changes in `dir`. The caller must make all changes of
/// `below` through this export.
///
/// # Errors
/// Fails if the journal cannot be used, if `below` refuses a session, has no persistent handles or cannot
/// restore a node of the journal, or if the system refuses a thread.
pub fn over(below: &dyn Export, dir: &Path, options: Options) -> Result<WriteBackExport> {
    let below = below.attach(&client())?;
    // Primes the cache: programs call statfs even while the origin is unreachable.
    let _ = below.statfs(&Ctx::root(SESSION), NodeId::ROOT).wait();
    let (journal, mut kept, files) = Journal::open(below.clone(), dir).map_err(tombolo_core::Error::io)?;
    let ids = journal.reserve_ids(kept.next_id.max(1))?;
    let (at_origin, torn) = (kept.at_origin, std::mem::take(&mut kept.torn));
    let records = std::mem::take(&mut kept.records);
    let tree = Tree::restored(kept, ids, &files, dir).map_err(tombolo_core::Error::io)?;
    recall(&*below, &tree, &journal, &records)?;
    let torn = tree.log_damaged_blocks(&torn);
    let pool = ThreadPool::new("write-back", ThreadPoolLimits::default());
    let shared = Arc::new(Shared::new(below, options, (journal, tree), pool.lane()));
    // Changes nothing, but writes to the journal that `Tree::restored` dropped the last run's unnamed files.
    let ((), _) = shared.note(|_| ());
    shared.control.begin(at_origin, !shared.tree().is_clean(), torn);
    Ok(WriteBackExport { sender: Sender::start(&shared)?, shared, _pool: pool })
}

/// Makes the cache restore the numbers of its nodes that the journal refers to, and removes the journal's
/// records of other nodes.
fn recall(below: &dyn FileSystem, tree: &Tree, journal: &Journal, records: &[(u64, Vec<u8>)]) -> Result<()> {
    let numbers = tree.cache_ids();
    let (wanted, others): (Vec<_>, Vec<_>) =
        records.iter().partition(|(id, _)| numbers.contains(&NodeId(*id)));
    let handles = below.persistent_handles().ok_or(tombolo_core::Error::NotSupported)?;
    for (id, record) in wanted {
        handles.recall(&Ctx::root(SESSION), NodeId(*id), record).wait()?;
    }
    // The first request for a record makes the cache retain all its numbers: the journal may refer to any.
    drop(handles.record(&Ctx::root(SESSION), NodeId::ROOT).wait());
    let others: Vec<_> = others.iter().map(|(id, _)| *id).collect();
    if others.is_empty() { Ok(()) } else { journal.forget_records(&others) }
}

/// Returns the number of nodes and names with unsent changes in the journal in `dir`. The caller must ensure
/// that no export uses `dir`.
///
/// # Errors
/// Fails if the journal cannot be read.
pub fn kept_in(dir: &Path) -> std::result::Result<usize, JournalError> {
    let Some(kept) = database::kept_in(dir)? else { return Ok(0) };
    let is_dirty = |row: &[u8]| rows::decoded_node(row).as_ref().is_none_or(rows::is_dirty);
    Ok(kept.nodes.iter().filter(|(_, row)| is_dirty(row)).count() + kept.names.len())
}

impl WriteBackExport {
    /// Starts to prefetch the root's names and this user's permissions, for use while the origin is
    /// unreachable.
    pub fn learn_root(&self, user: &Identity) {
        task::spawn(ahead::learn_root(self.shared.below.clone(), self.sender.cx(), user.clone()));
    }

    /// Sends all changes made before this call, and waits until the origin has them.
    ///
    /// # Errors
    /// Fails if the origin cannot accept all of them now: they are retained and retried.
    pub fn flush(&self) -> Result<Report> {
        self.sender.flush()
    }

    /// Starts sending all changes made before this call, without waiting. Returns the status at the time of
    /// the call.
    pub fn start_flush(&self) -> Status {
        self.sender.start_flush()
    }

    /// Grants locks, pending ones included, only while `is_alone` returns `true`, which means that all users
    /// of the tree go through this export.
    pub fn grant_locks_while(&self, is_alone: impl Fn() -> bool + Send + 'static) {
        self.shared.locks.grant_while(is_alone);
    }

    /// Returns the unsent changes and the progress of sending them.
    pub fn status(&self) -> Status {
        self.sender.status()
    }
}

impl Export for WriteBackExport {
    fn attach(&self, _: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(WriteBackFileSystem::new(Session::new(&self.shared))))
    }
}
