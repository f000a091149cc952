//! Writing a long log anew while the table is in use.

use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::Volume;

use super::log::{Log, draft_of, sync_directory_of};
use super::table::Table;

/// So many files are looked up under the table's lock at a time.
const FILES_AT_ONCE: usize = 1024;

/// Writes the log of `table` anew, on a thread that may wait for the disk. [`Log::begin_successor`] was called, and what changes since
/// goes to both logs. The table is locked only for moments.
pub(super) fn rewrite(table: &Mutex<Table>, path: &Path, volume: Volume) {
    if let Err(error) = try_to(table, path, volume) {
        tracing::warn!(%error, "{}: it is long, and cannot be written anew", path.display());
        lock(table).log().end_successor();
    }
}

fn try_to(table: &Mutex<Table>, path: &Path, volume: Volume) -> io::Result<()> {
    let draft = draft_of(path);
    let mut log = Log::create(&draft, volume)?;
    let ids = lock(table).ids();
    for ids in ids.chunks(FILES_AT_ONCE) {
        // A file that changes after this is in what follows, and the last record counts.
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

pub(super) fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
