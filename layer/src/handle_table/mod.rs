//! Persistent handles for file systems that have none, or none that are short enough: a table on disk of the files that
//! were met, each with a number, where it is, and what it was.
//!
//! A handle is the number. It leads back by name: from the root, through the directories under which the file was met, and
//! what is found must be the file that was meant (inode number and birth). Names that change through this layer are
//! followed. So what gets lost, compared with handles of a file system's own:
//!
//! - A file whose name, or the name of a directory above it, is changed by others is stale until it is met again; met again, it is the
//!   same file with the same handle, as far as the file system tells files apart.
//! - Where the file system does not keep births, a file that takes a removed file's name *and* inode number is taken for it.
//! - Numbers that were given out shortly before a loss of power, or that stood in a damaged part of the table, are stale. A number
//!   is never given to another file.
//!
//! The table is an append-only log, written anew at each start ([`log`]); `docs/formats/handles.md` has its bytes. It keeps at
//! most [`FILES_MAX`] files, the latest.
//!
//! Reading order: `table` (what is known), `log` (what is on disk), `session` (who meets whom).

mod log;
mod session;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use tombolo_core::fs::{Client, Export, FileSystem, Result, Volume};

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
    table: Mutex<Table>,
    volume: Volume,
}

/// `inner`, with handles from the table at `path`, which is made if it is missing. One process may use it at a time.
pub fn over(inner: Arc<dyn Export>, path: &Path) -> std::result::Result<HandleTable, OpenError> {
    let (table, volume) = log::open(path)?;
    Ok(HandleTable { inner, shared: Arc::new(Shared { table: Mutex::new(table), volume }) })
}

impl Export for HandleTable {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session::new(self.inner.attach(client)?, self.shared.clone())))
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
