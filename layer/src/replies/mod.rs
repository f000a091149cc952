//! Exactly once: a request that comes a second time is not performed a second time, and gets the answer of the first.
//!
//! A client that hears nothing sends its request again: over a new connection, or while the first is still under way, or
//! after the answer got lost. `mkdir` would then say that the directory exists, `unlink` that the file does not. This layer
//! remembers, for each request with a [key](tombolo_core::fs::RequestKey) and each operation that it performs, how that
//! ended: the key and the operation together name an entry, so a request may perform several operations, but each only
//! once. Requests without a key pass at no cost, and so does what changes nothing.
//!
//! - A duplicate of what is under way waits for it; no thread does.
//! - A duplicate of what was answered gets the same outcome. Node references would mean nothing by then, so what is kept is
//!   the node's persistent handle; the answer is made anew of it, with fresh attributes, and is `Stale` if the node is gone.
//!   Without handles, the name that it was given must still lead to it.
//! - Failures are outcomes too, but for those that say "try again".
//! - What is kept is limited in number and age ([`Limits`]); a duplicate that comes later is a new request.
//!
//! Not here: what a request *is* (front ends give the key), and power loss.
//!
//! Reading order: `session` (which operations), `perform` (first run and duplicates), `call` (each operation), `table` and
//! `shelf` (what is kept).

mod below;
mod call;
mod chain;
mod counters;
mod failure;
mod flight;
mod groups;
mod key;
mod options;
mod outcome;
mod perform;
mod session;
mod shelf;
mod table;

use std::sync::Arc;

use tombolo_core::fs::{Client, Export, FileSystem, Result};

use call::Call;
pub use counters::{Counters, Snapshot};
pub use options::{Limits, Options};
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
}

/// `inner`, with what its requests came to kept in memory.
pub fn over(inner: Arc<dyn Export>, options: &Options) -> Replies {
    let counters = Arc::<Counters>::default();
    let table = |limits| Table::new(limits, counters.clone());
    let shared = Shared { durable: table(options.durable), fleeting: table(options.fleeting), counters };
    Replies { inner, shared: Arc::new(shared) }
}

impl Replies {
    /// What was counted.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }
}

impl Export for Replies {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let inner = self.inner.attach(client)?;
        Ok(Arc::new(Session { id: client.session, inner, shared: self.shared.clone() }))
    }
}

impl Shared {
    fn table_of<C: Call>(&self, call: &C) -> &Arc<Table> {
        if call.is_fleeting() { &self.fleeting } else { &self.durable }
    }

    fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        [&self.durable, &self.fleeting].into_iter()
    }
}
