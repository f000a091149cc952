//! Exactly-once execution: a duplicate request is not performed again, but gets the reply of the original.
//!
//! A client without a reply sends its request again: over a new connection, while the original is in
//! progress, or after the reply was lost. A repeated `mkdir` would then report that the directory exists,
//! `unlink` that the file does not. This layer keeps the outcome of each operation of each request with a
//! [key](tombolo_core::RequestKey): key and operation identify an entry, so a request may perform several
//! operations, but each only once. Requests without a key and operations without changes pass at no cost.
//! Positioned writes over links pass too: they are idempotent, and the reconnect fence ensures that none is
//! in progress when the client's next link begins.
//!
//! - A duplicate of a request in progress waits for it, without blocking a thread.
//! - A duplicate of an answered request gets the same outcome. Node references would be invalid by then, so
//!   the node's persistent handle is kept; the reply is rebuilt from it with current attributes, and is
//!   `Stale` if the node is gone. Without handles, the node's original name must still lead to it.
//! - Failures are outcomes too, except transient ones.
//! - Outcomes are limited in number and age ([`Limits`]); a later duplicate is a new request.
//!
//! With a state file ([`open`]) the outcomes of operations that must not run twice ([`Options::durable`])
//! also survive the process. Before such an operation the present state is recorded; a new process compares
//! it with the state it finds, to determine if the operation in progress at the crash has happened. This
//! covers the death of the process, not of the machine.
//!
//! Non-goals: identifying requests (front ends supply the key), and power loss.
//!
//! Reading order: `session` (which operations), `execution` (originals and duplicates), `call` (each
//! operation), `table` and `shard` (entries); then `intent`, `observe` (before), `journal` (the file) and
//! `reconcile` (after).
#![forbid(unsafe_code)]

mod append_locks;
mod appending;
mod call;
mod chain;
mod counters;
mod execution;
mod failure;
mod groups;
mod hashed;
mod inner;
mod intent;
mod journal;
mod key;
mod observe;
mod options;
mod outcome;
mod reconcile;
mod session;
mod shard;
mod table;

use std::path::Path;
use std::sync::Arc;

use tombolo_core::fs::{Client, Export, FileSystem, NodeId, PermissionCheck};
use tombolo_core::{Ctx, Result, SessionId};

use append_locks::AppendLocks;
use call::Call;
pub use counters::{Counters, Snapshot};
pub use journal::OpenError;
use journal::{Journal, Lock, OUTCOMES_SPARE, StoredOutcome, Tree};
pub use options::{Limits, Options};
use reconcile::Reconciler;
use session::Session;
use table::Table;

/// An export that performs each request with a key once, within its [`Limits`]. Its sessions share the tables
/// of entries.
pub struct Replies {
    inner: Arc<dyn Export>,
    shared: Arc<LayerState>,
}

/// Tables, counters and locks shared by all sessions of an export.
struct LayerState {
    /// Entries of operations that must not run twice; also in the state file, if there is one.
    durable: Arc<Table>,
    /// Entries of all other changes, in memory only.
    fleeting: Arc<Table>,
    counters: Arc<Counters>,
    /// Locks of the files being appended to.
    append_locks: Arc<AppendLocks>,
}

/// The session used by the layer itself: the largest number, as front ends number their sessions upwards.
const OWN_SESSION: SessionId = SessionId(u64::MAX);

/// Wraps `inner`, keeping outcomes in memory only.
pub fn over(inner: Arc<dyn Export>, options: &Options) -> Replies {
    Replies::new(inner, options, Arc::default(), None)
}

/// Wraps `inner` as [`over`] does, and keeps the outcomes of operations that must not run twice in the state
/// file at `path`.
///
/// Records of an earlier process are first compared with the export, which no other server may serve
/// meanwhile. The file should be on a tmpfs, where a stuck disk cannot block writes to the mapped file. A
/// damaged file is preserved as `path` plus `.damaged`, one of an older version as `path` plus `.older`. An
/// export without persistent handles cannot be recorded: the call is then equivalent to [`over`], and logs a
/// warning.
pub fn open(
    inner: Arc<dyn Export>,
    options: &Options,
    path: &Path,
) -> std::result::Result<Replies, OpenError> {
    let client = Client { session: OWN_SESSION, label: "replies".into(), checks: PermissionCheck::Caller };
    let (fs, cx) = (inner.attach(&client)?, Ctx::root(OWN_SESSION));
    let Some(root) = fs.persistent_handles().map(|handles| handles.handle_of(&cx, NodeId::ROOT)) else {
        tracing::warn!("{}: not used, because the export has no persistent handles", path.display());
        return Ok(over(inner, options));
    };
    let root = root.wait()?;
    let volume = fs.persistent_handles().map(|handles| handles.volume()).unwrap_or_default();
    let tree = Tree { volume, root };
    let counters = Arc::<Counters>::default();
    let lock = Lock::take(path)?;
    let restored = Reconciler::new(fs, cx, &counters).reconcile(lock.read(&tree)?, options.durable.age);
    let newest = restored.iter().map(|restored| restored.ended).max().unwrap_or(0);
    let slots = options.durable.entries.saturating_add(OUTCOMES_SPARE);
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let (journal, draft) = lock.draft(&tree, slots, newest)?;
    let replies = Replies::new(inner, options, counters, Some(journal));
    restored.into_iter().for_each(|restored: StoredOutcome| replies.shared.durable.restore(restored));
    draft.publish(lock)?;
    Ok(replies)
}

impl Replies {
    fn new(
        inner: Arc<dyn Export>,
        options: &Options,
        counters: Arc<Counters>,
        journal: Option<Journal>,
    ) -> Self {
        let durable = Table::new(options.durable, counters.clone(), journal);
        let fleeting = Table::new(options.fleeting, counters.clone(), None);
        Self {
            inner,
            shared: Arc::new(LayerState { durable, fleeting, counters, append_locks: Arc::default() }),
        }
    }

    /// Returns `true` if outcomes survive the process.
    pub fn survives_crashes(&self) -> bool {
        self.shared.durable.journal().is_some()
    }

    /// Returns the layer's counters, of all sessions.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }
}

impl Export for Replies {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let inner = self.inner.attach(client)?;
        Ok(Arc::new(Session { inner, shared: self.shared.clone(), appending: Arc::default() }))
    }
}

impl LayerState {
    fn table_of<C: Call>(&self, call: &C) -> &Arc<Table> {
        if call.expected_effect().is_some() { &self.durable } else { &self.fleeting }
    }
}
