//! The commit thread: writes the changes of a few hundredths of a second to the database in one transaction.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tombolo_core::lock;

use super::data_file::State as DataState;
use super::database::Database;
use super::ripening::{Ripe, Ripening, Unripe};
use super::{ObjectId, Shared, key};
use crate::object::Object;

/// Queue of changes for the commit thread.
#[derive(Default)]
pub(super) struct Queue {
    pending: Mutex<Pending>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct Pending {
    batch: Batch,
    ripening: Ripening,
    /// Objects of the batch that the thread is writing.
    objects_under_way: HashMap<ObjectId, Arc<Object>>,
    /// Objects whose rows the thread is removing.
    gone_under_way: HashSet<ObjectId>,
    /// Number of batches that the thread has begun to write, and number of those that it has ended.
    begun: u64,
    done: u64,
    /// `true` if a caller waits, so the batch is written immediately.
    is_urgent: bool,
    is_closing: bool,
}

/// Changes to write in one transaction, by object, or by object and generation.
#[derive(Default)]
struct Batch {
    objects: HashMap<ObjectId, Arc<Object>>,
    data: HashMap<(ObjectId, u64), Arc<DataState>>,
    gone_objects: HashMap<ObjectId, Vec<u8>>,
    gone_data: Vec<(ObjectId, u64)>,
    /// `true` to record that rows must not be removed from now on.
    keeps_rows: bool,
}

/// Minimum interval between log messages of one kind.
const QUIET: Duration = Duration::from_secs(60);

/// Number of queued objects beyond which listings wait, as queued objects stay in memory until written.
pub(super) const OBJECTS_MAX: usize = 8192;

impl Pending {
    fn is_behind(&self) -> bool {
        self.batch.objects.len() > OBJECTS_MAX
    }
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.objects.is_empty()
            && self.data.is_empty()
            && self.gone_objects.is_empty()
            && self.gone_data.is_empty()
            && !self.keeps_rows
    }
}

impl Queue {
    pub(super) fn keep(&self, object: &Arc<Object>) {
        self.change(|batch| batch.objects.insert(object.id, object.clone()));
    }

    /// Queues the record that rows must not be removed.
    pub(super) fn keep_rows(&self) {
        self.change(|batch| batch.keeps_rows = true);
    }

    pub(super) fn keep_data(&self, state: &Arc<DataState>) {
        self.change(|batch| batch.data.insert((state.id, state.generation), state.clone()));
    }

    /// Queues state to be written once it may be reused after a restart, unless that takes too long.
    pub(super) fn keep_when_ripe(&self, unripe: Unripe, delay: Duration) {
        let mut pending = lock(&self.pending);
        let is_first = pending.ripening.next_due().is_none();
        if pending.ripening.push(unripe, delay) && is_first {
            self.work.notify_one();
        }
    }

    pub(super) fn remove_object(&self, id: ObjectId, handle: Vec<u8>) {
        self.change(|batch| {
            batch.gone_objects.insert(id, handle);
            batch.objects.remove(&id)
        });
    }

    pub(super) fn remove_data(&self, id: ObjectId, generation: u64) {
        self.change(|batch| batch.gone_data.push((id, generation)));
    }

    pub(super) fn object(&self, id: ObjectId) -> Option<Arc<Object>> {
        let pending = lock(&self.pending);
        pending.batch.objects.get(&id).or_else(|| pending.objects_under_way.get(&id)).cloned()
    }

    /// Returns `true` if an object's removal is queued or in progress: its rows must not be used.
    pub(super) fn is_gone(&self, id: ObjectId) -> bool {
        let pending = lock(&self.pending);
        pending.batch.gone_objects.contains_key(&id) || pending.gone_under_way.contains(&id)
    }

    /// Waits until everything queued so far is written, or has failed to be.
    pub(super) fn flush(&self) {
        let mut pending = lock(&self.pending);
        let awaited = pending.begun + u64::from(!pending.batch.is_empty());
        while pending.done < awaited && !pending.is_closing {
            pending.is_urgent = true;
            self.work.notify_one();
            pending = self.done.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn is_behind(&self) -> bool {
        lock(&self.pending).is_behind()
    }

    /// Returns the number of objects queued or being written.
    pub(super) fn len(&self) -> usize {
        let pending = lock(&self.pending);
        pending.batch.objects.len() + pending.objects_under_way.len()
    }

    /// Waits until the queue is not full any more, or the store is closed.
    pub(super) fn catch_up(&self) {
        let mut pending = lock(&self.pending);
        while pending.is_behind() && !pending.is_closing {
            pending.is_urgent = true;
            self.work.notify_one();
            pending = self.done.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn close(&self) {
        lock(&self.pending).is_closing = true;
        self.work.notify_one();
    }

    /// Applies `change`, and drops what it removes outside of the lock: the last reference to a removed data
    /// file queues its removal.
    fn change<T>(&self, change: impl FnOnce(&mut Batch) -> T) {
        let mut pending = lock(&self.pending);
        let was_empty = pending.batch.is_empty();
        let _out = change(&mut pending.batch);
        drop(pending);
        if was_empty {
            self.work.notify_one();
        }
    }

    /// Returns the next batch once it is due. `None` at the end.
    fn next(&self, pause: Duration) -> Option<Batch> {
        self.ripen();
        let mut pending = lock(&self.pending);
        while pending.batch.is_empty() {
            let due = pending.ripening.next_due();
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                drop(pending);
                self.ripen();
                pending = lock(&self.pending);
                continue;
            }
            if pending.is_closing {
                return None;
            }
            let left = left.unwrap_or(Duration::from_secs(3600));
            pending = self.work.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let due = Instant::now() + pause;
        while !pending.is_closing && !pending.is_urgent {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            pending = self.work.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let batch = std::mem::take(&mut pending.batch);
        pending.objects_under_way.clone_from(&batch.objects);
        pending.gone_under_way = batch.gone_objects.keys().copied().collect();
        pending.begun += 1;
        pending.is_urgent = false;
        Some(batch)
    }

    /// Adds entries that are old enough to the batch. An object must not be locked while the queue is.
    fn ripen(&self) {
        let now = Instant::now();
        loop {
            let Some(unripe) = lock(&self.pending).ripening.pop_due(now) else { return };
            match unripe.ripen(now) {
                Ok(Some(Ripe::Names(object))) => self.keep(&object),
                Ok(Some(Ripe::Data(state))) => self.keep_data(&state),
                Ok(None) => {}
                Err((unripe, left)) => self.keep_when_ripe(unripe, left),
            }
        }
    }

    fn finished(&self) {
        let mut pending = lock(&self.pending);
        pending.gone_under_way.clear();
        let written = std::mem::take(&mut pending.objects_under_way);
        drop(pending);
        // The references are dropped before a flush is woken, as written objects must count as unused then.
        drop(written);
        let mut pending = lock(&self.pending);
        pending.done = pending.begun;
        drop(pending);
        self.done.notify_all();
    }
}

/// Starts the commit thread. `known` are the data files referenced by rows; the thread first removes all
/// other data files with generations below `first_new`.
pub(super) fn start(
    shared: &Arc<Shared>,
    writer: Database,
    known: HashSet<(ObjectId, u64)>,
    first_new: u64,
) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    thread::Builder::new().name("cache-index".into()).spawn(move || {
        remove_orphans(&shared, &known, first_new);
        drop(known);
        let mut complained = None;
        while let Some(batch) = shared.queue.next(shared.options.commit_pause) {
            if let Err(error) = write(&writer, &batch) {
                // All rows of an object are written next time, not only those changed since: a missing row
                // would mean that its names or blocks are not cached.
                batch.objects.values().for_each(|object| object.unwritten());
                batch.data.values().for_each(|state| state.unwritten());
                if batch.keeps_rows && !lock(&shared.queue.pending).is_closing {
                    shared.queue.keep_rows();
                }
                if complained.is_none_or(|then: Instant| then.elapsed() > QUIET) {
                    complained = Some(Instant::now());
                    tracing::warn!(%error, "cannot write the index of the cache: data fetched now will be fetched again");
                }
            }
            drop(batch);
            shared.weigh_index(&writer);
            shared.queue.finished();
        }
    })
}

fn write(database: &Database, batch: &Batch) -> rusqlite::Result<()> {
    database.together(|database| {
        if batch.keeps_rows {
            database.set_keeps_rows()?;
        }
        for (id, handle) in &batch.gone_objects {
            database.remove_object(*id)?;
            database.remove_handle(handle, *id)?;
        }
        for (id, object) in &batch.objects {
            let rows = object.rows();
            database.set_object(*id, &key(&object.handle), &rows.object.encoded())?;
            if rows.drops_names {
                database.remove_names(*id)?;
            }
            for (part, row) in &rows.names {
                database.set_names(*id, *part, row.as_deref())?;
            }
        }
        for ((id, generation), state) in batch.data.iter().filter(|(_, state)| state.lasts()) {
            let (row, chunks) = state.rows();
            // Data changed by local writes since the first check are left out: their checksums are not of
            // this version.
            if !state.lasts() {
                continue;
            }
            database.set_data(*id, &row)?;
            for (chunk, sums) in chunks {
                database.set_sums(*id, *generation, chunk, &sums)?;
            }
        }
        for (id, generation) in &batch.gone_data {
            database.remove_data(*id, *generation)?;
        }
        Ok(())
    })
}

/// Removes data files that earlier processes left without a row.
fn remove_orphans(shared: &Shared, known: &HashSet<(ObjectId, u64)>, first_new: u64) {
    let folders = std::fs::read_dir(shared.directory.path.join("objects")).into_iter().flatten().flatten();
    for file in folders.flat_map(|folder| std::fs::read_dir(folder.path())).flatten().flatten() {
        let name = file.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('.'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let Some((Some(id), Some(generation))) =
            parts.map(|(id, generation)| (number(id), number(generation)))
        else {
            continue;
        };
        if generation < first_new && !known.contains(&(ObjectId(id), generation)) {
            let _ = std::fs::remove_file(file.path());
            shared.queue.remove_data(ObjectId(id), generation);
        }
    }
}
