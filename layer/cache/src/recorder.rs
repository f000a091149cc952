//! Recording of the first read of each part of a file, in order, to be prefetched as a trace later.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::Mutex;

use tombolo_core::lock;

use crate::cache::Cache;
use crate::object::Object;
use crate::sharing::Extents;
use crate::store::ObjectId;

/// A writer of one line per first read: offset, length, path.
#[derive(Debug)]
pub(crate) struct Recorder(Mutex<State>);

#[derive(Debug)]
struct State {
    out: File,
    /// Path of each file, and its ranges recorded so far; `None` if the path is unknown or contains a
    /// newline.
    read: HashMap<ObjectId, Option<(Vec<u8>, Extents)>>,
    lines_left: usize,
}

/// Maximum number of lines, and of files; recording ends at either.
const LINES_MAX: usize = 1 << 18;
const FILES_MAX: usize = 1 << 14;

impl Recorder {
    pub(crate) fn new(out: File) -> Self {
        Self(Mutex::new(State { out, read: HashMap::new(), lines_left: LINES_MAX }))
    }

    /// Writes a line for a read, up to a limit, unless its range was recorded before, or the path is unknown.
    pub(crate) fn note(&self, cache: &Cache, object: &Object, range: Range<u64>) {
        let size = object.state().version().size;
        let range = range.start..range.end.min(size);
        let is_known = {
            let state = lock(&self.0);
            if range.is_empty() || state.lines_left == 0 || state.read.len() >= FILES_MAX {
                return;
            }
            state.read.contains_key(&object.id)
        };
        // The path is determined outside of the lock, as that may read the disk.
        let path = if is_known { None } else { cache.path_of_file(object) };
        let path = path.filter(|path| !path.contains(&b'\n'));
        let mut state = lock(&self.0);
        let State { out, read, lines_left } = &mut *state;
        let file = read.entry(object.id).or_insert_with(|| path.map(|path| (path, Extents::default())));
        let Some((path, extents)) = file else { return };
        if extents.add(range.clone()) == 0 {
            return;
        }
        let head = format!("{} {} ", range.start, range.end - range.start);
        let line = [head.as_bytes(), path, b"\n"].concat();
        *lines_left -= 1;
        if let Err(error) = out.write_all(&line) {
            tracing::warn!(%error, "cannot write the recording: nothing more is recorded");
            *lines_left = 0;
        }
    }
}
