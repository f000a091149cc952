//! A node: a file, directory or any other object of a handle.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{Attr, FileType, NameBuf, NodeId, WeakAttr};
use tombolo_core::{Identity, Raised, lock};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, WccData, attr};

use super::freshness::{Freshness, UnknownRemoval};
use super::pending_removal::PendingRemovals;
use crate::data::FileData;
use crate::options::AttributeTimes;

/// Count of the changes of a directory that may have been made by other clients. Names learnt in another
/// epoch are invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

/// A name of a node and its directory, from which the node is recovered if the server loses its handle.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub dir: Arc<Node>,
    pub name: NameBuf,
}

/// One node of the server.
#[derive(Debug)]
pub(crate) struct Node {
    pub id: NodeId,
    /// File id on the server.
    pub fileid: u64,
    pub fsid: u64,
    pub file_type: FileType,
    times: AttributeTimes,
    /// Last removal of a name with unknown target, shared by all nodes of the session.
    removal: Arc<UnknownRemoval>,
    state: Mutex<State>,
    /// Number of openings in this session.
    openings: AtomicU32,
    /// Pending removals of a name of this node, for whose end opens wait.
    pub(super) removals: PendingRemovals,
    /// Written and read-ahead data.
    pub data: FileData,
    /// `true` if another client, such as a killed predecessor of this process, may have written unstable
    /// data.
    has_writes_of_others: AtomicBool,
}

#[derive(Debug)]
struct State {
    handle: FileHandleBuf,
    freshness: Freshness,
    epoch: Epoch,
    /// Number of changes of the node, our own included; our own changes of names count both when they begin
    /// and when they are answered.
    changes: u64,
    location: Option<Location>,
    /// `true` if the file was unlinked while open and has a silly name.
    silly: bool,
    /// Time when this client last removed a name of the node.
    lost_a_name: Option<Instant>,
    /// Number of names that this client has removed and that the attributes still count.
    names_lost: u32,
    access: Vec<Granted>,
}

/// Result of ACCESS for a user.
#[derive(Clone, Debug)]
struct Granted {
    identity: Identity,
    asked_for: AccessBits,
    allowed: AccessBits,
    /// Change time of the node, with which the result becomes invalid.
    ctime: tombolo_core::fs::Timestamp,
    asked: Instant,
}

/// Maximum depth of a path, which bounds walks from a node to the root.
pub(crate) const DEPTH_MAX: usize = 2048;

/// Maximum number of users whose permissions are cached for a node.
const USERS_MAX: usize = 8;

impl Node {
    pub(super) fn new(
        id: NodeId,
        handle: FileHandleBuf,
        fattr: &Fattr3,
        (asked, now): (Instant, Instant),
        times: AttributeTimes,
        removal: Arc<UnknownRemoval>,
    ) -> Self {
        let attr = attr::attr(fattr);
        let freshness = Freshness::new(attr, asked, now, &times);
        let state = State {
            handle,
            freshness,
            epoch: Epoch::default(),
            changes: 0,
            location: None,
            silly: false,
            lost_a_name: None,
            names_lost: 0,
            access: Vec::new(),
        };
        Self {
            id,
            fileid: attr.fileid,
            fsid: attr.fsid,
            file_type: attr.file_type,
            times,
            removal,
            state: Mutex::new(state),
            openings: AtomicU32::new(0),
            removals: PendingRemovals::default(),
            data: FileData::default(),
            has_writes_of_others: AtomicBool::new(false),
        }
    }

    /// Returns `true` if a sync has to include the writes of other clients.
    pub(crate) fn has_writes_of_others(&self) -> bool {
        self.has_writes_of_others.load(Ordering::Relaxed)
    }

    pub(crate) fn set_writes_of_others(&self, has_some: bool) {
        self.has_writes_of_others.store(has_some, Ordering::Relaxed);
    }

    /// Returns the present handle, which changes if the node is recovered.
    pub(crate) fn handle(&self) -> FileHandleBuf {
        lock(&self.state).handle
    }

    /// Updates from attributes received `now` in a reply to a call made at `asked`. Returns `false` if they
    /// are of another file or type: the server has reused the handle.
    pub(crate) fn learn(&self, fattr: &Fattr3, asked: Instant, now: Instant) -> bool {
        let attr = attr::attr(fattr);
        if attr.fileid != self.fileid || attr.file_type != self.file_type {
            return false;
        }
        let mut state = lock(&self.state);
        let before = state.freshness.known();
        state.freshness.learn(attr, asked, now, &self.times);
        if state.lost_a_name.is_some_and(|lost| asked >= lost) {
            state.names_lost = 0;
        }
        if WeakAttr::from(&state.freshness.known()) != WeakAttr::from(&before) {
            state.epoch.0 += 1;
            state.changes += 1;
        }
        true
    }

    /// Updates from the result of our own change. If no other client has changed the directory since the last
    /// attributes, cached names remain valid (RFC 1813 §2.6, the purpose of `wcc_data`). If the reply lacks
    /// the new attributes, the present ones expire. Returns `false` as [`learn`](Self::learn) does.
    pub(crate) fn learn_change(&self, wcc: &WccData, asked: Instant, now: Instant) -> bool {
        let Some(fattr) = &wcc.after else {
            self.expire(now);
            return true;
        };
        let (is_ours_alone, epoch) = {
            let state = lock(&self.state);
            let known = WeakAttr::from(&state.freshness.known());
            (wcc.before.as_ref().map(attr::weak_attr) == Some(known), state.epoch)
        };
        let learnt = self.learn(fattr, asked, now);
        if learnt && is_ours_alone {
            let mut state = lock(&self.state);
            if state.epoch.0 == epoch.0 + 1 {
                state.epoch = epoch;
            }
        }
        learnt
    }

    /// Counts the start of our own change, or its reply: concurrent replies may describe the state before or
    /// after the change.
    pub(crate) fn changing(&self) {
        lock(&self.state).changes += 1;
    }

    /// Returns the count of changes. A reply about a name of this directory may be outdated if the count has
    /// changed since before its call.
    pub(crate) fn changes(&self) -> u64 {
        lock(&self.state).changes
    }

    /// Returns the time of the last attributes, if the node has changed since it was cached.
    pub(super) fn changed(&self) -> Option<Instant> {
        let state = lock(&self.state);
        (state.changes > 0).then(|| state.freshness.received())
    }

    pub(crate) fn epoch(&self) -> Epoch {
        lock(&self.state).epoch
    }

    /// Returns the attributes if they are valid now. The size includes retained writes; the link count
    /// excludes a silly name.
    pub(crate) fn believed(&self, now: Instant) -> Option<Attr> {
        let believed = lock(&self.state).freshness.believed(now, &self.removal);
        believed.map(|attr| self.as_writers_see(attr))
    }

    /// Returns the last attributes, valid or not, with size and link count as in
    /// [`believed`](Self::believed).
    pub(crate) fn known(&self) -> Attr {
        let known = lock(&self.state).freshness.known();
        self.as_writers_see(known)
    }

    /// Returns the attributes as last reported by the server, without pending writes.
    pub(crate) fn told(&self) -> Attr {
        lock(&self.state).freshness.known()
    }

    /// Returns the attributes if a call made at `time` or later returned them and they have not expired.
    pub(crate) fn fetched_since(&self, time: Instant) -> Option<Attr> {
        let known = {
            let state = lock(&self.state);
            state.freshness.is_since(time).then(|| state.freshness.known())
        };
        known.map(|attr| self.as_writers_see(attr))
    }

    /// Returns `true` if the attributes must be revalidated regardless of their age.
    pub(crate) fn is_expired(&self) -> bool {
        lock(&self.state).freshness.is_expired()
    }

    /// Expires the attributes regardless of their age: their next use revalidates them.
    pub(crate) fn expire(&self, now: Instant) {
        lock(&self.state).freshness.expire(now);
    }

    /// Records that this client removed a name: the link count must be queried, and the file may be gone.
    pub(crate) fn lost_a_name(&self, now: Instant) {
        let mut state = lock(&self.state);
        state.lost_a_name = Some(now);
        state.names_lost = match self.file_type {
            // Directories have no other name.
            FileType::Directory => u32::MAX,
            _ => state.names_lost.saturating_add(1),
        };
        state.freshness.expire(now);
    }

    /// Returns the last attributes of a file that the server reports as gone, if this client removed its last
    /// name; it may still be referenced without being open. Files removed or replaced by others are looked up
    /// again.
    pub(crate) fn attr_after_own_removal(&self) -> Option<Attr> {
        let state = lock(&self.state);
        let attr = state.freshness.known();
        let is_ours = state.lost_a_name.is_some() && state.names_lost >= attr.nlink;
        is_ours.then_some(Attr { nlink: 0, ..attr })
    }

    fn as_writers_see(&self, mut attr: Attr) -> Attr {
        if let Some(end) = self.data.end() {
            attr.size = attr.size.max(end);
        }
        if self.is_silly() {
            attr.nlink = attr.nlink.saturating_sub(1);
        }
        attr
    }

    /// Returns the cached permissions of this user among `asked_for`; `None` if unknown.
    pub(crate) fn allowed(
        &self,
        identity: &Identity,
        asked_for: AccessBits,
        now: Instant,
    ) -> Option<AccessBits> {
        let state = lock(&self.state);
        let lifetime = match self.file_type {
            FileType::Directory => self.times.dir_max,
            _ => self.times.file_max,
        };
        let granted = state.access.iter().find(|granted| granted.identity == *identity)?;
        let is_fresh = now.saturating_duration_since(granted.asked) < lifetime;
        let is_same = granted.ctime == state.freshness.known().ctime;
        (is_fresh && is_same && granted.asked_for.contains(asked_for)).then_some(granted.allowed & asked_for)
    }

    /// Caches permissions that the server returned for a call made at `asked`.
    pub(crate) fn grant(
        &self,
        identity: &Identity,
        asked_for: AccessBits,
        allowed: AccessBits,
        asked: Instant,
    ) {
        let mut state = lock(&self.state);
        let ctime = state.freshness.known().ctime;
        let mut granted = Granted { identity: identity.clone(), asked_for, allowed, ctime, asked };
        if let Some(index) = state.access.iter().position(|granted| granted.identity == *identity) {
            let before = state.access.swap_remove(index);
            if before.ctime == ctime {
                // Other permissions remain cached, no longer than before.
                granted.asked = before.asked.min(asked);
                granted.allowed |= before.allowed.difference(asked_for);
                granted.asked_for |= before.asked_for;
            }
        }
        if state.access.len() >= USERS_MAX {
            state.access.remove(0);
        }
        state.access.push(granted);
    }

    pub(crate) fn location(&self) -> Option<Location> {
        lock(&self.state).location.clone()
    }

    /// Returns `true` if this directory can be the parent of `node`: it is not `node`, nor beneath it, nor
    /// too deep. Locations of directories are set with the table of nodes locked, so two cannot move into
    /// each other concurrently.
    pub(super) fn may_hold(self: &Arc<Self>, node: &Node) -> bool {
        let mut above = Some(self.clone());
        for _ in 0..DEPTH_MAX {
            let Some(step) = above else { return true };
            if step.id == node.id {
                return false;
            }
            above = step.location().map(|location| location.dir);
        }
        above.is_none()
    }

    /// Sets or clears the location. The previous one is dropped without this node's lock, because that can
    /// free a chain of directories.
    pub(crate) fn set_location(&self, location: Option<Location>) {
        let before = std::mem::replace(&mut lock(&self.state).location, location);
        drop(before);
    }

    pub(crate) fn is_silly(&self) -> bool {
        lock(&self.state).silly
    }

    /// Records the silly name of a file unlinked while open, used until its last opening ends.
    pub(crate) fn make_silly(&self, location: Location) {
        let mut state = lock(&self.state);
        state.silly = true;
        let before = state.location.replace(location);
        drop(state);
        drop(before);
    }

    /// Ends the silly state, because the file gets its old name back.
    pub(crate) fn make_plain(&self) {
        lock(&self.state).silly = false;
    }

    pub(crate) fn opened(&self) {
        self.openings.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a close; returns `true` if it was the last.
    pub(crate) fn closed(&self) -> bool {
        self.openings.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_open(&self) -> bool {
        self.openings.load(Ordering::Acquire) > 0
    }

    /// Returns a future for the end of the pending removals; `None` if there are none. They may have begun
    /// before the caller's opening was counted.
    pub(crate) fn removal_ended(&self) -> Option<Raised> {
        self.removals.end()
    }

    pub(super) fn set_handle(&self, handle: FileHandleBuf) {
        lock(&self.state).handle = handle;
    }
}

/// Iterates over the parents: recursion could overflow the stack, as a server can nest directories
/// arbitrarily deep.
impl Drop for Node {
    fn drop(&mut self) {
        let take =
            |node: &mut Node| node.state.get_mut().unwrap_or_else(PoisonError::into_inner).location.take();
        let mut next = take(self);
        while let Some(Location { dir, .. }) = next {
            next = Arc::into_inner(dir).and_then(|mut node| take(&mut node));
        }
    }
}
