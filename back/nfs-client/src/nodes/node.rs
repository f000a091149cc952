//! A node: a file, directory or any other object of a handle.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{Attr, FileType, NameBuf, NodeId, WeakAttr};
use tombolo_core::{Identity, Raised};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, WccData, attr};

use super::freshness::{Freshness, UnknownRemoval};
use super::pending_removal::PendingRemovals;
use crate::data::FileData;
use crate::options::AttributeTimes;

/// Counts the changes of a directory that others made: names that were seen in another epoch prove nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

/// Where a node was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub dir: Arc<Node>,
    pub name: NameBuf,
}

/// One node of the server.
#[derive(Debug)]
pub(crate) struct Node {
    pub id: NodeId,
    /// The server's number of it.
    pub fileid: u64,
    pub fsid: u64,
    pub file_type: FileType,
    times: AttributeTimes,
    removal: Arc<UnknownRemoval>,
    state: Mutex<State>,
    /// Openings of this session.
    openings: AtomicU32,
    /// Removals that are under way.
    pub(super) removals: PendingRemovals,
    /// Written and read-ahead data.
    pub data: FileData,
}

#[derive(Debug)]
struct State {
    handle: FileHandleBuf,
    freshness: Freshness,
    epoch: Epoch,
    /// Counts all changes of the directory, ours as well, when they begin and when they are answered.
    changes: u64,
    location: Option<Location>,
    /// It was unlinked while open and has a silly name.
    silly: bool,
    /// When this client last removed a name of it.
    lost_a_name: Option<Instant>,
    /// How many it has removed that the attributes do not tell of yet.
    names_lost: u32,
    access: Vec<Granted>,
}

/// What the server said that a user may do.
#[derive(Clone, Debug)]
struct Granted {
    identity: Identity,
    asked_for: AccessBits,
    allowed: AccessBits,
    ctime: tombolo_core::fs::Timestamp,
    asked: Instant,
}

/// A chain of directories longer than this is no path.
pub(crate) const DEPTH_MAX: usize = 2048;

/// So many users' rights are remembered for a node.
const USERS_MAX: usize = 8;

impl Node {
    pub(super) fn new(
        id: NodeId,
        handle: FileHandleBuf,
        fattr: &Fattr3,
        asked: Instant,
        times: AttributeTimes,
        removal: Arc<UnknownRemoval>,
    ) -> Self {
        let attr = attr::attr(fattr);
        let freshness = Freshness::new(attr, asked, &times);
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
        }
    }

    /// The server's name for it.
    pub(crate) fn handle(&self) -> FileHandleBuf {
        self.state().handle
    }

    /// Takes in attributes that came `now` with a reply to a call of `asked`. Those of another node or of
    /// another type are not this node's: the server gave the handle a new meaning. False then.
    pub(crate) fn learn(&self, fattr: &Fattr3, asked: Instant, now: Instant) -> bool {
        let attr = attr::attr(fattr);
        if attr.fileid != self.fileid || attr.file_type != self.file_type {
            return false;
        }
        let mut state = self.state();
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

    /// Takes in what a change of ours did. If no other client made one since the attributes were last
    /// received, the names that are known stay good (RFC 1813 §2.6: that is what `wcc_data` is for).
    pub(crate) fn learn_change(&self, wcc: &WccData, asked: Instant, now: Instant) -> bool {
        let Some(fattr) = &wcc.after else {
            self.doubt(now);
            return true;
        };
        let (is_ours_alone, epoch) = {
            let state = self.state();
            let known = WeakAttr::from(&state.freshness.known());
            (wcc.before.as_ref().map(attr::weak_attr) == Some(known), state.epoch)
        };
        let learnt = self.learn(fattr, asked, now);
        if learnt && is_ours_alone {
            let mut state = self.state();
            if state.epoch.0 == epoch.0 + 1 {
                state.epoch = epoch;
            }
        }
        learnt
    }

    /// A change of ours begins, or is answered: what was asked beside it may tell of a time before or after.
    pub(crate) fn changing(&self) {
        self.state().changes += 1;
    }

    /// Counts its changes. What two calls say of one name fits together only if this is the same for both.
    pub(crate) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// When it was last heard of, if it has changed since it is known.
    pub(super) fn changed(&self) -> Option<Instant> {
        let state = self.state();
        (state.changes > 0).then(|| state.freshness.came())
    }

    /// Which epoch it is in.
    pub(crate) fn epoch(&self) -> Epoch {
        self.state().epoch
    }

    /// The attributes, if they are to be believed now. A file that is being written is as long as its writers
    /// made it.
    pub(crate) fn believed(&self, now: Instant) -> Option<Attr> {
        let believed = self.state().freshness.believed(now, &self.removal);
        believed.map(|attr| self.as_writers_see(attr))
    }

    /// The attributes as last heard of.
    pub(crate) fn known(&self) -> Attr {
        let known = self.state().freshness.known();
        self.as_writers_see(known)
    }

    /// The attributes as the server last told them, whatever is being written.
    pub(crate) fn told(&self) -> Attr {
        self.state().freshness.known()
    }

    /// The attributes, if a call of `time` or later brought them.
    pub(crate) fn fetched_since(&self, time: Instant) -> Option<Attr> {
        let known = {
            let state = self.state();
            state.freshness.is_since(time).then(|| state.freshness.known())
        };
        known.map(|attr| self.as_writers_see(attr))
    }

    /// Are the attributes to be asked for, whatever their age?
    pub(crate) fn is_doubtful(&self) -> bool {
        self.state().freshness.is_doubtful()
    }

    /// The attributes are to be asked for, whatever their age.
    pub(crate) fn doubt(&self, now: Instant) {
        self.state().freshness.doubt(now);
    }

    /// A name of it was removed by this client: others are to be asked how many it has, and it may be gone.
    pub(crate) fn lost_a_name(&self, now: Instant) {
        let mut state = self.state();
        state.lost_a_name = Some(now);
        state.names_lost = match self.file_type {
            // It had no other.
            FileType::Directory => u32::MAX,
            _ => state.names_lost.saturating_add(1),
        };
        state.freshness.doubt(now);
    }

    /// The attributes of a file of which the server says that it is gone: as they were, if this client has
    /// removed its last name. It may still be held without being open. What others removed or replaced is to
    /// be looked up again.
    pub(crate) fn after_its_end(&self) -> Option<Attr> {
        let state = self.state();
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

    /// What the server said this user may do, of what is asked now; `None` if that is not known.
    pub(crate) fn allowed(
        &self,
        identity: &Identity,
        asked_for: AccessBits,
        now: Instant,
    ) -> Option<AccessBits> {
        let state = self.state();
        let lifetime = match self.file_type {
            FileType::Directory => self.times.dir_max,
            _ => self.times.file_max,
        };
        let granted = state.access.iter().find(|granted| granted.identity == *identity)?;
        let is_young = now.saturating_duration_since(granted.asked) < lifetime;
        let is_same = granted.ctime == state.freshness.known().ctime;
        (is_young && is_same && granted.asked_for.contains(asked_for)).then_some(granted.allowed & asked_for)
    }

    /// Remembers what the server said at `asked`.
    pub(crate) fn grant(
        &self,
        identity: &Identity,
        asked_for: AccessBits,
        allowed: AccessBits,
        asked: Instant,
    ) {
        let mut state = self.state();
        let ctime = state.freshness.known().ctime;
        let mut granted = Granted { identity: identity.clone(), asked_for, allowed, ctime, asked };
        if let Some(index) = state.access.iter().position(|granted| granted.identity == *identity) {
            let before = state.access.swap_remove(index);
            if before.ctime == ctime {
                // What was said of other rights holds on, no longer than it did.
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

    /// Where it was last seen.
    pub(crate) fn location(&self) -> Option<Location> {
        self.state().location.clone()
    }

    /// Returns `true` if this directory can be the parent of another: it is not below that one, nor too deep.
    /// Locations of directories change with the table of nodes locked, so two cannot move into each other
    /// concurrently.
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

    /// It was seen there, or nowhere any more. The last location is dropped with no lock held: a chain of
    /// directories may go with it.
    pub(crate) fn set_location(&self, location: Option<Location>) {
        let before = std::mem::replace(&mut self.state().location, location);
        drop(before);
    }

    /// Was it unlinked while open?
    pub(crate) fn is_silly(&self) -> bool {
        self.state().silly
    }

    /// It was unlinked while open, and has this name until its last opening ends.
    pub(crate) fn make_silly(&self, location: Location) {
        let mut state = self.state();
        state.silly = true;
        let before = state.location.replace(location);
        drop(state);
        drop(before);
    }

    /// It has its old name back.
    pub(crate) fn make_plain(&self) {
        self.state().silly = false;
    }

    /// One opening more.
    pub(crate) fn opened(&self) {
        self.openings.fetch_add(1, Ordering::AcqRel);
    }

    /// One opening less; true when that was the last.
    pub(crate) fn closed(&self) -> bool {
        self.openings.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Has this session openings of it?
    pub(crate) fn is_open(&self) -> bool {
        self.openings.load(Ordering::Acquire) > 0
    }

    /// The end of a removal that may not have seen an opening of now, if one is under way.
    pub(crate) fn removal_ended(&self) -> Option<Raised> {
        self.removals.end()
    }

    pub(super) fn set_handle(&self, handle: FileHandleBuf) {
        self.state().handle = handle;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One directory after the other, not each within the one below it: a server can nest them deeper than a
/// stack goes.
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
