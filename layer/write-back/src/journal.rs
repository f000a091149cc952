//! The journal: differences from the origin, as rows of a database, committed in groups.
//!
//! Each change passes all its rows in one call, and calls are committed in order. After a crash the rows are
//! therefore the state right after some change: no change is partial, and none is present without all earlier
//! ones. Data that rows refer to are on the disk before the rows, or in the journal itself.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tombolo_core::fs::{FileSystem, NodeId};
use tombolo_core::{Ctx, Error, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::{lock, private};

use crate::data_file::{DataFile, DataFiles};
use crate::database::{self, JournalError, Kept};
use crate::extents::Delta;
use crate::shared::SESSION;
use crate::sums::{self, Blocks};
use crate::unproven::Unproven;

/// Rows to write for one or more changes.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Rows of nodes by number, and of names by directory and name; `None` to remove the row.
    pub nodes: HashMap<u64, Option<Vec<u8>>>,
    pub names: HashMap<(u64, Vec<u8>), Option<Vec<u8>>>,
    /// Changes of the extents of data files, by generation.
    pub extents: Vec<(u64, Delta)>,
    /// Data stored in the journal itself: generation, offset, bytes. Above a limit the data are not stored in
    /// the journal, and their files are synced instead.
    pub pieces: Vec<(u64, u64, Vec<u8>)>,
    /// Total size of the data of all pieces, including those dropped because of the limit.
    pub pieces_bytes: u64,
    /// Written blocks, whose checksums are stored with the rows.
    pub blocks: Blocks,
    /// Files to sync before the rows are written.
    pub files: HashMap<u64, Arc<DataFile>>,
    /// Nodes of the cache that rows refer to.
    pub numbers: HashSet<NodeId>,
    /// Records that identify the nodes in `numbers`, fetched when the group is written.
    pub records: Vec<(NodeId, Vec<u8>)>,
    /// Files to remove once no row refers to them.
    pub gone: Vec<Arc<DataFile>>,
    /// Number of the latest change in the group.
    pub change: u64,
    /// Number of the latest change that the origin has; `None` to leave the recorded one.
    pub at_origin: Option<u64>,
}

/// Promise of a group's outcome.
pub(crate) type Ticket = Arc<Promise<Outcome>>;

/// Outcome of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// On the disk.
    Stable,
    /// In memory, as the disk is full; retried.
    Full,
    /// In memory for another reason; retried.
    Failed,
}

impl Outcome {
    fn of(error: &Error) -> Self {
        match error {
            Error::NoSpace | Error::QuotaExceeded => Self::Full,
            _ => Self::Failed,
        }
    }

    fn result(self) -> Result<()> {
        match self {
            Self::Stable => Ok(()),
            Self::Full => Err(Error::NoSpace),
            Self::Failed => Err(Error::io("cannot write the write-back journal; see the log")),
        }
    }
}

/// The journal: the group being collected, and a thread that writes the groups.
pub(crate) struct Journal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    below: Arc<dyn FileSystem>,
    files: Arc<DataFiles>,
    /// Connection for callers; the writing thread has its own.
    ids: Mutex<Connection>,
    pending: Mutex<Pending>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    batch: Batch,
    ticket: Ticket,
    /// Ticket of the group being written.
    under_way: Option<Ticket>,
    is_empty: bool,
    /// `true` if a caller waits, so that the group is written immediately.
    is_urgent: bool,
    is_closing: bool,
    /// Outcome of the last attempt to write a group, if it has failed.
    trouble: Option<Outcome>,
    /// Latest change on the disk.
    stable: u64,
}

/// Minimum delay of a commit without waiters.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Maximum delay of a commit without waiters.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Delay of a commit without waiters, in multiples of the duration of the previous commit: between the limits
/// above, a slow disk spends at most about a tenth of its time in commits.
const PAUSE_PER_WRITE: u32 = 10;

/// Delay before a failed group is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Maximum size of the data in the journal, in bytes; beyond it, data are made stable in their files.
const PIECES_BYTES_MAX: u64 = 8 << 20;

/// Number of files above which the whole file system is synced instead of each file.
const SYNC_ALONE_MAX: usize = 8;

/// Count of numbers, for nodes and data files, allocated at a time.
const IDS: u64 = 1 << 16;

impl Journal {
    /// Opens the journal of changes of `below` in `dir`, creating it if it is missing, and moves data in it
    /// to their files.
    pub(crate) fn open(
        below: Arc<dyn FileSystem>,
        dir: &Path,
    ) -> std::result::Result<(Self, Kept, Arc<DataFiles>), JournalError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::Io { path, source }
        };
        let data = dir.join("data");
        for made in [dir, &data] {
            private::directory(made).map_err(io(made))?;
        }
        // The names of new directories are synced too, as not all file systems do that with their contents.
        for dir in [dir, &dir.join("..")] {
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(io(dir))?;
        }
        let path = dir.join(database::DATABASE);
        private::database(&path).map_err(io(&path))?;
        let failed = |source| JournalError::Database { path: path.clone(), source };
        let files = DataFiles::new(data);
        let (writer, ids) =
            (database::connect(&path).map_err(failed)?, database::connect(&path).map_err(failed)?);
        let mut kept = database::read(&writer).map_err(failed)?;
        if kept.tag == 0 {
            kept.tag = database::new_tag(&writer).map_err(failed)?;
        }
        database::replay(&writer, &files, &path)?;
        kept.torn = sums::torn(&writer, &files, |generation| kept.extents.contains_key(&generation))
            .map_err(failed)?;
        files.remove_others(|generation| kept.extents.contains_key(&generation));
        let pending = Pending { is_empty: true, stable: kept.change, ..Pending::default() };
        let (ids, pending) = (Mutex::new(ids), Mutex::new(pending));
        let shared = Arc::new(Shared { below, files: files.clone(), ids, pending, work: Condvar::new() });
        let writing = shared.clone();
        let thread = thread::Builder::new().name("write-back-log".into()).spawn(move || writing.run(&writer));
        let thread = thread.map_err(io(dir))?;
        Ok((Self { shared, thread: Some(thread) }, kept, files))
    }

    /// Adds the rows of one change. Returns the ticket of their group.
    pub(crate) fn add(&self, batch: Batch) -> Ticket {
        let mut pending = lock(&self.shared.pending);
        let was_empty = std::mem::replace(&mut pending.is_empty, false);
        pending.batch.absorb(batch);
        let ticket = pending.ticket.clone();
        drop(pending);
        if was_empty {
            self.shared.work.notify_one();
        }
        ticket
    }

    /// Makes the thread write a group at once, and waits until the group is on the disk or the attempt has
    /// failed.
    pub(crate) async fn stable(&self, ticket: Ticket) -> Result<()> {
        self.hurry();
        ticket.kept().await.result()
    }

    /// Fails while the journal cannot be written, so that new changes are refused.
    pub(crate) fn check(&self) -> Result<()> {
        lock(&self.shared.pending).trouble.map_or(Ok(()), Outcome::result)
    }

    /// Waits until everything added so far is on the disk. Fails if it cannot be written now.
    pub(crate) async fn all_stable(&self) -> Result<()> {
        let ticket = {
            let pending = lock(&self.shared.pending);
            if let Some(trouble) = pending.trouble {
                return trouble.result();
            }
            match pending.is_empty {
                false => Some(pending.ticket.clone()),
                true => pending.under_way.clone(),
            }
        };
        match ticket {
            Some(ticket) => self.stable(ticket).await,
            None => Ok(()),
        }
    }

    pub(crate) fn stable_change(&self) -> u64 {
        lock(&self.shared.pending).stable
    }

    /// Allocates [`IDS`] numbers from `next` on, for nodes and data files, durably.
    pub(crate) fn reserve_ids(&self, next: u64) -> Result<Range<u64>> {
        let end = next + IDS;
        let set = "insert or replace into numbers values ('next_id', ?)";
        lock(&self.shared.ids).execute(set, [end.cast_signed()]).map_err(Error::io)?;
        Ok(next..end)
    }

    /// Removes the records of these nodes of the cache, to which no row may refer any more.
    pub(crate) fn forget_records(&self, ids: &[u64]) -> Result<()> {
        let database = lock(&self.shared.ids);
        let transaction = database.unchecked_transaction().map_err(Error::io)?;
        for id in ids {
            let removed = database.execute("delete from records where id = ?", [id.cast_signed()]);
            removed.map_err(Error::io)?;
        }
        transaction.commit().map_err(Error::io)
    }

    fn hurry(&self) {
        lock(&self.shared.pending).is_urgent = true;
        self.shared.work.notify_one();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        lock(&self.shared.pending).is_closing = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Batch {
    /// Merges a later group into this one.
    pub(crate) fn absorb(&mut self, later: Self) {
        self.nodes.extend(later.nodes);
        self.names.extend(later.names);
        self.extents.extend(later.extents);
        self.pieces_bytes += later.pieces_bytes;
        match self.pieces_bytes > PIECES_BYTES_MAX {
            true => self.pieces.clear(),
            false => self.pieces.extend(later.pieces),
        }
        self.blocks.absorb(later.blocks);
        self.files.extend(later.files);
        self.numbers.extend(later.numbers);
        self.gone.extend(later.gone);
        self.change = self.change.max(later.change);
        self.at_origin = later.at_origin.or(self.at_origin);
    }
}

impl Shared {
    fn run(&self, database: &Connection) {
        let (mut unproven, mut recorded) = (Unproven::default(), HashSet::new());
        let mut pause = PAUSE_MIN;
        while let Some((mut batch, ticket)) = self.next(pause) {
            let begun = Instant::now();
            let outcome = loop {
                batch.records = self.records(&batch, &recorded);
                let error = match self.write(database, &batch, &mut unproven) {
                    Ok(()) => {
                        recorded.extend(batch.records.iter().map(|(node, _)| *node));
                        break Outcome::Stable;
                    }
                    Err(error) => error,
                };
                tracing::error!(%error, "cannot write the write-back journal: changes stay in memory, and new ones are refused");
                // Waiters are notified; the changes stay in memory and are retried.
                let outcome = Outcome::of(&error);
                let (later, others) = {
                    let mut pending = lock(&self.pending);
                    pending.trouble = Some(outcome);
                    pending.is_empty = true;
                    (std::mem::take(&mut pending.batch), std::mem::take(&mut pending.ticket))
                };
                unproven.again(&mut batch, later);
                ticket.keep(outcome);
                others.keep(outcome);
                if self.is_closing_within(RETRY) {
                    break outcome;
                }
            };
            pause = (begun.elapsed() * PAUSE_PER_WRITE).clamp(PAUSE_MIN, PAUSE_MAX);
            unproven.sums.clear();
            let change = batch.change;
            // The batch is dropped outside of the lock, because the drop may remove files.
            drop(batch);
            {
                let mut pending = lock(&self.pending);
                pending.under_way = None;
                if outcome == Outcome::Stable {
                    pending.trouble = None;
                    pending.stable = pending.stable.max(change);
                }
            }
            ticket.keep(outcome);
        }
    }

    /// Waits up to `time` for the closing of the journal to begin; returns `true` if it has begun.
    fn is_closing_within(&self, time: Duration) -> bool {
        let waited = self.work.wait_timeout_while(lock(&self.pending), time, |pending| !pending.is_closing);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.is_closing
    }

    /// Returns the next group once it is due; `None` when the journal is closed and all groups were returned.
    fn next(&self, pause: Duration) -> Option<(Batch, Ticket)> {
        let mut pending = lock(&self.pending);
        while pending.is_empty {
            if pending.is_closing {
                return None;
            }
            pending.is_urgent = false;
            pending = self.work.wait(pending).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if !pending.is_urgent && !pending.is_closing {
            let due = |pending: &mut Pending| !pending.is_urgent && !pending.is_closing;
            let waited = self.work.wait_timeout_while(pending, pause, due);
            pending = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        pending.is_empty = true;
        pending.is_urgent = false;
        let ticket = std::mem::take(&mut pending.ticket);
        pending.under_way = Some(ticket.clone());
        Some((std::mem::take(&mut pending.batch), ticket))
    }

    /// Returns the records of the cache's nodes in this batch, except of those in `recorded`. By its record,
    /// the cache finds a node again even if it has lost the number. Nodes whose record cannot be fetched,
    /// such as deleted ones, are omitted.
    fn records(&self, batch: &Batch, recorded: &HashSet<NodeId>) -> Vec<(NodeId, Vec<u8>)> {
        let Some(handles) = self.below.persistent_handles() else { return Vec::new() };
        let new = batch.numbers.difference(recorded);
        let record = |node| handles.record(&Ctx::root(SESSION), node).wait().ok();
        new.filter_map(|node| Some((*node, record(*node)?))).collect()
    }

    fn write(&self, database: &Connection, batch: &Batch, unproven: &mut Unproven) -> Result<()> {
        if unproven.is_unwritten {
            batch.blocks.write_again()?;
        }
        let added = batch.pieces_bytes;
        // The checksums are taken before the flush: later overwrites belong to a later group.
        let sums = batch.blocks.sums(&mut unproven.sums)?;
        let is_emptied = unproven.pieces_bytes + added > PIECES_BYTES_MAX;
        unproven.is_unwritten = true;
        self.sync(batch, is_emptied)?;
        unproven.is_unwritten = false;
        database::commit(database, batch, &sums, is_emptied).map_err(database::not_written)?;
        unproven.committed(batch, added, is_emptied);
        Ok(())
    }

    fn sync(&self, batch: &Batch, is_emptied: bool) -> Result<()> {
        if is_emptied || batch.files.len() > SYNC_ALONE_MAX {
            let dir = File::open(self.files.dir()).map_err(Error::io)?;
            return Ok(tombolo_sys::sync::file_system(dir.as_fd())?);
        }
        batch.files.values().try_for_each(DataFile::sync)?;
        if !batch.files.is_empty() {
            // Syncing the directory makes the names of new files stable.
            File::open(self.files.dir()).and_then(|dir| dir.sync_all()).map_err(Error::io)?;
        }
        Ok(())
    }
}
