//! [`Cache`], the state that all sessions share, and its basic operations: objects are found, queried at the
//! origin and queued for the index, and data are stored and evicted.

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
use crate::dedup::DedupIndex;
use crate::files_ahead::FilesAhead;
use crate::images::Images;
use crate::index_bound::IndexBound;
use crate::lease::{LEASE_NAME, Lease};
use crate::line::Line;
use crate::names::Names;
use crate::object::{Object, Recency, State};
use crate::objects::Objects;
use crate::options::Contract;
use crate::origin::{LookUp, Origin, at_origin};
use crate::recorder::Recorder;
use crate::room::Room;
use crate::rules::AppliedPolicy;
use crate::session::Session;
use crate::sharing::{Borrower, Middle};
use crate::store::rows::ObjectRow;
use crate::store::{ObjectId, Store};
use crate::unnamed::Unnamed;
use crate::walk::Walk;
use crate::written::is_unanswered;

/// A cache: its origin, objects and store, and the state of prefetching and sharing.
pub(crate) struct Cache {
    pub origin: Arc<Origin>,
    pub objects: Objects,
    pub store: Arc<Store>,
    /// Options of files while the lease is held, or if there is no lease file.
    pub held_policy: AppliedPolicy,
    /// Options while the lease is not held; and of a file with an unanswered write, which the origin may
    /// still perform at any time, like a write of another client.
    pub unheld_policy: AppliedPolicy,
    pub lease: Option<Arc<Lease>>,
    pub counters: Arc<Counters>,
    /// Threads for blocking disk I/O.
    pub lane: Lane,
    pub complaints: RateLimit,
    pub room: Room,
    pub clock: Clock,
    pub line: Line,
    pub walk: Walk,
    pub files_ahead: FilesAhead,
    pub images: Images,
    /// Cached blocks by digest, copied instead of fetched.
    pub dedup: DedupIndex,
    /// Another cache of this host, queried before the origin.
    pub borrower: OnceLock<Borrower>,
    /// A site cache, whose data are verified by the origin's digests.
    pub middle: OnceLock<Middle>,
    /// Recorder of first reads, once one was requested.
    pub recorder: OnceLock<Recorder>,
    /// `true` once the origin was found to be a server without compressed reads.
    pub packs_nothing: AtomicBool,
    /// Sessions to be notified of changes.
    pub watchers: Watchers<Session>,
    /// Files that have lost a name through this cache.
    pub unnamed: Unnamed,
    pub index_bound: IndexBound,
}

impl Cache {
    /// Returns the options in effect now: those under the lease, or those without it.
    pub(crate) fn policy(&self) -> &AppliedPolicy {
        match self.is_unheld() {
            true => &self.unheld_policy,
            false => &self.held_policy,
        }
    }

    /// Returns `true` if the cache uses a lease file but does not hold the lease.
    pub(crate) fn is_unheld(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| !lease.is_held())
    }

    /// Returns `true` if a name is the lease file's, which is hidden from clients.
    pub(crate) fn hides(&self, dir: ObjectId, name: &[u8]) -> bool {
        self.lease.is_some() && dir == ObjectId::ROOT && name == LEASE_NAME.as_bytes()
    }

    /// Returns the object of an entry in a reply to a request made at `asked`. The object takes over the
    /// entry's look-up at the origin; on a failure the look-up is released.
    pub(crate) async fn met(&self, cx: &Ctx, entry: &Entry, asked: Instant) -> Result<Arc<Object>> {
        let mut look_up = LookUp { origin: &self.origin, node: entry.node, is_taken: false };
        let handle = self.origin.handles()?.handle_of(cx, entry.node).resolve().await?;
        let contract = self.policy().default.contract;
        let object = self.objects.met(&self.store, &handle, (entry, asked, contract))?;
        look_up.is_taken = true;
        self.keep(&object);
        Ok(object)
    }

    /// Returns the object of this number; fails with `Stale` if there is none.
    pub(crate) fn object(&self, id: ObjectId) -> Result<Arc<Object>> {
        self.objects.object(&self.store, id).ok_or(Error::Stale)
    }

    /// Restores an object that is not cached any more, under its number, from the record that a layer above
    /// (write-back) has stored. Does nothing if the object is cached.
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

    /// Stores names of a directory by `learn`, which returns `false` if it has changed nothing. Names of a
    /// version too recent to show another change are not written to the index yet.
    pub(crate) fn learned(&self, dir: &Arc<Object>, learn: impl FnOnce(&mut State) -> bool) {
        // `is_alone_at` locks the object's state, so it is called before `dir.state()`.
        let is_alone = self.is_alone_at(dir);
        {
            let mut state = dir.state();
            if !learn(&mut state) {
                return;
            }
            state.is_dirty = true;
            if let Some(recent_for) = self.clock.recent_for(&state.version()) {
                let was_recent = state.recency.replace(Recency::until(recent_for)).is_some();
                if !was_recent && is_alone {
                    self.store.keep_names_when_ripe(dir, recent_for);
                }
            }
        }
        self.keep(dir);
    }

    /// Marks data of this version as recent if another client's change in the same tick of the origin's clock
    /// would not show in the file's times. Under *exclusive* no other client makes changes while this process
    /// runs, but one may before the next process starts: the data are recorded for that process later.
    pub(crate) fn mark_recent(&self, object: &Arc<Object>, data: &Data, version: &WeakAttr) {
        let Some(recent_for) = self.clock.recent_for(version) else { return };
        let is_new = data.file.set_recent();
        match self.is_alone_at(object) {
            true if is_new => self.store.keep_data_when_ripe(&data.file, recent_for),
            true => {}
            // The version is recent because of a write through this cache, not of another client's change.
            false if data.was_written() => {}
            false => object.state().recency = Some(Recency::until(recent_for)),
        }
    }

    /// Returns `true` if all changes of an object are made through this cache (*exclusive*).
    fn is_alone_at(&self, object: &Object) -> bool {
        self.options_of(object).contract == Contract::Exclusive
    }

    /// Queues the state of an object to be written to the index if it has changed and the object is not gone.
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

    /// Returns the origin's node of an object. If it has none, the origin is queried by the handle, which
    /// also brings current attributes.
    pub(crate) async fn node(&self, cx: &Ctx, object: &Arc<Object>) -> Result<NodeId> {
        match object.node() {
            Some(node) => Ok(node),
            None => {
                self.resolve(cx, object).await?;
                object.node().ok_or(Error::Stale)
            }
        }
    }

    /// Queries the origin for an object by its handle, and stores node and attributes.
    pub(crate) async fn resolve(&self, cx: &Ctx, object: &Arc<Object>) -> Result<Attr> {
        let asked = Instant::now();
        let told = self.origin.resolve(cx, &object.handle).await;
        self.resolved(object, asked, told)
    }

    /// Stores the origin's answer to a query of an object by its handle at `asked`.
    pub(crate) fn resolved(&self, object: &Arc<Object>, asked: Instant, told: Result<Entry>) -> Result<Attr> {
        let entry = told.map_err(|error| self.failed(object, error))?;
        object.set_node(Some(entry.node));
        self.learn(object, &entry.attr, asked)
    }

    /// Fetches an object's present attributes, unless its resolution has just brought them, and stores them.
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

    /// Stores attributes of an object, and returns them as shown to clients. Fails with `Stale` if they
    /// belong to another file.
    pub(crate) fn learn(&self, object: &Arc<Object>, attr: &Attr, asked: Instant) -> Result<Attr> {
        if !object.learn(attr, asked, self.options_of(object).contract) {
            return Err(self.failed(object, Error::Stale));
        }
        self.keep(object);
        // The received attributes are returned, as the cached ones may be older than a local change. If only
        // the time of access differs, the cached ones are: sessions are not notified of that difference.
        let known = object.state().attr;
        let is_known =
            self.policy().default.contract.tells_changes() && Attr { atime: known.atime, ..*attr } == known;
        Ok(object.shown(if is_known { &known } else { attr }))
    }

    /// Records the failure of a request for an object, and returns `error`. If the origin has answered, the
    /// attributes must be revalidated, and an object that the origin lacks is dropped. Without an answer
    /// ([`is_unanswered`]) cached state stays valid.
    pub(crate) fn failed(&self, object: &Object, error: Error) -> Error {
        if !is_unanswered(&error) {
            object.doubt();
        }
        if matches!(error, Error::Stale) {
            self.forget(object);
        }
        error
    }

    /// Stores the attributes of an object that accompanied the answer to a request made at `asked`, as
    /// [`Object::learn`] does. Returns `true` if there are any and they belong to the object.
    pub(crate) fn told(&self, cx: &Ctx, object: &Arc<Object>, asked: Instant) -> bool {
        let told = object.node().and_then(|node| self.origin.told(cx, node, asked));
        let is_told = told.is_some_and(|attr| object.learn(&attr, asked, self.options_of(object).contract));
        self.keep(object);
        is_told
    }

    /// Returns the data of a file: of its present version, or, while the file is written in parts, of the
    /// version before the first write. Drops cached data of any other version.
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

    /// Evicts data while the cache exceeds its capacity and any may be evicted.
    pub(crate) fn make_room(&self) {
        while self.store.is_full() && self.drop_next() {}
    }

    /// Stores data of a file. While the disk is full, evicts data, at most as many bytes as are to be stored.
    pub(crate) fn write(&self, data: &Data, start: u64, mut bytes: Buffer) -> Result<()> {
        let left = self.store.kept_bytes().saturating_sub(bytes.len() as u64);
        let mut has_waited = false;
        loop {
            match data.file.write(start, &mut bytes) {
                Err(Error::NoSpace | Error::QuotaExceeded)
                    if self.store.kept_bytes() > left && self.drop_next() => {}
                // Evicted files may occupy the disk until the commit thread releases them.
                Err(Error::NoSpace | Error::QuotaExceeded) if !has_waited => {
                    self.store.flush();
                    has_waited = true;
                }
                written => return written,
            }
        }
    }

    /// Drops the data that are next to be evicted. Returns `false` if none may be.
    fn drop_next(&self) -> bool {
        let Some((id, generation)) = self.store.next_to_go() else { return false };
        if let Some(object) = self.objects.in_memory(id) {
            object.state().evicted(generation);
        }
        self.store.drop_data(id, generation);
        true
    }

    /// Logs, at a limited rate, that data cannot be stored.
    pub(crate) fn complain(&self, error: &Error) {
        if let Some(suppressed) = self.complaints.allow() {
            tracing::warn!(%error, suppressed, "cannot store data in the cache: they are read from the origin each time");
        }
    }

    /// Runs work on a thread that may block on the disk.
    pub(crate) fn in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.lane.run(cx, work)
    }
}
