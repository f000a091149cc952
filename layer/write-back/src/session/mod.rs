//! One session: the waist's operations, on local differences and the cache.
//!
//! An operation first reads the state it needs, waiting for the cache if necessary, and then makes its change
//! under one lock, provided that this state still holds; otherwise it retries.

mod attributes;
mod file_system;
mod finding;
mod handles;
mod listing;
mod locks;
mod making;
mod opening;
mod reading;
mod removing;
mod writing;
mod xattrs;

pub(crate) use file_system::WriteBackFileSystem;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{Attr, Change, File, NodeId, OpenFlags, OpenId, Profile, SessionLocks, WeakAttr};
use tombolo_core::{Budget, Ctx, Error, Identity, Permit, Resource, Result, Want, lock};

use crate::journal::Ticket;
use crate::shared::{SESSION, Shared};

/// A session, shared by its pending operations.
pub(crate) struct Session {
    pub shared: Arc<Shared>,
    pub profile: Profile,
    openings: Mutex<HashMap<OpenId, Arc<Opening>>>,
    /// Advisory locks, acquired while `openings` is locked, so that no opening ends meanwhile.
    locks: SessionLocks,
    next: AtomicU64,
    budget: Arc<Budget>,
}

/// An opening, with an opening of the cache once data or names are read from the cache.
struct Opening {
    node: NodeId,
    flags: OpenFlags,
    /// Opening of the cache, made by the first read or listing of the cache.
    below: Mutex<Option<File>>,
    user: Identity,
    shared: Arc<Shared>,
    _permit: Permit,
}

/// Environment of one operation: its session, and the context of its request.
#[derive(Clone)]
struct View {
    session: Arc<Session>,
    cx: Ctx,
}

impl Session {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let profile = Profile { writes_by_owner: false, ..shared.below.profile() };
        let budget = Budget::new(tombolo_core::Limits::default());
        let (openings, locks) = (Mutex::default(), shared.locks.session());
        let (shared, next) = (shared.clone(), AtomicU64::new(1));
        Self { shared, profile, openings, locks, next, budget }
    }

    fn opening(&self, file: File) -> Result<Arc<Opening>> {
        opening_in(&lock(&self.openings), file).cloned()
    }

    /// Returns an opening that was made with the flags in `purpose`; fails for others.
    fn opened_for(&self, file: File, purpose: OpenFlags) -> Result<Arc<Opening>> {
        self.opening(file).and_then(|opening| match opening.flags.contains(purpose) {
            true => Ok(opening),
            false => Err(Error::BadOpen),
        })
    }

    fn open(&self, permit: Permit, node: NodeId, flags: OpenFlags, user: &Identity) -> OpenId {
        *self.shared.tree().open.entry(node).or_default() += 1;
        let id = OpenId(self.next.fetch_add(1, Ordering::Relaxed));
        let (shared, user) = (self.shared.clone(), user.clone());
        let opening = Opening { node, flags, below: Mutex::default(), user, shared, _permit: permit };
        lock(&self.openings).insert(id, Arc::new(opening));
        id
    }

    fn permit(&self) -> Result<Permit> {
        self.budget.take(Resource::Opens, 1).ok_or(Error::TooManyOpen)
    }
}

fn opening_in(openings: &HashMap<OpenId, Arc<Opening>>, file: File) -> Result<&Arc<Opening>> {
    openings.get(&file.open).filter(|opening| opening.node == file.node).ok_or(Error::BadOpen)
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(file) = lock(&self.below).take() {
            self.shared.below.release(&Ctx::root(SESSION), file);
        }
        let is_gone = {
            let mut tree = self.shared.tree();
            let left = tree.open.get_mut(&self.node).map(|count| {
                *count -= 1;
                *count
            });
            if left == Some(0) {
                tree.open.remove(&self.node);
            }
            left == Some(0) && tree.is_unnamed(self.node)
        };
        if is_gone {
            self.shared.note(|tree| tree.forget_if_unused(self.node));
            self.shared.control.made_dirty();
        }
    }
}

impl View {
    fn shared(&self) -> &Shared {
        &self.session.shared
    }

    fn below_cx(&self) -> Ctx {
        below_cx(&self.cx, self.cx.identity.clone())
    }

    /// Waits until a change is on the disk if its request has a key: a client that repeats requests after a
    /// crash does not repeat answered ones.
    async fn stable_if_keyed<T>(&self, (done, ticket): (T, Ticket)) -> Result<T> {
        if self.cx.key.is_some() {
            self.shared().journal.stable(ticket).await?;
        }
        Ok(done)
    }

    fn wants_changes(&self) -> bool {
        self.cx.want.contains(Want::CHANGE_ATTRS)
    }

    /// Returns the effect of a change on a node, if the caller requests it.
    fn told(&self, before: &Attr, after: Attr) -> Change {
        match self.wants_changes() {
            true => Change { before: Some(WeakAttr::from(before)), after: Some(after) },
            false => Change::default(),
        }
    }
}

/// Returns the context of an operation at the cache on behalf of `identity`.
fn below_cx(cx: &Ctx, identity: Identity) -> Ctx {
    Ctx { key: None, want: Want::empty(), fetched_since: None, found: None, identity, ..cx.clone() }
}
