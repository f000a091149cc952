//! Files that are read past this cache (FUSE passthrough).
//!
//! All blocks of such a file are known to be good, and nothing is written to its data file any more. It is
//! not asked before a piece is read, so what an opening promises must hold by itself: the file is not
//! evicted, and a newer version is another file of another node.

use std::sync::Arc;

use tombolo_core::fs::{BackingFile, BackingFiles, File, FileType, OpenFlags};

use crate::data::Data;
use crate::object::Object;
use crate::options::Options;
use crate::session::CachedFileSystem;
use crate::store::Hold;

/// A version of a file that is read past this cache until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    data: Arc<Data>,
    _hold: Hold,
    /// Of one that is not in memory it would not be known that it is held.
    _object: Arc<Object>,
}

impl Object {
    /// Holds its present version, if all of that is here and known to be good.
    fn hold(self: &Arc<Self>, options: &Options) -> Option<Arc<Held>> {
        let mut state = self.state();
        let held = state.held.upgrade();
        if held.is_some() || state.writers > 0 || state.is_written_in_parts() || state.is_doubtful(options) {
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
        session.cache.counters.backed();
        Some(BackingFile { descriptor, hold: held })
    }
}
