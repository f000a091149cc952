//! Reads that bypass the cache (FUSE passthrough).
//!
//! All blocks of a file are verified before its data file is passed to the kernel, and the data file is not
//! written any more. The cache is not consulted for each read, so two guarantees hold without it: the
//! contents stay readable ([`Held`]), and a newer version of the file is another object with another node.

use std::sync::Arc;

use tombolo_core::fs::{BackingFile, BackingFiles, File, FileType, OpenFlags};

use crate::data::Data;
use crate::object::Object;
use crate::options::Options;
use crate::session::CachedFileSystem;
use crate::store::Hold;

/// A file version whose reads bypass the cache until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    data: Arc<Data>,
    _hold: Hold,
    /// The object, which must stay in memory: if it were loaded again, its `held` would be empty.
    _object: Arc<Object>,
}

impl Object {
    /// Holds the present version, or returns the hold of it that exists already. Returns `None` if not all of
    /// the version is cached and verified, if the file is being written, or if its version must be queried.
    fn hold(self: &Arc<Self>, options: &Options) -> Option<Arc<Held>> {
        let mut state = self.state();
        let held = state.held.upgrade();
        if held.is_some()
            || state.writers > 0
            || state.is_written_in_parts()
            || state.is_version_unknown(options)
        {
            return held;
        }
        let version = state.version();
        let data = state.data.clone().filter(|data| data.version() == version && data.file.is_whole())?;
        let hold = data.file.hold()?;
        let held = Arc::new(Held { data, _hold: hold, _object: self.clone() });
        state.held = Arc::downgrade(&held);
        Some(held)
    }
}

impl BackingFiles for CachedFileSystem {
    fn backing_file(&self, file: File) -> Option<BackingFile> {
        let session = self.session();
        let opening = session.openings.made_for(file, OpenFlags::READ).ok()?;
        let (object, options) = (&opening.object, session.cache.options_of(&opening.object));
        if object.file_type != FileType::Regular || !options.contract.tells_changes() {
            return None;
        }
        let held = object.hold(options)?;
        let descriptor = held.data.file.reader().ok()?;
        session.cache.counters.backed.increment();
        Some(BackingFile { descriptor, hold: held })
    }
}
