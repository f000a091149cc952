//! Exactly once: a request that comes a second time is not performed a second time, and gets the answer of
//! the first.
//!
//! A client that hears nothing sends its request again: over a new connection, or while the first is still
//! under way, or after the answer got lost. `mkdir` would then say that the directory exists, `unlink` that
//! the file does not. This layer remembers, for each request with a [key](tombolo_core::RequestKey) and each
//! operation that it performs, how that ended: the key and the operation together name an entry, so a request
//! may perform several operations, but each only once. Requests without a key pass at no cost, and so does
//! what changes nothing. So do writes at a stated place that their client has numbered: twice they leave what
//! they do once, and no copy of one is still under way when the client's next link begins.
//!
//! - A duplicate of what is under way waits for it; no thread does.
//! - A duplicate of what was answered gets the same outcome. Node references would mean nothing by then, so
//!   what is kept is the node's persistent handle; the answer is made anew of it, with fresh attributes, and
//!   is `Stale` if the node is gone. Without handles, the name that it was given must still lead to it.
//! - Failures are outcomes too, but for those that say "try again".
//! - What is kept is limited in number and age ([`Limits`]); a duplicate that comes later is a new request.
//!
//! With a state file ([`open`]) the outcomes of what makes, removes or moves a name, and of what appends to a
//! file, also outlive the process. Before such an operation runs, what was there is written down; a new
//! process compares that with what is there now, and so knows whether the operation happened that its
//! predecessor was killed in. That covers the death of the process, not of the machine.
//!
//! Not here: what a request *is* (front ends give the key), and power loss.
//!
//! Reading order: `session` (which operations), `execution` (first run and duplicates), `call` (each
//! operation), `table` and `shard` (what is kept); then `intent`, `look` (before), `journal` (the file) and
//! `reconcile` (after).
#![forbid(unsafe_code)]

mod append_locks;
mod appending;
mod below;
mod call;
mod chain;
mod counters;
mod execution;
mod failure;
mod groups;
mod hashed;
mod intent;
mod journal;
mod key;
mod look;
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

/// An export whose requests are performed once. Its sessions share what is kept.
pub struct Replies {
    inner: Arc<dyn Export>,
    shared: Arc<Shared>,
}

/// What the sessions share.
struct Shared {
    durable: Arc<Table>,
    fleeting: Arc<Table>,
    counters: Arc<Counters>,
    /// Of the files that are appended to.
    append_locks: Arc<AppendLocks>,
}

/// The session in which we look at the export ourselves. Front ends count theirs from the other end.
const OWN_SESSION: SessionId = SessionId(u64::MAX);

/// `inner`, with what its requests came to kept in memory.
pub fn over(inner: Arc<dyn Export>, options: &Options) -> Replies {
    Replies::new(inner, options, Arc::default(), None)
}

/// As [`over`], and what an operation that must not run twice came to outlives the process, in the state file
/// at `path`.
///
/// What an earlier process left there is compared with the export first, which no other server may serve
/// meanwhile. The file best lies where a stuck disk cannot hold up a write to memory: on a tmpfs. A damaged
/// one is kept as `path` with `.damaged` behind it. Without persistent handles there is nothing that could be
/// written down: then this is [`over`], with a warning in the log.
pub fn open(
    inner: Arc<dyn Export>,
    options: &Options,
    path: &Path,
) -> std::result::Result<Replies, OpenError> {
    let client = Client { session: OWN_SESSION, label: "replies".into(), checks: PermissionCheck::Caller };
    let (fs, cx) = (inner.attach(&client)?, Ctx::root(OWN_SESSION));
    let Some(root) = fs.persistent_handles().map(|handles| handles.handle_of(&cx, NodeId::ROOT)) else {
        tracing::warn!("{}: not used: the export has no handles that outlive a crash", path.display());
        return Ok(over(inner, options));
    };
    let root = root.wait()?;
    let volume = fs.persistent_handles().map(|handles| handles.volume()).unwrap_or_default();
    let tree = Tree { volume, root };
    let counters = Arc::<Counters>::default();
    let lock = Lock::take(path)?;
    let kept = Reconciler::new(fs, cx, &counters).reconcile(lock.read(&tree)?, options.durable.age);
    let newest = kept.iter().map(|kept| kept.ended).max().unwrap_or(0);
    let slots = options.durable.entries.saturating_add(OUTCOMES_SPARE);
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let (journal, draft) = lock.draft(&tree, slots, newest)?;
    let replies = Replies::new(inner, options, counters, Some(journal));
    kept.into_iter().for_each(|kept: StoredOutcome| replies.shared.durable.restore(kept));
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
        Self { inner, shared: Arc::new(Shared { durable, fleeting, counters, append_locks: Arc::default() }) }
    }

    /// Whether what is kept outlives the process.
    pub fn survives_crashes(&self) -> bool {
        self.shared.durable.journal().is_some()
    }

    /// What was counted.
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

impl Shared {
    fn table_of<C: Call>(&self, call: &C) -> &Arc<Table> {
        if call.is_fleeting() { &self.fleeting } else { &self.durable }
    }
}
