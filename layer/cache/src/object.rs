//! Cached state of one file of the origin.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tombolo_core::Identity;
use tombolo_core::fs::{AccessMask, Attr, FileType, NodeId, PersistentHandle, WeakAttr};
use tombolo_host_runtime::promise::Promise;

use crate::backing::Held;
use crate::data::Data;
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
    /// The origin's name for it.
    pub handle: PersistentHandle,
    /// Which rule it goes by.
    pub place: Place,
    shared: Arc<Shared>,
    /// It was looked for since this was last asked.
    is_used: AtomicBool,
    /// When it was last looked for, in milliseconds since the start.
    used_at: AtomicU64,
    /// The origin may perform a write yet that it has not answered.
    is_unanswered: AtomicBool,
    state: Mutex<State>,
}

/// What is known of an object.
#[derive(Debug)]
pub(crate) struct State {
    term: Arc<Term>,
    node: Option<NodeId>,
    /// How much memory it was last found to take.
    weight_bytes: usize,
    /// The origin's attributes.
    pub attr: Attr,
    /// When they were asked for; `None` if they are from another life, or in doubt.
    pub asked: Option<Instant>,
    /// What was asked for before this says nothing: a later answer is known, or a change was made here since.
    pub latest: Option<Instant>,
    /// When the attributes came. What was asked for before may have been answered in any order.
    pub came: Option<Instant>,
    /// When a change that was made here has last ended: what was asked for before says nothing of names.
    pub changed: Option<Instant>,
    /// When mode, owner or time of change last turned out to be others.
    turned: Option<Turned>,
    /// Others may have changed it since it was last seen, whatever the contract says.
    pub is_suspect: bool,
    /// The directory that it was last met in.
    pub parent: Option<ObjectId>,
    /// The target of a symbolic link.
    pub link: Option<Arc<[u8]>>,
    /// The names in a directory.
    pub names: NamesOfObject,
    /// The names that are not kept, as there are too many.
    pub unkept: Option<Box<Unkept>>,
    /// Its attributes are being asked for, for look-ups of names that are not there as far as is known.
    pub looked_at_again: Option<Arc<Promise<()>>>,
    /// All names are being listed since then, and shown as they come: kept when more have come.
    pub growing: Option<(Instant, Arc<Promise<()>>)>,
    /// When all names were last listed, which brought the attributes of what they lead to.
    pub listed: Option<Instant>,
    /// They were listed in the background, so many bytes of it unasked, and they were not looked at since.
    pub unused_listing: Option<u64>,
    /// The data of a regular file.
    pub data: Option<Arc<Data>>,
    /// What a sidecar says of it.
    pub advice: Option<Arc<Advice>>,
    pub rights: Rights,
    /// When data or names came that were very new then: another change in the same tick of the origin's clock
    /// would not show.
    pub young: Option<Young>,
    /// What is to be written has changed.
    pub is_dirty: bool,
    /// It is gone at the origin, or is another file there: nothing of it is kept.
    pub is_gone: bool,
    /// Openings here, and links that are being made of it.
    pub uses: usize,
    /// Openings here through which it may be written, and writes that are under way: until the last of them
    /// has ended, the origin alone knows what the attributes are.
    pub writers: usize,
    /// What was written here since the version of the data.
    pub written: Written,
    /// The present version is read past this cache.
    pub held: Weak<Held>,
}

/// Attributes by which rights go turned out to be others.
#[derive(Clone, Copy, Debug)]
struct Turned {
    /// When the attributes were asked for that say so, and when they came.
    asked: Instant,
    came: Instant,
}

/// For how long another change might not show, where that is not over yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Young {
    /// When the latest came.
    came: Instant,
    until: Instant,
}

impl Young {
    pub(crate) fn until(young_for: Duration) -> Self {
        let came = Instant::now();
        Self { came, until: came + young_for }
    }
}

/// An object as the database has it.
pub(crate) struct Rows {
    pub object: ObjectRow,
    /// Names that were written before are gone.
    pub drops_names: bool,
    pub names: Vec<WrittenPart>,
}

/// An object takes so much, and its entries in tables, and what the allocator loses by it.
const OBJECT_BYTES: usize = size_of::<Object>() + 64;

/// A directory that was asked for so shortly before a look-up began tells that a name is not there.
const ABSENCE_KEPT: Duration = Duration::from_millis(100);

/// What attributes are wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    /// A look without an open.
    Stat,
    /// An open that began at this time.
    Open(Instant),
}

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
            young: None,
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

    /// Looks how much memory it takes.
    pub(crate) fn weigh(&self) {
        let mut state = self.state();
        let weight_bytes = OBJECT_BYTES + state.heap_bytes() + spilled_bytes(&self.handle);
        self.shared.weighs(state.weight_bytes, weight_bytes);
        state.weight_bytes = weight_bytes;
    }

    /// How much memory it was last found to take.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.state().weight_bytes
    }

    /// The node of the origin's session, if there is one.
    pub(crate) fn node(&self) -> Option<NodeId> {
        self.state().node
    }

    /// The node of the origin's session, which counts one look-up. It is given back with the object, or when
    /// it gets another.
    pub(crate) fn set_node(&self, node: Option<NodeId>) {
        let before = std::mem::replace(&mut self.state().node, node);
        self.shared.has_node(before, node);
    }

    /// It was looked for.
    pub(crate) fn use_it(&self) {
        if !self.is_used.load(Relaxed) {
            self.is_used.store(true, Relaxed);
        }
        self.used_at.store(self.shared.age_ms(), Relaxed);
    }

    /// Returns `true` if it was looked for within this time.
    pub(crate) fn was_used_within(&self, time: Duration) -> bool {
        let used_at = self.used_at.load(Relaxed);
        used_at > 0 && u128::from(self.shared.age_ms().saturating_sub(used_at)) < time.as_millis()
    }

    /// Whether it was looked for since this was last asked.
    pub(crate) fn was_used(&self) -> bool {
        self.is_used.swap(false, Relaxed)
    }

    /// A write to it has ended without an answer.
    pub(crate) fn set_unanswered(&self) {
        self.is_unanswered.store(true, Relaxed);
    }

    /// Whether the origin may perform a write yet that it has not answered.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_unanswered.load(Relaxed)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attributes as they are shown here, if they are to be believed.
    pub(crate) fn believed(&self, look: Look, options: &Options) -> Option<Attr> {
        let state = self.state();
        let has_lost_a_name = self.shared.removal.concerns(&state.attr, state.asked, options.contract);
        (!has_lost_a_name && state.is_believed(look, options)).then(|| self.shown(&state.attr))
    }

    /// Attributes of the origin as they are shown here: with this object's own number, and believed as the
    /// contract says.
    pub(crate) fn shown(&self, attr: &Attr) -> Attr {
        Attr { fileid: self.id.0, generation: 0, volatile: false, ..*attr }
    }

    /// Takes in attributes that the origin told in answer to what was asked at `asked`. False if they are
    /// another file's, or another version's while this one is [held](crate::backing): that is another file
    /// here.
    pub(crate) fn learn(&self, attr: &Attr, asked: Instant, contract: Contract) -> bool {
        let mut state = self.state();
        if (attr.fileid, attr.fsid, attr.file_type) != (state.attr.fileid, state.attr.fsid, self.file_type) {
            return false;
        }
        // A server does what it has at one time in any order: then its own time of change tells which is
        // older.
        let overlaps = state.came.is_some_and(|came| asked < came);
        let is_late = state.latest.is_some_and(|latest| asked < latest);
        match attr.ctime.cmp(&state.attr.ctime) {
            Ordering::Less if overlaps || is_late => return true,
            Ordering::Equal if is_late => return true,
            // What comes along with it is not of the version that is known. Whether a change here has
            // followed it does not tell.
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
        // A time of access that is moved by what is fetched is no change that others would be told of.
        if !same || !contract.tells_changes() {
            state.set_attr(attr, asked);
        }
        state.asked = Some(asked);
        state.latest = Some(asked);
        state.came = Some(Instant::now());
        state.is_suspect = false;
        true
    }

    /// The origin was asked at `asked` whether this is still the version that is here, and it is. What came
    /// too soon after a change to tell is dropped once, unless there is none that does not come by here
    /// (*immutable*, *exclusive*).
    pub(crate) fn settle(&self, asked: Instant, contract: Contract) {
        let mut state = self.state();
        if !contract.tells_changes() && state.young.is_some_and(|young| asked > young.came) {
            state.drop_young();
        }
    }

    /// It is known that there was no other change: names that are old enough now are to be written, all of
    /// them. Whether they are so; the time that is left if later ones are not.
    pub(crate) fn ripen(&self, now: Instant) -> Result<bool, Duration> {
        let mut state = self.state();
        let Some(young) = state.young else { return Ok(false) };
        match young.until.checked_duration_since(now) {
            Some(left) if !left.is_zero() => Err(left),
            _ => {
                state.young = None;
                state.names.unwritten();
                state.is_dirty = true;
                Ok(!state.is_gone)
            }
        }
    }

    /// Whether something was learnt since `asked`: then it is not known which of two changes came last.
    pub(crate) fn has_learnt_since(&self, asked: Instant) -> bool {
        self.state().latest.is_some_and(|latest| asked < latest)
    }

    /// Something may have changed it: the attributes are to be asked for, whatever the contract says.
    pub(crate) fn doubt(&self) {
        let mut state = self.state();
        state.asked = None;
        state.changed_here();
    }

    /// The same, and others may have changed it.
    pub(crate) fn doubt_all(&self) {
        self.doubt();
        let mut state = self.state();
        state.is_suspect = true;
        // What follows is not taken for our own doing, which rights outlive.
        state.forget_rights();
        match state.is_written_in_parts() {
            true => state.lose(),
            false => state.drop_young(),
        }
    }

    /// What an earlier life has left. Its data are found by its version.
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
            // Others may have changed it between the lives.
            state.is_suspect = true;
            state.is_dirty = false;
        }
        object.weigh();
        object
    }

    /// What it takes to know it again: not what was told of it.
    pub(crate) fn record(&self) -> Vec<u8> {
        let state = self.state();
        let (handle, attr, parent) = (self.handle.clone(), state.attr, state.parent);
        let names = (false, state.names.next_place());
        ObjectRow { handle, attr, parent, link: None, names, rights: Vec::new() }.encoded()
    }

    /// What is to be written of it.
    pub(crate) fn rows(&self) -> Rows {
        let mut state = self.state();
        state.is_dirty = false;
        // What came too soon after a change to tell is not believed in another life.
        let (drops_names, names) = match state.young {
            _ if self.file_type != FileType::Directory => (false, Vec::new()),
            Some(_) => (true, Vec::new()),
            None => state.names.take_dirty(),
        };
        let object = ObjectRow {
            handle: self.handle.clone(),
            attr: state.attr,
            parent: state.parent,
            link: state.link.as_deref().map(<[u8]>::to_vec),
            names: (state.names.is_complete() && state.young.is_none(), state.names.next_place()),
            rights: state.rights.rows(),
        };
        Rows { object, drops_names, names }
    }

    /// What was taken to be written was not: all of it is to be written again.
    pub(crate) fn unwritten(&self) {
        let mut state = self.state();
        state.is_dirty = true;
        if self.file_type == FileType::Directory {
            state.names.unwritten();
        }
    }

    /// What a user may do with it, if that is known.
    pub(crate) fn allows(&self, user: &Identity, mask: AccessMask, options: &Options) -> Option<bool> {
        let life = match options.contract {
            Contract::Immutable | Contract::Exclusive => Life::Ever,
            Contract::CloseToOpen | Contract::Lease => Life::Time(options.rights_refresh),
            Contract::Refresh(time) => Life::Time(time),
        };
        let state = self.state();
        state.rights.allow(user, mask, state.attr.ctime, Instant::now(), life)
    }

    /// Takes in that the origin does not allow all of this, asked at `asked`. Of several rights it does not
    /// say which.
    pub(crate) fn deny(&self, user: &Identity, mask: AccessMask, asked: Instant) {
        if mask.bits().is_power_of_two() {
            self.grant(user, mask, AccessMask::empty(), asked);
        }
    }

    /// Takes in what the origin has allowed, asked at `asked`.
    pub(crate) fn grant(&self, user: &Identity, mask: AccessMask, allowed: AccessMask, asked: Instant) {
        let mut state = self.state();
        // It may be the file's new mode that was learnt since, of which this answer says nothing; but not if
        // it came along with it.
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
    pub(crate) fn is_believed(&self, look: Look, options: &Options) -> bool {
        if self.writers > 0 {
            return false;
        }
        // Nothing tells when a file without names is gone.
        if self.attr.nlink == 0 && options.contract != Contract::Immutable {
            return false;
        }
        let Some(asked) = self.asked.filter(|asked| !self.term.was_lost_since(*asked)) else {
            return options.contract == Contract::Immutable;
        };
        let younger = |than| asked.elapsed() <= than;
        match (options.contract, look) {
            (Contract::Immutable | Contract::Exclusive, _) => true,
            (Contract::Lease, look) if self.is_leased(asked, look) => true,
            (Contract::CloseToOpen | Contract::Lease, Look::Stat) => younger(options.attr_refresh),
            (Contract::CloseToOpen | Contract::Lease, Look::Open(began)) => asked >= began,
            (Contract::Refresh(time), _) => younger(time),
        }
    }

    /// Whether names that are not among those that are known are not there, for a look-up that began then. An
    /// open sees what was closed before it, and a file that was just made has a name that nobody has looked
    /// up yet.
    pub(crate) fn is_absence_believed(&self, began: Instant, options: &Options) -> bool {
        match (options.contract, self.asked) {
            (Contract::Immutable | Contract::Exclusive | Contract::Refresh(_), _) => true,
            (Contract::Lease, Some(asked)) if self.is_leased(asked, Look::Stat) => true,
            (_, asked) => asked.is_some_and(|asked| asked + ABSENCE_KEPT >= began),
        }
    }

    /// Returns `true` if absent names are believed for less than half of that time from now on.
    pub(crate) fn is_absence_ageing(&self, options: &Options) -> bool {
        !self.is_absence_believed(Instant::now() + ABSENCE_KEPT / 2, options)
    }

    /// Whether a lease lets it be believed. What came too soon after a change to tell is looked at once more
    /// first.
    fn is_leased(&self, asked: Instant, look: Look) -> bool {
        let is_attr = self.attr.file_type != FileType::Directory && matches!(look, Look::Stat);
        (self.young.is_none() || is_attr) && self.term.covers(asked)
    }

    /// Whether a change here has left open which version the file has now: a reader asks first.
    pub(crate) fn is_doubtful(&self, options: &Options) -> bool {
        self.asked.is_none() && options.contract != Contract::Immutable
    }

    /// What came too soon after a change to show another's is dropped, if there may have been one.
    fn drop_young(&mut self) {
        if self.young.is_some() && !self.is_written_in_parts() && !self.is_held() {
            self.changed();
        }
    }

    /// The origin has another version: what was known of the one before is dropped.
    pub(crate) fn changed(&mut self) {
        if self.attr.file_type == FileType::Directory {
            self.names.drop_all();
        }
        self.link = None;
        if let Some(data) = self.data.take() {
            data.file.doom();
        }
        self.young = None;
        self.is_dirty = true;
        if matches!(self.written, Written::Parts(_)) {
            self.written = if self.writers > 0 { Written::All } else { Written::Nothing };
        }
    }

    /// Whether a new listing would tell more than what is here: names, or attributes of many at once that are
    /// not to be believed any more.
    pub(crate) fn wants_listing(&self, options: &Options) -> bool {
        let is_old = self.listed.is_none_or(|listed| self.is_old_listing(listed, options));
        let is_old = is_old && !options.contract.tells_changes();
        !self.shows_all_names() || is_old
    }

    /// Whether a listing that was begun then is too old for a reader that begins now.
    pub(crate) fn is_old_listing(&self, begun: Instant, options: &Options) -> bool {
        match options.contract {
            Contract::Immutable | Contract::Exclusive => false,
            Contract::Lease if self.term.covers(begun) => false,
            Contract::CloseToOpen | Contract::Lease => begun.elapsed() > options.attr_refresh,
            Contract::Refresh(time) => begun.elapsed() > time,
        }
    }

    /// The origin has told of another version in answer to what was asked at `asked`.
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
        // Since it was seen last it was changed here, and by no other.
        let is_only_ours = contract == Contract::Exclusive && !self.is_suspect;
        match is_only_ours && self.asked.is_none() && self.changed.is_some() {
            true => self.advance(attr, asked),
            false => self.set_attr(attr, asked),
        }
        self.is_dirty = true;
    }

    /// The attributes after a change of ours that was asked for at `asked`, which no other's came before.
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

    /// The attributes, as they were told in answer to what was asked at `asked`.
    pub(crate) fn set_attr(&mut self, attr: &Attr, asked: Instant) {
        let keeps_rights = self.goes_by_rights_of(attr);
        if !keeps_rights {
            // Within a tick of the origin's clock the time of change is the same.
            self.forget_rights();
        }
        if !keeps_rights || self.attr.ctime != attr.ctime {
            self.turned = Some(Turned { asked, came: Instant::now() });
        }
        self.attr = *attr;
    }

    /// Users may do something else with it from now on: what was asked for before says nothing of it.
    pub(crate) fn forget_rights(&mut self) {
        self.rights = Rights::default();
        let now = Instant::now();
        self.turned = Some(Turned { asked: now, came: now });
    }

    /// Whether mode and owner are those of these attributes.
    fn goes_by_rights_of(&self, attr: &Attr) -> bool {
        (self.attr.mode, self.attr.uid, self.attr.gid) == (attr.mode, attr.uid, attr.gid)
    }

    /// Whether a directory whose attributes differ, as was asked at `asked`, may differ by what is changed
    /// here alone.
    fn is_changed_here_since(&self, asked: Instant) -> bool {
        !self.names.changes.is_empty() || self.changed.is_some_and(|changed| changed > asked)
    }

    /// Whether the origin tells this of the version that is known; of a directory, whether its names are
    /// those that are known. Where all changes come by here (*exclusive*) another time of change alone tells
    /// of another name or mode of the directory itself: changes of names set the time of its data too.
    pub(crate) fn is_version(&self, told: &WeakAttr, contract: Contract) -> bool {
        let is_only_ours = contract == Contract::Exclusive && !self.is_suspect;
        let may_be_renamed = is_only_ours && self.attr.file_type == FileType::Directory;
        let has_same_names = (told.size, told.mtime) == (self.attr.size, self.attr.mtime);
        *told == self.version() || may_be_renamed && has_same_names
    }

    /// A change was made here: answers to what was asked before it has ended come too late.
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

    /// Whether anything here has it open, writes it, or gives it a name.
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

fn spilled_bytes(handle: &PersistentHandle) -> usize {
    if handle.bytes.spilled() { handle.bytes.capacity() } else { 0 }
}
