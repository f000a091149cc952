//! Cached state of one object: attributes, names, permissions and data, and when they were requested.
//!
//! Answers may arrive in another order than the origin gave them, and overlap local changes. Each is stored
//! with the time of its request (`asked`) and discarded if it may be older than the cached state.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tombolo_core::fs::{AccessMask, Attr, FileType, NodeId, PersistentHandle, WeakAttr};
use tombolo_core::{Identity, lock};
use tombolo_host_runtime::promise::Promise;

use crate::backing::Held;
use crate::data::Data;
use crate::freshness::Look;
use crate::granted::Term;
use crate::images::Advice;
use crate::names::{Names, NamesOfObject, WrittenPart};
use crate::options::{Contract, Options};
use crate::rights::{Life, Rights};
use crate::rules::Place;
use crate::shared::Shared;
use crate::store::ObjectId;
use crate::store::rows::ObjectRow;
use crate::unkept::Unkept;
use crate::written::Written;

/// A file, directory or link of the origin.
#[derive(Debug)]
pub(crate) struct Object {
    pub id: ObjectId,
    pub file_type: FileType,
    /// The origin's handle of the object.
    pub handle: PersistentHandle,
    /// Cache rule that applies to the object.
    pub place: Place,
    shared: Arc<Shared>,
    /// `true` if the object was used since the last call of [`Object::was_used`].
    is_used: AtomicBool,
    /// Time of the object's last use, in milliseconds since the start of the cache; 0 if there was none.
    used_at: AtomicU64,
    /// `true` if the origin may still perform an unanswered write.
    is_unanswered: AtomicBool,
    state: Mutex<State>,
}

/// Cached state of an object.
#[derive(Debug)]
pub(crate) struct State {
    /// Validity of the lease granted by the origin's server; shared by all objects.
    pub term: Arc<Term>,
    /// Node of the origin's session, with one look-up.
    node: Option<NodeId>,
    /// Last measured memory usage, in bytes.
    weight_bytes: usize,
    /// The origin's attributes, of the newest usable answer. Under *immutable* and *exclusive* an answer that
    /// differs only in the time of access does not replace them.
    pub attr: Attr,
    /// Time of the request for `attr`, or of a later one whose answer confirmed them, the time of access
    /// aside. `None` if `attr` are from the index or must be revalidated.
    pub asked: Option<Instant>,
    /// Time of the last cached answer's request or local change: an answer to a request made before is late.
    /// `None` if there was neither.
    pub latest: Option<Instant>,
    /// Arrival of the last answer stored. The order in which the origin performed its request and another one
    /// made before this time is unknown.
    pub came: Option<Instant>,
    /// End of the last local change: answers to requests made before it are not used for names.
    pub changed: Option<Instant>,
    /// Last observed change of mode, owner or time of change, which may have changed permissions.
    turned: Option<Turned>,
    /// `true` if others may have changed the object since the origin's last answer, whatever the contract.
    pub is_suspect: bool,
    /// Directory in which the origin last reported the object.
    pub parent: Option<ObjectId>,
    /// Target of a symbolic link.
    pub link: Option<Arc<[u8]>>,
    /// Names in a directory.
    pub names: NamesOfObject,
    /// Boundary between the cached names and the others, if the directory has too many names to cache all.
    pub unkept: Option<Box<Unkept>>,
    /// Pending request for the directory's attributes, on behalf of look-ups of absent names.
    pub looked_at_again: Option<Arc<Promise<()>>>,
    /// Start of a listing in progress that is returned as it arrives, and the promise of its next part.
    pub growing: Option<(Instant, Arc<Promise<()>>)>,
    /// Time of the first request of the last successful listing, which also brought the entries' attributes.
    pub listed: Option<Instant>,
    /// Size in bytes of a prefetched listing that was not used yet; 0 if it is no guess (`walk`).
    pub unused_listing: Option<u64>,
    /// Data of a regular file, from their first use until they are evicted or another version is found.
    pub data: Option<Arc<Data>>,
    /// Sidecar's entry for the file, perhaps for another version.
    pub advice: Option<Arc<Advice>>,
    pub rights: Rights,
    /// Period in which another change, in the same tick of the origin's clock, might not show in the times.
    pub recency: Option<Recency>,
    /// `true` if there are changes to write to the store.
    pub is_dirty: bool,
    /// `true` if the object is gone at the origin, is unnamed and unused, or its handle is another file's:
    /// nothing is stored.
    pub is_gone: bool,
    /// Number of local openings, and of operations in progress that make a link to the file.
    pub uses: usize,
    /// Number of local openings for writing and of writes in progress: until the last ends, only the origin
    /// knows the attributes.
    pub writers: usize,
    /// Parts written locally since the version of the cached data.
    pub written: Written,
    /// Hold of the present version while clients read it past the cache.
    pub held: Weak<Held>,
}

/// Times of a change of the attributes that determine permissions.
#[derive(Clone, Copy, Debug)]
struct Turned {
    /// Request and arrival times of the attributes that show the change.
    asked: Instant,
    came: Instant,
}

/// Period in which another change might not show in the object's times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recency {
    /// Arrival of the newest of the data or names.
    came: Instant,
    until: Instant,
}

impl Recency {
    pub(crate) fn until(recent_for: Duration) -> Self {
        let came = Instant::now();
        Self { came, until: came + recent_for }
    }
}

/// Database rows to write for an object.
pub(crate) struct Rows {
    pub object: ObjectRow,
    /// `true` if all names in the database are obsolete.
    pub drops_names: bool,
    pub names: Vec<WrittenPart>,
}

/// Memory of an object with its table entries and allocation overhead.
const OBJECT_BYTES: usize = size_of::<Object>() + 64;

impl Object {
    pub(crate) fn new(id: ObjectId, handle: PersistentHandle, attr: Attr, shared: &Arc<Shared>) -> Self {
        let state = State {
            term: shared.term.clone(),
            node: None,
            weight_bytes: 0,
            attr,
            asked: None,
            latest: None,
            came: None,
            changed: None,
            turned: None,
            is_suspect: false,
            parent: None,
            link: None,
            names: NamesOfObject::default(),
            unkept: None,
            looked_at_again: None,
            growing: None,
            listed: None,
            unused_listing: None,
            data: None,
            advice: None,
            rights: Rights::default(),
            recency: None,
            is_dirty: true,
            is_gone: false,
            uses: 0,
            writers: 0,
            written: Written::Nothing,
            held: Weak::new(),
        };
        let (place, shared, state) = (Place::default(), shared.clone(), Mutex::new(state));
        let object = Self {
            id,
            file_type: attr.file_type,
            handle,
            place,
            shared,
            is_used: AtomicBool::new(false),
            used_at: AtomicU64::new(0),
            is_unanswered: AtomicBool::new(false),
            state,
        };
        object.weigh();
        object
    }

    /// Measures the object's memory usage, and updates the total.
    pub(crate) fn weigh(&self) {
        let mut state = self.state();
        let spilled = Some(&self.handle.bytes).filter(|bytes| bytes.spilled());
        let weight_bytes = OBJECT_BYTES + state.heap_bytes() + spilled.map_or(0, |bytes| bytes.capacity());
        self.shared.weighs(state.weight_bytes, weight_bytes);
        state.weight_bytes = weight_bytes;
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        self.state().weight_bytes
    }

    pub(crate) fn node(&self) -> Option<NodeId> {
        self.state().node
    }

    /// Sets the node of the origin's session, with one look-up. The look-up is released when the object is
    /// dropped or gets another node.
    pub(crate) fn set_node(&self, node: Option<NodeId>) {
        let before = std::mem::replace(&mut self.state().node, node);
        self.shared.has_node(before, node);
    }

    /// Records a use, which delays the object's eviction from memory and index.
    pub(crate) fn use_it(&self) {
        if !self.is_used.load(Relaxed) {
            self.is_used.store(true, Relaxed);
        }
        self.used_at.store(self.shared.age_ms(), Relaxed);
    }

    /// Returns `true` if the object was used within this time.
    pub(crate) fn was_used_within(&self, time: Duration) -> bool {
        let used_at = self.used_at.load(Relaxed);
        used_at > 0 && u128::from(self.shared.age_ms().saturating_sub(used_at)) < time.as_millis()
    }

    /// Returns `true` if the object was used since the last call, and clears the flag.
    pub(crate) fn was_used(&self) -> bool {
        self.is_used.swap(false, Relaxed)
    }

    /// Records that a write to the file has ended without an answer.
    pub(crate) fn set_unanswered(&self) {
        self.is_unanswered.store(true, Relaxed);
    }

    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_unanswered.load(Relaxed)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the attributes as shown to clients, if they are valid for this purpose.
    pub(crate) fn believed(&self, look: Look, options: &Options) -> Option<Attr> {
        let state = self.state();
        let has_lost_a_name = self.shared.removal.concerns(&state.attr, state.asked, options.contract);
        (!has_lost_a_name && state.is_believed(look, options)).then(|| self.shown(&state.attr))
    }

    /// Converts attributes of the origin to those shown to clients: with this object's own number, and not
    /// volatile: the contract applies also to files that are volatile at the origin.
    pub(crate) fn shown(&self, attr: &Attr) -> Attr {
        Attr { fileid: self.id.0, generation: 0, volatile: false, ..*attr }
    }

    /// Stores attributes from an answer to a request made at `asked`, unless the stored ones are newer.
    /// Returns `false` if they belong to another file, or to another version while this one is
    /// [held](crate::backing): clients see that version as another file.
    pub(crate) fn learn(&self, attr: &Attr, asked: Instant, contract: Contract) -> bool {
        let mut state = self.state();
        if (attr.fileid, attr.fsid, attr.file_type) != (state.attr.fileid, state.attr.fsid, self.file_type) {
            return false;
        }
        // A server performs concurrent requests in any order, so its time of change decides which reply is
        // older.
        let overlaps = state.came.is_some_and(|came| asked < came);
        let is_late = state.latest.is_some_and(|latest| asked < latest);
        match attr.ctime.cmp(&state.attr.ctime) {
            Ordering::Less if overlaps || is_late => return true,
            Ordering::Equal if is_late => return true,
            // The reply shows another version than the cached one, but not whether a local change has
            // followed.
            Ordering::Greater if is_late => {
                state.follow(attr, asked, contract);
                return true;
            }
            _ => {}
        }
        if WeakAttr::from(attr) != WeakAttr::from(&state.attr) {
            if state.is_held() {
                return false;
            }
            state.follow(attr, asked, contract);
        }
        let same = Attr { atime: state.attr.atime, ..*attr } == state.attr;
        state.is_dirty |= !same;
        // Fetches change the time of access: where sessions are notified of changes, it is not stored.
        if !same || !contract.tells_changes() {
            state.set_attr(attr, asked);
        }
        state.asked = Some(asked);
        state.latest = Some(asked);
        state.came = Some(Instant::now());
        state.is_suspect = false;
        true
    }

    /// Records that the origin confirmed the cached version in answer to a request made at `asked`. Names and
    /// data that arrived before `asked`, and are too recent to show another change, are dropped, unless no
    /// other client makes changes (*immutable*, *exclusive*).
    pub(crate) fn settle(&self, asked: Instant, contract: Contract) {
        let mut state = self.state();
        if !contract.tells_changes() && state.recency.is_some_and(|recency| asked > recency.came) {
            state.drop_recent();
        }
    }

    /// Marks a directory's names to be written to the index, if they were recent and are not any more. Only
    /// for a directory that no other client changes. Returns `true` if they are to be written now; fails with
    /// the remaining time if they are still too recent.
    pub(crate) fn ripen(&self, now: Instant) -> Result<bool, Duration> {
        let mut state = self.state();
        let Some(recency) = state.recency else { return Ok(false) };
        match recency.until.checked_duration_since(now) {
            Some(left) if !left.is_zero() => Err(left),
            _ => {
                state.recency = None;
                state.names.unwritten();
                state.is_dirty = true;
                Ok(!state.is_gone)
            }
        }
    }

    /// Marks the attributes for revalidation, which *immutable* ignores, and discards earlier answers.
    pub(crate) fn doubt(&self) {
        let mut state = self.state();
        state.asked = None;
        state.changed_here();
    }

    /// Marks the object for revalidation, as others may have changed it. Drops permissions and recent state.
    pub(crate) fn doubt_all(&self) {
        self.doubt();
        let mut state = self.state();
        state.is_suspect = true;
        // Others may have changed mode or owner, even if the next change seen is a local one.
        state.forget_rights();
        match state.is_written_in_parts() {
            true => state.lose(),
            false => state.drop_recent(),
        }
    }

    /// Restores an object from its rows, written by an earlier process or before it left memory.
    pub(crate) fn restored(id: ObjectId, row: ObjectRow, names: Names, shared: &Arc<Shared>) -> Self {
        let ObjectRow { handle, attr, parent, link, rights, .. } = row;
        let object = Self::new(id, handle, attr, shared);
        {
            let mut state = object.state();
            state.parent = parent;
            state.link = link.map(Into::into);
            if attr.file_type == FileType::Directory {
                state.names = names.into();
            }
            state.rights = Rights::restored(rights);
            // Others may have changed the object since; perhaps no process used the cache meanwhile.
            state.is_suspect = true;
            state.is_dirty = false;
        }
        object.weigh();
        object
    }

    /// Returns the record that identifies the object to a layer above.
    pub(crate) fn record(&self) -> Vec<u8> {
        let state = self.state();
        let (handle, attr, parent) = (self.handle.clone(), state.attr, state.parent);
        let names = (false, state.names.next_place());
        ObjectRow { handle, attr, parent, link: None, names, rights: Vec::new() }.encoded()
    }

    /// Returns the database rows to write, after which the object counts as written.
    pub(crate) fn rows(&self) -> Rows {
        let mut state = self.state();
        state.is_dirty = false;
        // Names fetched too soon after a change are not reused by a later process.
        let (drops_names, names) = match state.recency {
            _ if self.file_type != FileType::Directory => (false, Vec::new()),
            Some(_) => (true, Vec::new()),
            None => state.names.take_dirty(),
        };
        let object = ObjectRow {
            handle: self.handle.clone(),
            attr: state.attr,
            parent: state.parent,
            link: state.link.as_deref().map(<[u8]>::to_vec),
            names: (state.names.is_complete() && state.recency.is_none(), state.names.next_place()),
            rights: state.rights.rows(),
        };
        Rows { object, drops_names, names }
    }

    /// Records that rows were not written, so all must be written again.
    pub(crate) fn unwritten(&self) {
        let mut state = self.state();
        state.is_dirty = true;
        if self.file_type == FileType::Directory {
            state.names.unwritten();
        }
    }

    /// Returns whether a user has these permissions, if a valid answer is cached.
    pub(crate) fn allows(&self, user: &Identity, mask: AccessMask, options: &Options) -> Option<bool> {
        let life = match options.contract {
            Contract::Immutable | Contract::Exclusive => Life::Ever,
            Contract::CloseToOpen | Contract::Lease => Life::Time(options.rights_refresh),
            Contract::Refresh(time) => Life::Time(time),
        };
        let state = self.state();
        state.rights.allow(user, mask, state.attr.ctime, Instant::now(), life)
    }

    /// Stores a denial in answer to a request made at `asked`. Of several permissions the origin does not say
    /// which is denied, so only the denial of a single one is stored.
    pub(crate) fn deny(&self, user: &Identity, mask: AccessMask, asked: Instant) {
        if mask.bits().is_power_of_two() {
            self.grant(user, mask, AccessMask::empty(), asked);
        }
    }

    /// Stores the answer to a request for permissions made at `asked`.
    pub(crate) fn grant(&self, user: &Identity, mask: AccessMask, allowed: AccessMask, asked: Instant) {
        let mut state = self.state();
        // The file's mode may have changed since the request, unless the change arrived with this answer.
        if state.turned.is_some_and(|turned| asked < turned.came && asked != turned.asked) {
            return;
        }
        let ctime = state.attr.ctime;
        state.rights.learn(user, mask, allowed, ctime, asked);
        state.is_dirty = true;
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.shared.weighs(state.weight_bytes, 0);
        self.shared.has_node(state.node, None);
    }
}

impl State {
    /// Drops names, link target and data too recent to show another change, unless the version is held or
    /// parts of the file are being written.
    fn drop_recent(&mut self) {
        if self.recency.is_some() && !self.is_written_in_parts() && !self.is_held() {
            self.changed();
        }
    }

    /// Drops the names, link target and data of the former version.
    pub(crate) fn changed(&mut self) {
        if self.attr.file_type == FileType::Directory {
            self.names.drop_all();
        }
        self.link = None;
        if let Some(data) = self.data.take() {
            data.file.doom();
        }
        self.recency = None;
        self.is_dirty = true;
        if matches!(self.written, Written::Parts(_)) {
            self.written = if self.writers > 0 { Written::All } else { Written::Nothing };
        }
    }

    /// Switches to another version that the origin reported in answer to a request made at `asked`.
    fn follow(&mut self, attr: &Attr, asked: Instant, contract: Contract) {
        if self.attr.file_type == FileType::Directory {
            let is_ours =
                contract == Contract::Exclusive && !self.is_suspect && self.is_changed_here_since(asked);
            if is_ours || self.is_version(&WeakAttr::from(attr), contract) {
                return self.advance(attr, asked);
            }
            self.changed();
        } else if !self.expects(attr, contract) {
            self.changed();
        }
        // `true` if only local changes can have been made since the last answer.
        let is_only_ours = contract == Contract::Exclusive && !self.is_suspect;
        match is_only_ours && self.asked.is_none() && self.changed.is_some() {
            true => self.advance(attr, asked),
            false => self.set_attr(attr, asked),
        }
        self.is_dirty = true;
    }

    /// Stores the attributes after a local change requested at `asked`, which no other change preceded.
    pub(crate) fn advance(&mut self, attr: &Attr, asked: Instant) {
        match self.goes_by_rights_of(attr) {
            true => {
                self.rights.carry(self.attr.ctime, attr.ctime);
                self.attr = *attr;
            }
            false => self.set_attr(attr, asked),
        }
        self.is_dirty = true;
    }

    /// Stores attributes from an answer to a request made at `asked`.
    pub(crate) fn set_attr(&mut self, attr: &Attr, asked: Instant) {
        let keeps_rights = self.goes_by_rights_of(attr);
        if !keeps_rights {
            // The time of change may be equal within a tick of the origin's clock.
            self.forget_rights();
        }
        if !keeps_rights || self.attr.ctime != attr.ctime {
            self.turned = Some(Turned { asked, came: Instant::now() });
        }
        self.attr = *attr;
    }

    /// Drops all permissions: answers to earlier requests are not used.
    pub(crate) fn forget_rights(&mut self) {
        self.rights = Rights::default();
        let now = Instant::now();
        self.turned = Some(Turned { asked: now, came: now });
    }

    /// Returns `true` if mode, owner and group are those of `attr`, so that cached permissions stay valid.
    fn goes_by_rights_of(&self, attr: &Attr) -> bool {
        (self.attr.mode, self.attr.uid, self.attr.gid) == (attr.mode, attr.uid, attr.gid)
    }

    /// Returns `true` if the difference of a directory's attributes, requested at `asked`, may result from
    /// local changes alone.
    fn is_changed_here_since(&self, asked: Instant) -> bool {
        !self.names.changes.is_empty() || self.changed.is_some_and(|changed| changed > asked)
    }

    /// Returns `true` if `told`, reported by the origin, is the cached version; of a directory, a version
    /// with the cached names. Under *exclusive* a directory that is not suspect and whose ctime alone differs
    /// has the cached names: a change of names through this cache would also set the modification time.
    pub(crate) fn is_version(&self, told: &WeakAttr, contract: Contract) -> bool {
        let is_only_ours = contract == Contract::Exclusive && !self.is_suspect;
        let may_be_renamed = is_only_ours && self.attr.file_type == FileType::Directory;
        let has_same_names = (told.size, told.mtime) == (self.attr.size, self.attr.mtime);
        *told == self.version() || may_be_renamed && has_same_names
    }

    /// Records a local change: answers to requests made before its end are not used.
    pub(crate) fn changed_here(&mut self) {
        self.latest = Some(Instant::now());
        self.changed = self.latest;
    }

    fn heap_bytes(&self) -> usize {
        let of_data = self.data.as_ref().map_or(0, |data| data.heap_bytes());
        self.names.heap_bytes()
            + self.unkept.as_ref().map_or(0, |unkept| unkept.heap_bytes())
            + self.rights.heap_bytes()
            + self.link.as_ref().map_or(0, |link| link.len())
            + of_data
            + self.advice.as_ref().map_or(0, |advice| advice.heap_bytes())
    }

    /// Returns `true` if the file is open, being written, being linked, or read past the cache.
    pub(crate) fn is_in_use(&self) -> bool {
        self.uses > 0 || self.writers > 0 || self.is_held()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.strong_count() > 0
    }

    pub(crate) fn version(&self) -> WeakAttr {
        WeakAttr::from(&self.attr)
    }
}
