//! Persistent handles for file systems that have none, or none that are short enough: a table on disk of the
//! files that were met, each with a number, where it is, and what it was.
//!
//! A handle is the number. It leads back by name: from the root, through the directories under which the file
//! was met, and what is found must be the file that was meant (inode number and birth). Names that change
//! through this layer are followed. So what gets lost, compared with handles of a file system's own:
//!
//! - A file whose name, or the name of a directory above it, is changed by others is stale until it is met
//!   again; met again, it is the same file with the same handle, as far as the file system tells files apart.
//! - A file that had one name when it was last met, that others gave another one since, and that then loses
//!   the one we know, gets another handle when it is met again: a removed file is forgotten at once, or
//!   removed files would fill the table.
//! - Where the file system does not keep births, a file that takes a removed file's name *and* inode number
//!   is taken for it.
//! - Numbers that were given out shortly before a loss of power, or that stood in a damaged part of the
//!   table, are stale. A number is never given to another file.
//!
//! The table is an append-only log, written anew at each start and when it has grown long ([`log`]);
//! `docs/formats/handles.md` has its bytes. It keeps at most [`FILES_MAX`] files: those that were removed
//! make room first, then those met first, and directories that others are in last.
//!
//! Reading order: `table` (what is known), `log` (what is on disk), `rewrite` (how that stays short),
//! `session` (which files are met).
#![forbid(unsafe_code)]

mod log;
mod rewrite;
mod session;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use thiserror::Error;
use tombolo_core::Result;
use tombolo_core::fs::{Client, Export, FileSystem, Volume};

use session::Session;
use table::Table;

/// So many files have a number at a time.
pub const FILES_MAX: usize = 1 << 20;

/// The type number of our handles: below those that other parts of the house add to the kernel's.
pub const KIND: i32 = 1 << 13;

/// Why a table cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The table.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is no table, or one of a newer version. It is left alone.
    #[error("{}: not a table of file handles that this program knows", path.display())]
    Foreign {
        /// The table.
        path: PathBuf,
    },
}

/// An export whose handles come from a table.
pub struct HandleTable {
    inner: Arc<dyn Export>,
    shared: Arc<Shared>,
}

struct Shared {
    table: Arc<Mutex<Table>>,
    volume: Volume,
    path: PathBuf,
    /// FileIdentity writes the log anew, or did last.
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// `inner`, with handles from the table at `path`, which is made if it is missing. One process may use it at
/// a time.
pub fn over(inner: Arc<dyn Export>, path: &Path) -> std::result::Result<HandleTable, OpenError> {
    Ok(HandleTable { inner, shared: Arc::new(Shared::open(path)?) })
}

impl Export for HandleTable {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session::new(self.inner.attach(client)?, self.shared.clone())))
    }
}

impl Shared {
    fn open(path: &Path) -> std::result::Result<Self, OpenError> {
        let (table, volume) = rewrite::open(path)?;
        let (table, writer) = (Arc::new(Mutex::new(table)), Mutex::default());
        Ok(Self { table, volume, path: path.to_owned(), writer })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        rewrite::lock(&self.table)
    }

    /// Changes the table, and writes all that changed to the log at once.
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
            self.write_anew();
        }
        changed
    }

    /// Has the log written anew by a thread: requests are served by threads that must not wait for the disk.
    fn write_anew(&self) {
        let (table, path, volume) = (self.table.clone(), self.path.clone(), self.volume);
        let thread = thread::Builder::new().name("handle-table".into());
        match thread.spawn(move || rewrite::rewrite(&table, &path, volume)) {
            // The one before has ended: there is never a second.
            Ok(writer) => *self.writer() = Some(writer),
            Err(error) => {
                tracing::warn!(%error, "no thread to write the table of file handles anew");
                self.table().log().end_successor();
            }
        }
    }

    fn writer(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    /// The next process must not find the table in use.
    fn drop(&mut self) {
        let writer = self.writer().take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("writing the table of file handles anew has panicked");
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
        let shared = Shared::open(&path).expect("a table");
        let location = |name: &str| Location::new(Id::ROOT, Name::new(name.as_bytes()).expect("a name"));
        let identity = |fileid| FileIdentity { fsid: 1, fileid, generation: 2 };
        let still =
            shared.change(|table| table.meet(&location("still"), identity(1), false)).expect("a number");
        let restless =
            shared.change(|table| table.meet(&location("0"), identity(2), false)).expect("a number");
        let renames = 150_000;
        for n in 0..renames {
            let (from, to) = (location(&n.to_string()), location(&(n + 1).to_string()));
            shared.change(|table| table.moved(&from, &to, [Some(restless), None]));
        }
        drop(shared);
        let len = std::fs::metadata(&path).expect("the table").len();
        assert!(len < 100_000 * 48, "{len} bytes of {renames} renames");
        let shared = Shared::open(&path).expect("the table");
        let (table, last) = (shared.table(), location(&renames.to_string()));
        assert_eq!(table.path_of(restless).expect("a way"), [(last.name, identity(2))]);
        assert_eq!(table.path_of(still).expect("a way"), [(location("still").name, identity(1))]);
    }
}
