//! Openings of a session, each with an opening at the origin once one is needed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{File, OpenFlags, OpenId};
use tombolo_core::{Budget, Error, Permit, Resource, Result, lock};
use tombolo_host_runtime::promise::Promise;

use crate::data::Data;
use crate::object::Object;
use crate::objects::node_of;
use crate::origin::OriginFile;
use crate::read_ahead::{Ahead, Order, ReadAhead};
use crate::store::ObjectId;

/// An opening of an object by a client.
pub(crate) struct Opening {
    pub object: Arc<Object>,
    pub flags: OpenFlags,
    /// The origin's opening, once one was needed, for example at the open or by the first fetch.
    origin: Mutex<Option<Arc<OriginFile>>>,
    ahead: Mutex<ReadAhead>,
    /// Promise of the search for a sidecar, resolved at its end.
    advised: Mutex<Option<Arc<Promise<()>>>>,
    _permit: Permit,
}

/// Openings of a session by their numbers.
pub(crate) struct Openings {
    next: AtomicU64,
    counts: Arc<Budget>,
    by_id: Mutex<HashMap<OpenId, Arc<Opening>>>,
}

impl Opening {
    pub(crate) fn origin(&self) -> Option<Arc<OriginFile>> {
        lock(&self.origin).clone()
    }

    /// Sets the origin's opening, unless there is one, and returns the current one.
    pub(crate) fn set_origin(&self, file: Arc<OriginFile>) -> Arc<OriginFile> {
        lock(&self.origin).get_or_insert(file).clone()
    }

    /// Returns the promise of the search for a sidecar, and `true` if the caller is the first, which must
    /// search.
    pub(crate) fn advised(&self) -> (Arc<Promise<()>>, bool) {
        let mut advised = lock(&self.advised);
        let is_first = advised.is_none();
        (advised.get_or_insert_default().clone(), is_first)
    }

    /// Records a read of `range`, and returns the ranges to fetch ahead of it.
    pub(crate) fn reads(&self, range: &Range<u64>, data: &Data, bytes_max: u64) -> Ahead {
        let mut ahead = lock(&self.ahead);
        // Accesses to an image, which has a sidecar, cluster without being sequential.
        let order = if data.advice().is_some() { Order::Strict } else { Order::Loose };
        ahead.reads(range, order, bytes_max);
        ahead.of(range, data.version().size)
    }

    /// Returns the ranges to fetch ahead of a recorded read.
    pub(crate) fn ahead(&self, range: &Range<u64>, file_end: u64) -> Ahead {
        lock(&self.ahead).of(range, file_end)
    }
}

impl Openings {
    pub(crate) fn new(counts: Arc<Budget>) -> Self {
        Self { next: AtomicU64::new(1), counts, by_id: Mutex::default() }
    }

    pub(crate) fn permit(&self) -> Result<Permit> {
        self.counts.take(Resource::Opens, 1).ok_or(Error::TooManyOpen)
    }

    pub(crate) fn add(
        &self,
        permit: Permit,
        object: &Arc<Object>,
        flags: OpenFlags,
        origin: Option<Arc<OriginFile>>,
    ) -> OpenId {
        let (object_of, origin) = (object.clone(), Mutex::new(origin));
        let (ahead, advised) = (Mutex::default(), Mutex::default());
        let opening = Opening { object: object_of, flags, origin, ahead, advised, _permit: permit };
        {
            let mut state = object.state();
            state.uses += 1;
            state.writers += usize::from(is_writing(flags));
        }
        let id = OpenId(self.next.fetch_add(1, Ordering::Relaxed));
        lock(&self.by_id).insert(id, Arc::new(opening));
        id
    }

    pub(crate) fn of(&self, file: File) -> Result<Arc<Opening>> {
        let opening = lock(&self.by_id).get(&file.open).cloned();
        opening.filter(|opening| node_of(opening.object.id) == file.node).ok_or(Error::BadOpen)
    }

    /// Returns an opening; fails with `BadOpen` if there is none, or it lacks a flag of `purpose`.
    pub(crate) fn made_for(&self, file: File, purpose: OpenFlags) -> Result<Arc<Opening>> {
        self.of(file).and_then(|opening| {
            if opening.flags.contains(purpose) { Ok(opening) } else { Err(Error::BadOpen) }
        })
    }

    /// Closes an opening, and returns the number of its object; `None` if there is no such opening.
    pub(crate) fn end(&self, file: File) -> Option<ObjectId> {
        let opening = self.of(file).ok()?;
        lock(&self.by_id).remove(&file.open);
        Self::ended(&opening);
        Some(opening.object.id)
    }

    pub(crate) fn end_all(&self) {
        let all = std::mem::take(&mut *lock(&self.by_id));
        all.values().for_each(|opening| Self::ended(opening));
    }

    fn ended(opening: &Opening) {
        let mut state = opening.object.state();
        state.uses -= 1;
        if is_writing(opening.flags) {
            state.end_writing();
        }
    }
}

pub(crate) fn is_writing(flags: OpenFlags) -> bool {
    flags.intersects(OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::TRUNCATE)
}
