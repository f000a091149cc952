//! Persistent handles for file systems without any, or with handles that are too long: a table on disk of all
//! files seen, each with a number, its location (directory and name), and its identity.
//!
//! A handle contains the number. It is resolved by name: from the root through the directories under which
//! the file was seen, and the file found must have the same identity (inode number and generation). Renames
//! through this layer are tracked. The limitations, compared with a file system's own handles:
//!
//! - A handle is stale after another program renames the file or a directory above it, until the file is seen
//!   again: it then has the same handle, as far as the file system distinguishes files.
//! - Its resolution and that of the parent need the caller's permission to search the path's directories.
//! - A file last seen with one link gets a new handle if another program has linked it since and its known
//!   name is then removed: removed files are dropped at once, or they would fill the table.
//! - If the file system has no generations (for a local directory: times of birth), a file that reuses the
//!   name *and* inode number of a file that another program has removed is mistaken for it.
//! - Numbers issued shortly before a power failure, or stored in a damaged part of the table, are stale. A
//!   number is never reused for another file.
//!
//! The table is an append-only log, rewritten at each start and when it has grown long (module `log`); its
//! format is in `docs/formats/handles.md`. It contains at most [`FILES_MAX`] files: removed ones are evicted
//! first, then the oldest, and directories with children last.
//!
//! Reading order: `table` (in memory), `log` (on disk), `rewrite` (compaction), `session` (which files are
//! registered).
#![forbid(unsafe_code)]

mod log;
mod rewrite;
mod session;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use thiserror::Error;
use tombolo_core::fs::{Client, Export, FileSystem, Volume};
use tombolo_core::{Result, lock};

use session::Session;
use table::Table;

/// Maximum number of files with a number.
pub const FILES_MAX: usize = 1 << 20;

/// Type number of these handles: above the kernel's, and without the bit that `back/local-dir` sets.
pub const KIND: i32 = 1 << 13;

/// Reasons why a table cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the table.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is no table, or one of a newer version. It is left unchanged.
    #[error("{}: not a table of file handles, or of an unsupported version", path.display())]
    Foreign {
        /// Path of the table.
        path: PathBuf,
    },
}

/// An export with handles from a table.
pub struct HandleTable {
    inner: Arc<dyn Export>,
    shared: Arc<TableState>,
}

struct TableState {
    table: Arc<Mutex<Table>>,
    volume: Volume,
    path: PathBuf,
    /// The thread that rewrites the log, or the last one that did.
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Wraps `inner`, with handles from the table at `path`, which is created if missing. Only one process may
/// use it at a time.
pub fn over(inner: Arc<dyn Export>, path: &Path) -> std::result::Result<HandleTable, OpenError> {
    Ok(HandleTable { inner, shared: Arc::new(TableState::open(path)?) })
}

impl Export for HandleTable {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session::new(self.inner.attach(client)?, self.shared.clone())))
    }
}

impl TableState {
    fn open(path: &Path) -> std::result::Result<Self, OpenError> {
        let (table, volume) = rewrite::open(path)?;
        let (table, writer) = (Arc::new(Mutex::new(table)), Mutex::default());
        Ok(Self { table, volume, path: path.to_owned(), writer })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Changes the table, and appends the changes to the log at once.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table();
        let changed = change(&mut table);
        table.log().flush();
        let is_long = table.has_long_log();
        if is_long {
            table.log().begin_successor();
        }
        drop(table);
        if is_long {
            self.start_rewrite();
        }
        changed
    }

    /// Rewrites the log on a thread of its own: the threads that serve requests must not wait for the disk.
    fn start_rewrite(&self) {
        let (table, path, volume) = (self.table.clone(), self.path.clone(), self.volume);
        let thread = thread::Builder::new().name("handle-table".into());
        match thread.spawn(move || rewrite::rewrite(&table, &path, volume)) {
            // The previous thread has ended: there is never more than one.
            Ok(writer) => *lock(&self.writer) = Some(writer),
            Err(error) => {
                tracing::warn!(%error, "no thread to rewrite the table of file handles");
                self.table().log().end_successor();
            }
        }
    }
}

impl Drop for TableState {
    /// Waits for the thread that writes the log, so that the next process does not find the table in use.
    fn drop(&mut self) {
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("rewriting the table of file handles has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::log::{FileIdentity, Id, Location};
    use super::*;
    use tombolo_core::fs::Name;

    #[test]
    fn a_log_stays_short_however_often_files_are_renamed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("table");
        let shared = TableState::open(&path).expect("a table");
        let location = |name: &str| Location::new(Id::ROOT, Name::new(name.as_bytes()).expect("a name"));
        let identity = |fileid| FileIdentity { fsid: 1, fileid, generation: 2 };
        let still =
            shared.change(|table| table.register(&location("still"), identity(1), false)).expect("a number");
        let restless =
            shared.change(|table| table.register(&location("0"), identity(2), false)).expect("a number");
        let renames = 150_000;
        for n in 0..renames {
            let (from, to) = (location(&n.to_string()), location(&(n + 1).to_string()));
            shared.change(|table| table.moved(&from, &to, [Some(restless), None]));
        }
        drop(shared);
        let len = std::fs::metadata(&path).expect("the table").len();
        assert!(len < 100_000 * 48, "{len} bytes of {renames} renames");
        let shared = TableState::open(&path).expect("the table");
        let (table, last) = (shared.table(), location(&renames.to_string()));
        assert_eq!(table.path_of(restless).expect("a way"), [(last.name, identity(2))]);
        assert_eq!(table.path_of(still).expect("a way"), [(location("still").name, identity(1))]);
    }
}
