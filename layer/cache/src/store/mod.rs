//! The on-disk store of a cache: a database of objects, and a sparse file for the data of each file.
//!
//! The store is a copy of the origin, so anything may be lost but nothing may be wrong: each block, and each
//! row except those of handles, has a checksum. One thread writes the changes of a few hundredths of a second
//! in one transaction, without syncing it to the disk. Only reservations of object numbers are synced, so
//! that no number is ever given to two objects. A data file's *generation* is such a number too.
//!
//! Reading order: `directory` (ownership), `database` and `rows` (objects), `data_file` (data), `commit` (the
//! writing thread), `ripening`, `eviction`, `index_size`, `list`.

mod access;
mod commit;
mod data_file;
mod database;
mod directory;
mod eviction;
mod index_size;
mod list;
mod lookup;
mod ripening;
pub(crate) mod rows;
mod sums;
pub(crate) mod sweep;

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tombolo_core::fs::{PersistentHandle, Volume, WeakAttr};
use tombolo_core::{Error, Result, lock};
use tombolo_host_runtime::private;

use crate::object::Object;
pub(crate) use access::{read_now, read_waiting};
use commit::Queue;
use data_file::State as DataState;
pub(crate) use data_file::{DataFile, Hold, Lendable};
use database::Database;
use directory::Directory;
pub use directory::{OpenError, OriginIdentity};
use eviction::Eviction;
pub use list::{Listed, ListedData};
use ripening::Unripe;
use rows::DataRow;

/// Number of an object in this cache, never given to another one, not even after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u64);

impl ObjectId {
    /// Number of the origin's root.
    pub const ROOT: Self = Self(1);
}

/// Limits, block size and pauses of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Capacity in bytes, beyond which data are evicted. A quarter is the bound of the index, or up to half
    /// if clients hold its rows.
    pub capacity_bytes: u64,
    /// Unit of fetches and checksums in bytes: a power of two from 4 KiB to 1 MiB. Files already in the store
    /// keep theirs.
    pub block_bytes: u32,
    /// Approximate limit of memory for cached metadata, in bytes, beyond which unused objects leave memory.
    /// The origin's client takes up to half as much again.
    pub memory_bytes: usize,
    /// Delay of a commit, to gather more changes in one transaction.
    pub commit_pause: Duration,
    /// Minimum pause after an eviction from the index that removed too little; zero: none.
    pub index_pause: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: 8 << 30,
            block_bytes: 64 << 10,
            memory_bytes: 64 << 20,
            commit_pause: Duration::from_millis(50),
            index_pause: Duration::from_secs(10),
        }
    }
}

/// Store of one cache: the index, and the data files in its directory.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    /// `true` if the index was empty when it was opened.
    pub(crate) began_empty: bool,
    committer: Option<JoinHandle<()>>,
}

/// State shared by the store, its data files and its thread.
pub(super) struct Shared {
    directory: Directory,
    options: StoreOptions,
    reader: Mutex<Database>,
    ids: Mutex<Ids>,
    /// Next generation of data for which no number could be reserved ([`UNNUMBERED`]).
    unnumbered: AtomicU64,
    /// Size of the index's file, and the part of it that is in use.
    index_bytes: AtomicU64,
    index_used_bytes: AtomicU64,
    /// Size of the index if clients held too much of it at the end of the last trimming; otherwise 0.
    index_held_bytes: AtomicU64,
    /// `true` if clients have handles that work only with their row.
    keeps_rows: AtomicBool,
    queue: Queue,
    eviction: Mutex<Eviction>,
    files: Mutex<Files>,
}

/// Reserved object numbers: the next one to give, and the end of the reservation.
#[derive(Debug, Default)]
struct Ids {
    next: u64,
    end: u64,
}

/// Data files in use, and the open ones in order of their opening.
#[derive(Debug, Default)]
struct Files {
    known: HashMap<ObjectId, Weak<DataState>>,
    open: VecDeque<ObjectId>,
}

/// Count of object numbers reserved at once.
const IDS: u64 = 1 << 16;

/// Lowest generation of data that last only as long as this process, as no number could be reserved for them.
const UNNUMBERED: u64 = 1 << 63;

/// Maximum part of the capacity that may be held, so that something can always be evicted.
const HELD_PART: (u64, u64) = (3, 4);

/// Maximum part of the capacity counted for the index, even if the index is larger because clients hold its
/// rows: some capacity must be left for data.
const INDEX_COUNTED: (u64, u64) = (3, 4);

/// Maximum number of open data files.
const OPEN_MAX: usize = 1024;

/// Summary of a cache directory's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Location of the origin, as the user wrote it.
    pub origin: String,
    /// Number of known files, directories and links.
    pub objects: u64,
    /// Number of files with cached data.
    pub files: u64,
    /// Number of bytes of cached data.
    pub kept_bytes: u64,
}

impl Store {
    /// Opens a cache directory, creating it if it is missing.
    ///
    /// # Errors
    /// Fails with [`OpenError`]. A damaged database is set aside, as it holds nothing that the origin lacks.
    pub fn open(
        path: &Path,
        origin: &OriginIdentity,
        options: StoreOptions,
    ) -> std::result::Result<Arc<Self>, OpenError> {
        Self::open_as(Directory::open(path, Some(origin))?, options)
    }

    /// Opens an existing cache directory of any origin.
    ///
    /// # Errors
    /// Fails as [`Store::open`] does.
    pub fn open_existing(path: &Path) -> std::result::Result<Arc<Self>, OpenError> {
        Self::open_as(Directory::open(path, None)?, StoreOptions::default())
    }

    fn open_as(directory: Directory, options: StoreOptions) -> std::result::Result<Arc<Self>, OpenError> {
        let path = directory.path.join("index.db");
        private::database(&path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
        let database = match opened(&path) {
            Ok(both) => both,
            Err(source) if is_passing(&source) => return Err(OpenError::Database { path, source }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot use the index of the cache: starting an empty one");
                set_aside(&path);
                private::database(&path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
                opened(&path).map_err(|source| OpenError::Database { path: path.clone(), source })?
            }
        };
        let (reader, writer, data) = database;
        let used_bytes = readable(reader.used_bytes()).unwrap_or_default();
        let keeps_rows = readable(reader.keeps_rows()).unwrap_or_default();
        if used_bytes < file_bytes(&path) / 2 {
            readable(writer.shrink());
        }
        let mut eviction = Eviction::default();
        data.iter().for_each(|(id, row)| eviction.add(*id, row.generation, row.kept_bytes));
        let shared = Arc::new(Shared {
            directory,
            options,
            reader: Mutex::new(reader),
            ids: Mutex::default(),
            unnumbered: AtomicU64::new(UNNUMBERED),
            index_bytes: AtomicU64::new(file_bytes(&path)),
            index_used_bytes: AtomicU64::new(used_bytes),
            index_held_bytes: AtomicU64::new(0),
            keeps_rows: AtomicBool::new(keeps_rows),
            queue: Queue::default(),
            eviction: Mutex::new(eviction),
            files: Mutex::default(),
        });
        let known = data.into_iter().map(|(id, row)| (id, row.generation)).collect();
        let io = |source| OpenError::Io { path: path.clone(), source };
        // Generations are allocated from the numbers of objects, so those of earlier processes are lower.
        let first_new = shared
            .reserved_id()
            .map_err(|source| OpenError::Io { path: shared.directory.path.join("next-id"), source })?
            .0;
        let began_empty = lock(&shared.reader).is_empty().unwrap_or(false);
        let committer = commit::start(&shared, writer, known, first_new).map_err(io)?;
        Ok(Arc::new(Self { shared, began_empty, committer: Some(committer) }))
    }

    /// Returns a name unique to this cache directory.
    pub(crate) fn name(&self) -> String {
        directory::hex(&self.volume())
    }

    pub(crate) fn volume(&self) -> Volume {
        self.shared.directory.volume
    }

    /// Returns a number that was never used, for an object or a generation of data.
    pub(crate) fn new_id(&self) -> Result<ObjectId> {
        self.shared.reserved_id().map_err(Error::io)
    }

    pub(crate) fn keep(&self, object: &Arc<Object>) {
        self.shared.queue.keep(object);
    }

    /// Queues the names of a directory for writing once they are old enough to be valid after a restart.
    pub(crate) fn keep_names_when_ripe(&self, dir: &Arc<Object>, delay: Duration) {
        self.shared.queue.keep_when_ripe(Unripe::Names(Arc::downgrade(dir)), delay);
    }

    /// Queues data for writing once they are old enough to be valid after a restart.
    pub(crate) fn keep_data_when_ripe(&self, file: &DataFile, delay: Duration) {
        self.shared.queue.keep_when_ripe(Unripe::Data(file.downgrade()), delay);
    }

    /// Removes the row and the data of an object that is gone at the origin.
    pub(crate) fn remove(&self, object: &Object) {
        self.remove_row(object.id, &object.handle);
        self.drop_data_of(object.id);
    }

    /// Returns `true` if so many changes are pending that no more should be stored until some are written.
    pub(crate) fn is_behind(&self) -> bool {
        self.shared.queue.is_behind()
    }

    /// Waits until the pending changes are below the limit of [`is_behind`](Self::is_behind).
    pub(crate) fn catch_up(&self) {
        self.shared.queue.catch_up();
    }

    /// Waits until everything queued so far is written, so that it survives the end of this process, or has
    /// failed to be.
    pub(crate) fn flush(&self) {
        self.shared.queue.flush();
    }

    /// Returns the data of a version of a file: those in use or stored, or empty data with blocks of this
    /// size (`None`: the store's).
    pub(crate) fn data(&self, id: ObjectId, version: &WeakAttr, block_bytes: Option<u32>) -> DataFile {
        let shared = &self.shared;
        let in_use = lock(&shared.files).known.get(&id).and_then(Weak::upgrade);
        if let Some(state) = in_use.filter(|state| !state.is_doomed() && state.version == *version) {
            return DataFile::new(state);
        }
        let path = |row: &DataRow| shared.path_of(id, row.generation);
        let fits = |row: &DataRow| row.version == *version && row.has_blocks() && path(row).exists();
        let kept = lock(&shared.eviction).generation(id);
        let row = readable(lock(&shared.reader).data(id)).flatten().and_then(|row| DataRow::decoded(&row));
        let old = row.filter(|row| kept == Some(row.generation) && fits(row));
        if let Some(generation) = kept.filter(|_| old.is_none()) {
            self.drop_data(id, generation);
        }
        let numbered = if old.is_some() { Ok(ObjectId(0)) } else { self.new_id() };
        let row = old.unwrap_or_else(|| {
            let (ObjectId(generation), block_bytes) = (
                numbered
                    .as_ref()
                    .copied()
                    .unwrap_or_else(|_| ObjectId(shared.unnumbered.fetch_add(1, Ordering::Relaxed))),
                block_bytes.unwrap_or(shared.options.block_bytes),
            );
            DataRow { generation, version: *version, block_bytes, kept_bytes: 0 }
        });
        let file = DataFile::new(Arc::new(DataState::new(shared, id, &row, path(&row), old.is_some())));
        if numbered.is_err() {
            file.set_for_this_life();
        }
        shared.know(&file);
        file
    }

    /// Returns `true` if data of an object are held against eviction, for readers with their own descriptors.
    pub(crate) fn is_held(&self, id: ObjectId) -> bool {
        lock(&self.shared.eviction).is_held(id)
    }

    pub(crate) fn keeps(&self, id: ObjectId) -> bool {
        lock(&self.shared.eviction).generation(id).is_some()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.shared.directory.path
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.shared.options.memory_bytes
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.shared.options.capacity_bytes
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        lock(&self.shared.eviction).bytes()
    }

    /// Returns `true` if the data and the counted part of the index together exceed the capacity.
    pub(crate) fn is_full(&self) -> bool {
        let capacity = self.shared.options.capacity_bytes;
        let index = self.shared.index_bytes.load(Ordering::Relaxed);
        self.kept_bytes().saturating_add(index.min(part_of(capacity, INDEX_COUNTED))) > capacity
    }

    /// Removes an object's row, but not its data.
    pub(crate) fn remove_row(&self, id: ObjectId, handle: &PersistentHandle) {
        self.shared.queue.remove_object(id, key(handle));
    }

    pub(crate) fn drop_data_of(&self, id: ObjectId) {
        let kept = lock(&self.shared.eviction).generation(id);
        if let Some(generation) = kept {
            self.drop_data(id, generation);
        }
    }

    /// Removes the next data to evict from the count of stored data, and returns their object and generation.
    pub(crate) fn next_to_go(&self) -> Option<(ObjectId, u64)> {
        lock(&self.shared.eviction).next(self.shared.held_bytes_max())
    }

    /// Drops data of an object, immediately or at the end of their last use.
    pub(crate) fn drop_data(&self, id: ObjectId, generation: u64) {
        lock(&self.shared.eviction).remove(id, generation);
        let in_use = lock(&self.shared.files).known.get(&id).and_then(Weak::upgrade);
        if let Some(state) = in_use.filter(|state| state.generation == generation) {
            state.doom();
            return;
        }
        let _ = fs::remove_file(self.shared.path_of(id, generation));
        self.shared.queue.remove_data(id, generation);
    }

    /// Returns a summary of the contents.
    pub fn info(&self) -> StoreInfo {
        self.flush();
        let objects = readable(lock(&self.shared.reader).count("objects")).unwrap_or_default();
        let eviction = lock(&self.shared.eviction);
        StoreInfo {
            origin: self.shared.directory.location.clone(),
            objects,
            files: eviction.len() as u64,
            kept_bytes: eviction.bytes(),
        }
    }

    /// Verifies all data by their checksums, and drops the data of each file with a damaged block. Calls
    /// `progress` before each file with its index and the number of files, and at the end. Returns the
    /// numbers of blocks verified and of damaged ones.
    pub fn verify(&self, mut progress: impl FnMut(u64, u64)) -> (u64, u64) {
        let all = readable(lock(&self.shared.reader).all_data()).unwrap_or_default();
        let (count, mut here, mut bad) = (all.len() as u64, 0, 0);
        for (index, (id, row)) in all.iter().enumerate() {
            progress(index as u64, count);
            let Some(row) = DataRow::decoded(row) else { continue };
            let file = self.data(*id, &row.version, None);
            let (blocks, damaged) = file.verify_all().unwrap_or((1, 1));
            if damaged > 0 {
                file.doom();
            }
            (here, bad) = (here + blocks, bad + damaged);
        }
        progress(count, count);
        self.flush();
        (here, bad)
    }

    /// Evicts data, in the order in which a full cache does, until at most `bytes` are stored or nothing more
    /// can be evicted.
    pub fn trim(&self, bytes: u64) {
        while lock(&self.shared.eviction).bytes() > bytes {
            let Some((id, generation)) = self.next_to_go() else { break };
            self.drop_data(id, generation);
        }
        self.flush();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!("the thread writing the index of the cache has panicked");
        }
    }
}

impl Shared {
    fn reserved_id(&self) -> std::io::Result<ObjectId> {
        let mut ids = lock(&self.ids);
        if ids.next == ids.end {
            let next = self.directory.reserve_ids(IDS)?;
            *ids = Ids { next, end: next + IDS };
        }
        ids.next += 1;
        Ok(ObjectId(ids.next - 1))
    }

    fn weigh_index(&self, database: &Database) {
        self.index_bytes.store(file_bytes(&self.directory.path.join("index.db")), Ordering::Relaxed);
        if let Some(used) = readable(database.used_bytes()) {
            self.index_used_bytes.store(used, Ordering::Relaxed);
        }
    }

    fn path_of(&self, id: ObjectId, generation: u64) -> PathBuf {
        let folder = format!("{:02x}", id.0 & 0xff);
        self.directory.path.join("objects").join(folder).join(format!("{:x}.{generation:x}", id.0))
    }

    fn sums(&self, id: ObjectId, generation: u64, chunk: u64) -> Option<Vec<u8>> {
        readable(lock(&self.reader).sums(id, generation, chunk)).flatten()
    }

    /// Records that a data file has grown.
    fn wrote(&self, state: &Arc<DataState>, added_bytes: u64) {
        if !state.is_doomed() {
            lock(&self.eviction).add(state.id, state.generation, added_bytes);
            self.queue.keep_data(state);
        }
    }

    fn held_bytes_max(&self) -> u64 {
        part_of(self.options.capacity_bytes, HELD_PART)
    }

    fn know(&self, file: &DataFile) {
        let mut files = lock(&self.files);
        if files.known.len() > 4 * OPEN_MAX && files.known.len().is_power_of_two() {
            files.known.retain(|_, state| state.strong_count() > 0);
        }
        files.known.insert(file.id(), file.downgrade());
    }

    /// Records the opening of a data file, and closes another one if too many are open.
    fn opened(&self, id: ObjectId) {
        let mut files = lock(&self.files);
        files.open.push_back(id);
        if files.open.len() > OPEN_MAX
            && let Some(oldest) = files.open.pop_front()
            && let Some(state) = files.known.get(&oldest).and_then(Weak::upgrade)
        {
            drop(files);
            state.close();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("directory", &self.directory.path).finish_non_exhaustive()
    }
}

type Opened = (Database, Database, Vec<(ObjectId, DataRow)>);

fn opened(path: &Path) -> rusqlite::Result<Opened> {
    let (reader, writer) = (Database::open(path)?, Database::open(path)?);
    let data = reader.all_data()?.into_iter().filter_map(|(id, row)| Some((id, DataRow::decoded(&row)?)));
    let data = data.collect();
    Ok((reader, writer, data))
}

/// Returns `true` if the database may be readable later, so it is left unchanged.
fn is_passing(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DiskFull, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
    };
    let passing =
        [CannotOpen, DatabaseBusy, DiskFull, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure];
    error.sqlite_error_code().is_some_and(|code| passing.contains(&code))
}

fn set_aside(path: &Path) {
    let _ = fs::rename(path, path.with_extension("db.damaged"));
    for more in ["db-wal", "db-shm"] {
        let _ = fs::remove_file(path.with_extension(more));
    }
}

fn file_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

fn part_of(whole: u64, (parts, of): (u64, u64)) -> u64 {
    whole / of * parts
}

fn key(handle: &PersistentHandle) -> Vec<u8> {
    [&handle.kind.to_le_bytes()[..], &handle.bytes].concat()
}

/// Returns the value read; logs a failure and returns `None`, as if nothing were stored.
fn readable<T>(read: rusqlite::Result<T>) -> Option<T> {
    read.inspect_err(|error| tracing::warn!(%error, "cannot read the index of the cache")).ok()
}
