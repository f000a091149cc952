//! Files that have lost a name through this cache. A file without any name is retained until nothing holds it
//! any more; then its state is dropped.
//!
//! Holders of a file are openings, look-ups of sessions, links in progress, and descriptors of the file's
//! data lent to other processes. Under *exclusive* the cache mostly knows whether a file has another name; if
//! it does not know, a background worker queries the origin once nothing holds the file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use tombolo_core::fs::{NodeId, PersistentHandle};
use tombolo_core::lock;
use tombolo_host_runtime::task;

use crate::cache::Cache;
use crate::object::Object;
use crate::objects::node_of;
use crate::options::Contract;
use crate::session::Session;
use crate::store::{ObjectId, sweep};
use crate::written::is_unanswered;

/// Files that have lost a name, and the sessions that may hold them.
#[derive(Debug, Default)]
pub(crate) struct Unnamed {
    state: Mutex<State>,
    /// Number of files in `lost`; usually 0.
    waiting: AtomicUsize,
    sessions: Mutex<Vec<Weak<Session>>>,
}

#[derive(Debug, Default)]
struct State {
    lost: BTreeMap<ObjectId, Names>,
    /// Unheld files to be queried at the origin.
    to_ask: VecDeque<ObjectId>,
    is_asking: bool,
    /// Number of the file examined last by [`Unnamed::some`].
    looked_at: ObjectId,
}

/// Names left to a file that has lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Certainly none.
    None,
    Unknown,
}

/// Number of files examined each time that another file loses a name, because borrowers return their
/// descriptors without notice to this structure.
const LOOKED_AT: usize = 4;

impl Unnamed {
    /// Registers a session, which may hold files.
    pub(crate) fn add_session(&self, session: &Arc<Session>) {
        let mut sessions = lock(&self.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(session));
    }

    /// Returns `true` if a file has lost a name and is retained.
    pub(crate) fn contains(&self, id: ObjectId) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && lock(&self.state).lost.contains_key(&id)
    }

    fn add(&self, id: ObjectId, names: Names) {
        let mut state = lock(&self.state);
        let before = state.lost.get(&id).copied();
        if before != Some(Names::None) {
            state.lost.insert(id, names);
        }
        self.waiting.store(state.lost.len(), Ordering::Relaxed);
    }

    /// Removes a file that has a name again, is dropped, or is being queried. Returns the names left to it.
    pub(crate) fn remove(&self, id: ObjectId) -> Option<Names> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        let removed = state.lost.remove(&id);
        self.waiting.store(state.lost.len(), Ordering::Relaxed);
        removed
    }

    fn all(&self) -> Vec<ObjectId> {
        lock(&self.state).lost.keys().copied().collect()
    }

    /// Returns the next few files, in turn.
    fn some(&self) -> Vec<ObjectId> {
        let mut state = lock(&self.state);
        let after = (std::ops::Bound::Excluded(state.looked_at), std::ops::Bound::Unbounded);
        let some: Vec<ObjectId> = state.lost.range(after).take(LOOKED_AT).map(|(id, _)| *id).collect();
        state.looked_at = some.last().copied().filter(|_| some.len() == LOOKED_AT).unwrap_or_default();
        some
    }

    /// Queues a query of the origin about a file. Returns `true` if the caller must start the worker.
    fn ask(&self, id: ObjectId) -> bool {
        let mut state = lock(&self.state);
        state.to_ask.push_back(id);
        !std::mem::replace(&mut state.is_asking, true)
    }

    fn next_to_ask(&self) -> Option<ObjectId> {
        let mut state = lock(&self.state);
        let next = state.to_ask.pop_front();
        state.is_asking = next.is_some();
        next
    }

    pub(crate) fn is_known_to_a_session(&self, node: NodeId) -> bool {
        let sessions: Vec<_> = lock(&self.sessions).iter().filter_map(Weak::upgrade).collect();
        sessions.iter().any(|session| session.known.contains(node))
    }
}

impl Cache {
    /// Records that a file has lost a name through this cache. If nothing holds the file, it is dropped, or
    /// the origin queried.
    pub(crate) fn lost_a_name(self: &Arc<Self>, id: ObjectId, names: Names) {
        self.unnamed.add(id, names);
        self.end_unless_held(id);
        for id in self.unnamed.some() {
            self.end_unless_held(id);
        }
    }

    /// Examines a file after the end of a hold. If it has lost a name and nothing else holds it, it is
    /// dropped, or the origin queried.
    pub(crate) fn end_unless_held(self: &Arc<Self>, id: ObjectId) {
        if !self.unnamed.contains(id) || self.is_held(id) {
            return;
        }
        match self.unnamed.remove(id) {
            Some(Names::None) => {
                if let Ok(object) = self.object(id) {
                    self.forget(&object);
                }
            }
            Some(Names::Unknown) if self.unnamed.ask(id) => self.start_asking(),
            Some(Names::Unknown) | None => {}
        }
    }

    /// Examines all files after the end of a session, which may have held any.
    pub(crate) fn end_all_unheld(self: &Arc<Self>) {
        self.unnamed.all().into_iter().for_each(|id| self.end_unless_held(id));
    }

    /// Looks in the background for files that lost their names in an earlier process, unless *immutable*.
    pub(crate) fn look_for_unnamed(self: &Arc<Self>) {
        if self.store.began_empty || self.policy().default.contract == Contract::Immutable {
            return;
        }
        // Weak references, so that a cache can end meanwhile.
        let (cache, store) = (Arc::downgrade(self), Arc::downgrade(&self.store));
        let looking = self.in_pool(&self.origin.own_ctx(), move || {
            for id in sweep::unnamed(&store) {
                let Some(cache) = cache.upgrade() else { break };
                cache.unnamed.add(id, Names::Unknown);
                cache.end_unless_held(id);
            }
            Ok(())
        });
        task::spawn(async move { drop(looking.resolve().await) });
    }

    /// Drops all state of an object that is gone at the origin, or unnamed and unused.
    pub(crate) fn forget(&self, object: &Object) {
        self.unnamed.remove(object.id);
        self.objects.forget(object);
        self.store.remove(object);
    }

    fn is_held(&self, id: ObjectId) -> bool {
        let in_memory = self.objects.in_memory(id);
        in_memory.is_some_and(|object| object.state().is_in_use())
            || self.store.is_held(id)
            || self.unnamed.is_known_to_a_session(node_of(id))
    }

    fn start_asking(self: &Arc<Self>) {
        // Weak references: an ending cache must not wait for an unreachable origin, nor keep its directory's
        // data files open.
        let (cache, origin) = (Arc::downgrade(self), self.origin.clone());
        task::spawn(async move {
            let cx = origin.own_ctx();
            loop {
                let next = cache.upgrade().and_then(|cache| cache.next_unnamed());
                let Some((id, handle)) = next else { return };
                let asked = Instant::now();
                let told = origin.resolve(&cx, &handle).await;
                let Some(cache) = cache.upgrade() else { return };
                let Ok(object) = cache.object(id) else { continue };
                // `resolved` drops the object if it is gone.
                match cache.resolved(&object, asked, told) {
                    Ok(attr) if attr.nlink == 0 => {
                        cache.unnamed.add(object.id, Names::None);
                        cache.end_unless_held(object.id);
                    }
                    // The file is queried again later, when other files lose names.
                    Err(error) if is_unanswered(&error) => cache.unnamed.add(object.id, Names::Unknown),
                    Ok(_) | Err(_) => {}
                }
            }
        });
    }

    fn next_unnamed(&self) -> Option<(ObjectId, PersistentHandle)> {
        while let Some(id) = self.unnamed.next_to_ask() {
            if let Ok(object) = self.object(id) {
                return Some((id, object.handle.clone()));
            }
        }
        None
    }
}
