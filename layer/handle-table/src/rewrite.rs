//! Loading the table, and compaction of its log while in use.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Mutex;

use tombolo_core::fs::Volume;
use tombolo_core::lock;
use tombolo_sys::random;

use super::OpenError;
use super::log::{BUFFER_BYTES, Log, draft_of, read, sync_directory_of};
use super::table::Table;

/// Number of files processed per acquisition of the table's lock.
const FILES_AT_ONCE: usize = 1024;

/// Loads the table at `path`, or creates one, and rewrites it, without obsolete records and synced.
pub(super) fn open(path: &Path) -> Result<(Table, Volume), OpenError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    let mut epoch = [0; 4];
    random::fill(&mut epoch).map_err(|errno| at(path)(errno.into()))?;
    let mut table = Table::new(Log::discarding(), u32::from_le_bytes(epoch).max(1));
    let volume = match File::open(path) {
        Ok(file) => read(&mut BufReader::with_capacity(BUFFER_BYTES, file), |record| table.replay(record))
            .map_err(at(path))?
            .ok_or_else(|| OpenError::Foreign { path: path.to_owned() })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut volume = [0; 16];
            random::fill(&mut volume).map_err(|errno| at(path)(errno.into()))?;
            Volume(volume)
        }
        Err(error) => return Err(at(path)(error)),
    };
    let draft = draft_of(path);
    let mut log = Log::create(&draft, volume).map_err(at(&draft))?;
    for id in table.ids() {
        table.record(id).iter().for_each(|record| log.append(record));
    }
    log.sync().map_err(at(&draft))?;
    fs::rename(&draft, path).map_err(at(path))?;
    sync_directory_of(path).map_err(at(path))?;
    *table.log() = log;
    Ok((table, volume))
}

/// Rewrites the log of `table`, on a thread that may wait for the disk. The caller must have called
/// [`Log::begin_successor`], so that changes since then are in both logs. The table is locked only briefly.
pub(super) fn rewrite(table: &Mutex<Table>, path: &Path, volume: Volume) {
    if let Err(error) = try_to(table, path, volume) {
        tracing::warn!(%error, "{}: cannot rewrite the log, which has grown long", path.display());
        lock(table).log().end_successor();
    }
}

fn try_to(table: &Mutex<Table>, path: &Path, volume: Volume) -> io::Result<()> {
    let draft = draft_of(path);
    let mut log = Log::create(&draft, volume)?;
    let ids = lock(table).ids();
    for ids in ids.chunks(FILES_AT_ONCE) {
        // A file that changes later has a later record, which takes precedence.
        let records: Vec<_> = {
            let table = lock(table);
            ids.iter().filter_map(|&id| table.record(id)).collect()
        };
        records.iter().for_each(|record| log.append(record));
    }
    log.sync()?;
    lock(table).log().succeed(log, &draft, path)?;
    sync_directory_of(path)
}
