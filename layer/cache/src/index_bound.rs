//! Bound of the index: unused listings are dropped, and unneeded rows removed.
//!
//! A clock hand passes over the rows in numerical order, round by round, until enough is removed. Recently
//! used objects are spared, for a shorter time in each round. A row stays while a cached name leads to it, a
//! session knows it, it is open or its data are lent. A client's handle of a file without a row still finds
//! the file. Below a layer that records numbers (write-back) rows are removed only at the start.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_core::fs::FileType;
use tombolo_host_runtime::{lock, task};

use crate::cache::Cache;
use crate::objects::node_of;
use crate::store::ObjectId;
use crate::store::rows::ObjectRow;

/// Progress of going through the index.
#[derive(Debug, Default)]
pub(crate) struct IndexBound {
    /// Locked while the index is gone through.
    hand: Mutex<Hand>,
    /// When all was gone through and too little could be removed.
    in_vain: Mutex<Option<Instant>>,
    is_running: AtomicBool,
    /// `true` if a layer above writes numbers down.
    is_recorded: AtomicBool,
}

#[derive(Debug, Default)]
struct Hand {
    /// The row that was looked at last.
    at: ObjectId,
    /// The round that removed enough the last time.
    round: usize,
}

/// Rows that are looked at before those that are to be removed are.
const ROWS: u32 = 256;

/// Time since the last use after which each round removes, in milliseconds. The first begins where the hand
/// is.
const SPARED_MS: [u64; 8] = [60_000, 60_000, 15_000, 4_000, 1_000, 250, 60, 0];

/// Pause after all was in use.
const PAUSE: Duration = Duration::from_secs(10);

impl IndexBound {
    /// Keeps all rows for as long as this process runs: a layer above writes numbers down.
    pub(crate) fn keep_rows(&self) {
        self.is_recorded.store(true, Ordering::Relaxed);
    }

    fn is_in_vain(&self) -> bool {
        lock(&self.in_vain).is_some_and(|then| then.elapsed() < PAUSE)
    }
}

impl Cache {
    /// Bounds a full index in the background, unless that is being done.
    pub(crate) fn bound_index_later(self: &Arc<Self>) {
        let is_wanted = self.store.is_index_full() && !self.index_bound.is_in_vain();
        if !is_wanted || self.index_bound.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let cache = self.clone();
        let bounding = self.in_pool(&self.origin.own_ctx(), move || {
            cache.bound_index();
            Ok(())
        });
        let cache = Arc::downgrade(self);
        task::spawn(async move {
            drop(bounding.resolve().await);
            if let Some(cache) = cache.upgrade() {
                cache.index_bound.is_running.store(false, Ordering::Release);
            }
        });
    }

    /// Gives up listings and removes rows until a full index has room again. Waits for the disk.
    pub(crate) fn bound_index(&self) {
        let mut hand = lock(&self.index_bound.hand);
        if !self.store.is_index_full() || self.index_bound.is_in_vain() {
            return;
        }
        self.store.flush();
        if !self.store.is_index_full() {
            return;
        }
        self.store.set_index_held(false);
        let first = hand.round.saturating_sub(1);
        for (round, spared) in SPARED_MS.into_iter().enumerate().skip(first) {
            hand.round = round;
            while !self.store.is_index_trimmed()
                && let Some((last, rows)) = self.store.rows_after(hand.at, ROWS)
            {
                hand.at = last;
                let (spared, mut listed) = (Duration::from_millis(spared), HashMap::new());
                rows.iter().for_each(|(id, row)| self.give_up(*id, row, spared, &mut listed));
                self.store.flush();
            }
            if self.store.is_index_trimmed() {
                break;
            }
            hand.at = ObjectId::default();
        }
        self.store.set_index_held(true);
        *lock(&self.index_bound.in_vain) = self.store.is_index_full().then(Instant::now);
    }

    /// Gives up the listing of a directory, or the row of an object without one, unless it is in use.
    /// `listed` remembers which directories have one.
    fn give_up(&self, id: ObjectId, row: &ObjectRow, spared: Duration, listed: &mut HashMap<ObjectId, bool>) {
        let mut lists = |dir| *listed.entry(dir).or_insert_with(|| self.lists(dir));
        let in_memory = self.objects.in_memory(id);
        if in_memory.is_some_and(|object| object.was_used_within(spared)) {
            return;
        }
        if row.attr.file_type == FileType::Directory && lists(id) {
            let is_given_up = self.give_up_listing(id);
            listed.insert(id, !is_given_up);
            return;
        }
        if row.parent.is_some_and(|parent| parent != id && lists(parent)) {
            return;
        }
        let is_wanted = || {
            self.index_bound.is_recorded.load(Ordering::Relaxed)
                || self.store.is_held(id)
                || self.unnamed.contains(id)
                || self.unnamed.is_known_to_a_session(node_of(id))
        };
        if self.objects.remove_unused(&self.store, (id, &row.handle), is_wanted) {
            self.store.drop_data_of(id);
        }
    }

    /// Returns `true` if any name of a directory is kept, or a listing is under way.
    fn lists(&self, dir: ObjectId) -> bool {
        self.store.keeps_names(dir)
            || self.objects.in_memory(dir).is_some_and(|dir| {
                let state = dir.state();
                state.names.is_busy() || state.growing.is_some() || state.names.has_any()
            })
    }

    /// Returns `true` unless something is under way in the directory.
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
