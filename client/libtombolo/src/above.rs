//! Telling when a directory contains itself.

use std::collections::HashSet;

use tombolo_core::fs::{Attr, Error, Result};

use crate::DEPTH_MAX;

/// The directories from the top of a walk down to where it is.
///
/// No file system has a directory in itself, but a server can say so, and a damaged disk may: a walk that does not look never
/// ends.
#[derive(Debug, Default)]
pub struct Above {
    way: Vec<Id>,
    ids: HashSet<Id>,
}

/// File system and number.
pub(crate) type Id = (u64, u64);

impl Above {
    /// Enters a directory that has so many of the walk above it; those entered at that depth or below it are left.
    ///
    /// # Errors
    /// [`Error::Io`]: it is one of those above it, or it lies deeper than [`DEPTH_MAX`].
    pub fn enter(&mut self, depth: usize, dir: &Attr) -> Result<()> {
        self.way.drain(depth.min(self.way.len())..).for_each(|left| {
            self.ids.remove(&left);
        });
        if depth >= DEPTH_MAX as usize {
            return Err(too_deep());
        }
        let id = id(dir);
        if !self.ids.insert(id) {
            return Err(contains_itself());
        }
        self.way.push(id);
        Ok(())
    }
}

pub(crate) fn id(dir: &Attr) -> Id {
    (dir.fsid, dir.fileid)
}

pub(crate) fn contains_itself() -> Error {
    Error::io("the directory contains itself")
}

pub(crate) fn too_deep() -> Error {
    Error::io(format!("directories lie in each other more than {DEPTH_MAX} levels deep"))
}
