//! Bound of the index: unused listings are dropped, and unneeded rows removed, in the background.
//!
//! A pass begins when the index is nearly full. It moves a clock hand over the rows in the order of their
//! numbers, in several rounds, until enough is removed. Objects used within a time that shrinks from round to
//! round are spared. A row stays while names of its directory are cached, a session knows the object, the
//! object is open or its data are lent. A client's handle of a file without a row still finds the file, as it
//! contains the origin's handle. Under a layer that records numbers (write-back), rows are removed only at
//! the start. Once a client was given a handle that does not contain the origin's, no row is removed any
//! more. With rules for files (`--rule`), which need the listings, the hand does not run.
//!
//! Each step reads a few hundred rows, so that no look-up waits for long. A listing does not wait for space:
//! while the index is full, its names are not cached.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_core::fs::{FileType, PersistentHandle};
use tombolo_host_runtime::{lock, task};

use crate::cache::Cache;
use crate::objects::node_of;
use crate::store::ObjectId;
use crate::store::rows::ObjectRow;

/// Progress of the hand, and conditions of the background work.
#[derive(Debug, Default)]
pub(crate) struct IndexBound {
    hand: Mutex<Hand>,
    /// End of the pause that follows a pass in which too little could be removed.
    paused_until: Mutex<Option<Instant>>,
    /// `true` while a background task moves the hand.
    is_running: AtomicBool,
    /// `true` if a layer above (write-back) records numbers.
    is_recorded: AtomicBool,
}

/// Position of the clock hand, and the pass and round in progress.
#[derive(Debug, Default)]
struct Hand {
    /// The row processed last.
    at: ObjectId,
    /// Index in [`SPARED_MS`] of the round in progress, or of the first round of the next pass.
    round: usize,
    /// Start of the pass in progress.
    begun: Option<Instant>,
}

/// Rows per step.
const ROWS: u32 = 256;

/// Time since the last use within which objects are spared in each round, in milliseconds. The first round
/// begins where the hand stopped and so covers only a part of the rows; the second one, of equal time, all.
const SPARED_MS: [u64; 8] = [60_000, 60_000, 15_000, 4_000, 1_000, 250, 60, 0];

/// Pause after a pass that removed too little, in durations of the pass, which so takes a tenth of the time.
const PAUSE: u32 = 9;

impl IndexBound {
    /// Retains all rows until the process ends, for a layer above that records numbers.
    pub(crate) fn keep_rows(&self) {
        self.is_recorded.store(true, Ordering::Relaxed);
    }

    fn is_paused(&self) -> bool {
        lock(&self.paused_until).is_some_and(|until| Instant::now() < until)
    }
}

impl Cache {
    /// Bounds a nearly full index in the background, unless that is in progress.
    pub(crate) fn bound_index_later(self: &Arc<Self>) {
        let is_wanted =
            self.may_evict() && self.store.is_index_nearly_full() && !self.index_bound.is_paused();
        if !is_wanted || self.index_bound.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let weak = Arc::downgrade(self);
        task::spawn(async move {
            let mut goes_on = true;
            while goes_on && let Some(cache) = weak.upgrade() {
                let (cx, bounding) = (cache.origin.own_ctx(), cache.clone());
                let step = cache.in_pool(&cx, move || Ok(bounding.bound_index_step()));
                drop(cache);
                goes_on = matches!(step.resolve().await, Ok(true));
            }
            if let Some(cache) = weak.upgrade() {
                cache.index_bound.is_running.store(false, Ordering::Release);
            }
        });
    }

    /// Bounds a nearly full index at the start, before anything is in use. Blocks on the disk. Returns the
    /// number of steps.
    pub(crate) fn bound_index(&self) -> usize {
        // The first round drops the listings, and the second the rows that stayed because of the listings.
        let rounds = if self.store.keeps_rows() { 1 } else { 2 };
        lock(&self.index_bound.hand).round = SPARED_MS.len() - rounds;
        let steps = std::iter::repeat_with(|| self.may_evict() && self.bound_index_step());
        let count = steps.take_while(|goes_on| *goes_on).count();
        lock(&self.index_bound.hand).round = 0;
        count
    }

    /// Returns `true` unless there are rules for files: a rule applies to an object by its name in a listing.
    fn may_evict(&self) -> bool {
        self.held_policy.rules.is_empty()
    }

    /// Begins a pass if the index is nearly full, or processes the next rows of the pass in progress. Returns
    /// `false` if there is no pass, or it has ended.
    fn bound_index_step(&self) -> bool {
        let mut hand = lock(&self.index_bound.hand);
        let Some(begun) = hand.begun else {
            if self.store.is_index_nearly_full() && !self.index_bound.is_paused() {
                self.store.flush();
                hand.begun = self.store.is_index_nearly_full().then(Instant::now);
            }
            return hand.begun.is_some();
        };
        let spared = SPARED_MS.get(hand.round).copied().map(Duration::from_millis);
        if let Some(spared) = spared.filter(|_| !self.store.is_index_trimmed()) {
            match self.store.rows_after(hand.at, ROWS) {
                Some((last, rows)) => {
                    hand.at = last;
                    self.give_up_all(&rows, spared);
                }
                None => (hand.at, hand.round) = (ObjectId::default(), hand.round + 1),
            }
            return true;
        }
        hand.begun = None;
        hand.round = hand.round.min(SPARED_MS.len() - 1).saturating_sub(1);
        self.store.set_index_held();
        let pause_min = self.store.index_pause();
        if self.store.is_index_nearly_full() && !pause_min.is_zero() {
            let pause = pause_min.max(begun.elapsed() * PAUSE);
            *lock(&self.index_bound.paused_until) = Some(Instant::now() + pause);
        }
        false
    }

    fn give_up_all(&self, rows: &[(ObjectId, ObjectRow)], spared: Duration) {
        let mut listed = HashMap::new();
        let given_up = rows.iter().filter(|(id, row)| self.give_up(*id, row, spared, &mut listed)).count();
        if given_up > 0 {
            self.store.flush();
        }
    }

    /// Drops the listing of an object that is a directory with a listing; otherwise removes the object's row,
    /// unless its parent has a listing. Spares an object that is in use or was used within `spared`. `listed`
    /// caches for each directory whether it has a listing. Returns `true` if something was dropped.
    fn give_up(
        &self,
        id: ObjectId,
        row: &ObjectRow,
        spared: Duration,
        listed: &mut HashMap<ObjectId, bool>,
    ) -> bool {
        let mut lists = |dir| *listed.entry(dir).or_insert_with(|| self.lists(dir));
        let in_memory = self.objects.in_memory(id);
        if in_memory.is_some_and(|object| object.was_used_within(spared)) {
            return false;
        }
        if row.attr.file_type == FileType::Directory && lists(id) {
            let is_given_up = self.give_up_listing(id);
            listed.insert(id, !is_given_up);
            return is_given_up;
        }
        if row.parent.is_some_and(|parent| parent != id && lists(parent)) {
            return false;
        }
        self.remove_unwanted(id, &row.handle)
    }

    /// Removes the row and data of an object, unless it is in use, lent, unnamed or known to a session, or
    /// all rows must stay for handles or a layer above. Returns `true` if they were removed.
    pub(crate) fn remove_unwanted(&self, id: ObjectId, handle: &PersistentHandle) -> bool {
        let is_wanted = || {
            self.index_bound.is_recorded.load(Ordering::Relaxed)
                || self.store.keeps_rows()
                || self.store.is_held(id)
                || self.unnamed.contains(id)
                || self.unnamed.is_known_to_a_session(node_of(id))
        };
        let is_removed = self.objects.remove_unused(&self.store, (id, handle), is_wanted);
        if is_removed {
            self.store.drop_data_of(id);
        }
        is_removed
    }

    /// Returns `true` if any name of a directory is cached, or may be soon: a listing or a change is in
    /// progress.
    fn lists(&self, dir: ObjectId) -> bool {
        self.store.keeps_names(dir)
            || self.objects.in_memory(dir).is_some_and(|dir| {
                let state = dir.state();
                state.names.is_busy() || state.growing.is_some() || state.names.has_any()
            })
    }

    /// Drops the listing of a directory. Returns `false` if it is open or being listed or changed.
    fn give_up_listing(&self, id: ObjectId) -> bool {
        let Some(dir) = self.objects.restored(&self.store, id) else { return false };
        {
            let mut state = dir.state();
            if state.uses > 0 || state.growing.is_some() || state.names.is_busy() {
                return false;
            }
            state.names.drop_all();
            state.listed = None;
            state.is_dirty = true;
        }
        self.keep(&dir);
        true
    }
}

#[cfg(test)]
mod tests {
    use tombolo_back_memory::Memory;
    use tombolo_core::fs::{Device, Mode, Name, NewMode, NodeId, PermissionCheck, Volume};
    use tombolo_core::{Ctx, SessionId};
    use tombolo_host_runtime::thread_pool::ThreadPoolLimits;

    use super::*;
    use crate::store::{OriginIdentity, Store, StoreOptions};
    use crate::{Client, Export, Options};

    #[test]
    fn start_scans_rows_once_if_none_may_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
        let full = StoreOptions { capacity_bytes: 4096, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &identity, full).expect("a store");
        // Without threads nothing goes on in the background.
        let pool = ThreadPoolLimits { threads: 0, ..ThreadPoolLimits::default() };
        let options = Options { pool, ..Options::default() };
        let export = crate::over(&Memory::default(), store.clone(), options).expect("a cache");
        let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::BackEnd };
        let (fs, cx) = (export.attach(&client).expect("attach"), Ctx::root(SessionId(1)));
        for n in 0..1000 {
            let (name, mode) = (n.to_string(), NewMode::settled(Mode::new(0o644)));
            let name = Name::new(name.as_bytes()).expect("a name");
            let made = fs.mknod(&cx, NodeId::ROOT, name, FileType::Regular, mode, Device::default());
            made.wait().expect("made");
        }
        store.keep_rows();
        let steps = store.info().objects.div_ceil(ROWS.into()) as usize;
        *lock(&export.cache.index_bound.paused_until) = None;
        // One step begins the pass, and one finds the end of the table.
        assert_eq!((export.cache.bound_index(), store.info().objects), (steps + 2, 1001));
    }
}
