//! State shared by all sessions of a cache.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tombolo_core::fs::{Attr, Entry, NodeId, Watchers, WeakAttr};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_mem::Buffer;

use crate::clock::Clock;
use crate::counters::Counters;
use crate::data::Data;
use crate::files_ahead::FilesAhead;
use crate::images::Images;
use crate::index_bound::IndexBound;
use crate::lease::{LEASE_NAME, Lease};
use crate::line::Line;
use crate::names::Names;
use crate::object::{Object, State, Young};
use crate::objects::Objects;
use crate::options::Contract;
use crate::origin::{Origin, at_origin};
use crate::recorder::Recorder;
use crate::room::Room;
use crate::rules::Policy;
use crate::session::Session;
use crate::sharing::{Borrower, Middle};
use crate::store::rows::ObjectRow;
use crate::store::{ObjectId, Store};
use crate::twins::Twins;
use crate::unnamed::Unnamed;
use crate::walk::Walk;
use crate::written::is_unanswered;

/// The shared part of a cache.
pub(crate) struct Cache {
    pub origin: Arc<Origin>,
    pub objects: Objects,
    pub store: Arc<Store>,
    /// How files are cached.
    pub held_policy: Policy,
    /// The same while the lease that it takes is not held, and for files that others may change.
    pub unheld_policy: Policy,
    pub lease: Option<Arc<Lease>>,
    pub counters: Counters,
    /// For what may wait for the disk.
    pub lane: Lane,
    pub complaints: RateLimit,
    pub room: Room,
    pub clock: Clock,
    pub line: Line,
    pub walk: Walk,
    pub files_ahead: FilesAhead,
    pub images: Images,
    /// What is here under another name.
    pub twins: Twins,
    /// What another cache of this host is asked for before the origin is.
    pub borrower: OnceLock<Borrower>,
    /// A cache on the network that is asked for data, which are compared with what the origin says.
    pub middle: OnceLock<Middle>,
    /// Writes down what is read, if that is wanted.
    pub recorder: OnceLock<Recorder>,
    /// The origin is a server that has no compressed reading.
    pub packs_nothing: AtomicBool,
    /// The sessions that are to be told of changes.
    pub watchers: Watchers<Session>,
    /// Files that have lost a name here.
    pub unnamed: Unnamed,
    pub index_bound: IndexBound,
}

impl Cache {
    /// How files are cached now.
    pub(crate) fn policy(&self) -> &Policy {
        match self.is_unheld() {
            true => &self.unheld_policy,
            false => &self.held_policy,
        }
    }

    /// Whether there is a lease that is not held.
    pub(crate) fn is_unheld(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| !lease.is_held())
    }

    /// Whether a name is the lease file's, which is not shown.
    pub(crate) fn hides(&self, dir: ObjectId, name: &[u8]) -> bool {
        self.lease.is_some() && dir == ObjectId::ROOT && name == LEASE_NAME.as_bytes()
    }

    /// The object of an entry that the origin gave in answer to what was asked at `asked`.
    pub(crate) async fn met(&self, cx: &Ctx, entry: &Entry, asked: Instant) -> Result<Arc<Object>> {
        let handle = self.origin.handles()?.handle_of(cx, entry.node).resolve().await?;
        let contract = self.policy().default.contract;
        let object = self.objects.met(&self.store, &handle, (entry, asked, contract))?;
        self.keep(&object);
        Ok(object)
    }

    /// The object of this number.
    pub(crate) fn object(&self, id: ObjectId) -> Result<Arc<Object>> {
        self.objects.object(&self.store, id).ok_or(Error::Stale)
    }

    /// Gives an object its number again, of which nothing is known here any more.
    pub(crate) fn recall(&self, id: ObjectId, record: &[u8]) -> Result<()> {
        if self.object(id).is_ok() {
            return Ok(());
        }
        let row = ObjectRow::decoded(record).ok_or_else(|| Error::io("the record of a node is damaged"))?;
        let object = Object::restored(id, row, Names::default(), &self.objects.shared);
        object.state().is_dirty = true;
        self.keep(&self.objects.add(Arc::new(object)));
        Ok(())
    }

    /// Takes in names of a directory.
    pub(crate) fn learned(&self, dir: &Arc<Object>, learn: impl FnOnce(&mut State) -> bool) {
        // Asked before: it may look at the object's state.
        let is_alone = self.is_alone_at(dir);
        {
            let mut state = dir.state();
            if !learn(&mut state) {
                return;
            }
            state.is_dirty = true;
            if let Some(young_for) = self.clock.young_for(&state.version()) {
                let was_young = state.young.replace(Young::until(young_for)).is_some();
                if !was_young && is_alone {
                    self.store.keep_names_when_ripe(dir, young_for);
                }
            }
        }
        self.keep(dir);
    }

    /// Data of this version came. Another's change in the same tick of the origin's clock would not show:
    /// where all changes come by here there is none, but there may be one before another life.
    pub(crate) fn came_young(&self, object: &Arc<Object>, data: &Data, version: &WeakAttr) {
        let Some(young_for) = self.clock.young_for(version) else { return };
        let is_new = data.file.set_young();
        match self.is_alone_at(object) {
            true if is_new => self.store.keep_data_when_ripe(&data.file, young_for),
            true => {}
            // Of what is written here no other change is hidden.
            false if data.was_written() => {}
            false => object.state().young = Some(Young::until(young_for)),
        }
    }

    /// Whether all changes of an object come by here (*exclusive*).
    fn is_alone_at(&self, object: &Object) -> bool {
        self.options_of(object).contract == Contract::Exclusive
    }

    /// Has what has changed of an object written soon, unless it is gone.
    pub(crate) fn keep(&self, object: &Arc<Object>) {
        let is_wanted = {
            let state = object.state();
            state.is_dirty && !state.is_gone
        };
        if is_wanted {
            object.weigh();
            self.store.keep(object);
        }
    }

    /// The origin's node of an object, asked for by its handle if it has none. Then its attributes are fresh.
    pub(crate) async fn node(&self, cx: &Ctx, object: &Arc<Object>) -> Result<NodeId> {
        match object.node() {
            Some(node) => Ok(node),
            None => {
                self.resolve(cx, object).await?;
                object.node().ok_or(Error::Stale)
            }
        }
    }

    /// Asks the origin for an object by its handle.
    pub(crate) async fn resolve(&self, cx: &Ctx, object: &Arc<Object>) -> Result<Attr> {
        let asked = Instant::now();
        let told = self.origin.resolve(cx, &object.handle).await;
        self.resolved(object, asked, told)
    }

    /// Takes in what the origin has answered of an object that it was asked for by its handle at `asked`.
    pub(crate) fn resolved(&self, object: &Arc<Object>, asked: Instant, told: Result<Entry>) -> Result<Attr> {
        let entry = told.map_err(|error| self.failed(object, error))?;
        object.set_node(Some(entry.node));
        self.learn(object, &entry.attr, asked)
    }

    /// What the origin says of an object now.
    pub(crate) async fn fetch_attr(&self, cx: &Ctx, object: &Arc<Object>) -> Result<Attr> {
        let asked = Instant::now();
        let node = self.node(cx, object).await?;
        let attr = match self.origin.told(cx, node, asked) {
            Some(attr) => attr,
            None => {
                let told = self.origin.fs.getattr(&at_origin(cx), node, None).resolve().await;
                told.map_err(|error| self.failed(object, error))?
            }
        };
        self.learn(object, &attr, asked)
    }

    /// Takes in attributes of an object, and answers how they are shown here.
    pub(crate) fn learn(&self, object: &Arc<Object>, attr: &Attr, asked: Instant) -> Result<Attr> {
        if !object.learn(attr, asked, self.options_of(object).contract) {
            return Err(self.failed(object, Error::Stale));
        }
        self.keep(object);
        // What was asked for: what is known here may be older, if a change here came between. But for a time
        // of access that moves alone.
        let known = object.state().attr;
        let is_known =
            self.policy().default.contract.tells_changes() && Attr { atime: known.atime, ..*attr } == known;
        Ok(object.shown(if is_known { &known } else { attr }))
    }

    /// The origin was asked for something of an object in vain: a file that is gone is forgotten. Where there
    /// was no answer, nothing of what is known is in doubt.
    pub(crate) fn failed(&self, object: &Object, error: Error) -> Error {
        if !is_unanswered(&error) {
            object.doubt();
        }
        if matches!(error, Error::Stale) {
            self.forget(object);
        }
        error
    }

    /// Takes in the attributes of an object that came along with an answer, if any did.
    pub(crate) fn told(&self, cx: &Ctx, object: &Arc<Object>, asked: Instant) -> bool {
        let told = object.node().and_then(|node| self.origin.told(cx, node, asked));
        let is_told = told.is_some_and(|attr| object.learn(&attr, asked, self.options_of(object).contract));
        self.keep(object);
        is_told
    }

    /// The data of the present version of a file, but for parts that were written; what is here of another
    /// version is dropped.
    pub(crate) fn data(&self, object: &Object) -> Arc<Data> {
        let block_bytes = self.options_of(object).block_bytes;
        let mut state = object.state();
        let (version, is_in_parts) = (state.version(), state.is_written_in_parts());
        if let Some(data) = state.data.as_ref().filter(|data| is_in_parts || data.version() == version) {
            return data.clone();
        }
        let advice = state.advice.clone().filter(|advice| advice.is_of(&version));
        let block_bytes = block_bytes.or(advice.as_ref().map(|advice| advice.file.block_bytes));
        let file = self.store.data(object.id, &version, block_bytes);
        let data = Arc::new(Data::new(version, file, advice));
        if let Some(before) = state.data.replace(data.clone()) {
            before.file.doom();
        }
        data
    }

    /// Drops data while there are too many.
    pub(crate) fn make_room(&self) {
        while self.store.is_full() && self.drop_next() {}
    }

    /// Keeps data of a file. If the disk is full, others that were not used lately go first.
    pub(crate) fn write(&self, data: &Data, start: u64, mut bytes: Buffer) -> Result<()> {
        let left = self.store.kept_bytes().saturating_sub(bytes.len() as u64);
        let mut has_waited = false;
        loop {
            match data.file.write(start, &mut bytes) {
                Err(Error::NoSpace | Error::QuotaExceeded)
                    if self.store.kept_bytes() > left && self.drop_next() => {}
                // Those that went are on the disk for as long as the thread that writes the index has them.
                Err(Error::NoSpace | Error::QuotaExceeded) if !has_waited => {
                    self.store.flush();
                    has_waited = true;
                }
                written => return written,
            }
        }
    }

    /// Drops the data that are to go next, if any may.
    fn drop_next(&self) -> bool {
        let Some((id, generation)) = self.store.next_to_go() else { return false };
        if let Some(object) = self.objects.in_memory(id) {
            object.state().evicted(generation);
        }
        self.store.drop_data(id, generation);
        true
    }

    /// Says in the log, not too often, that data cannot be kept.
    pub(crate) fn complain(&self, error: &Error) {
        if let Some(suppressed) = self.complaints.allow() {
            tracing::warn!(%error, suppressed, "cannot store data in the cache: they are read from the origin each time");
        }
    }

    /// Has work done by a thread that may wait for the disk.
    pub(crate) fn in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.lane.run(cx, work)
    }
}
