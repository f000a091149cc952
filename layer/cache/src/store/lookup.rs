//! Look-up of objects in the database, and among those queued for writing.

use std::sync::Arc;

use tombolo_core::fs::{FileType, PersistentHandle};

use super::rows::{NamesRow, ObjectRow};
use super::{ObjectId, Store, key, lock, readable};
use crate::names::Names;
use crate::object::Object;

impl Store {
    /// Returns the number of the object with this origin handle, if it is in the database.
    pub(crate) fn id_of(&self, handle: &PersistentHandle) -> Option<ObjectId> {
        let id = readable(lock(&self.shared.reader).id_of(&key(handle))).flatten();
        id.filter(|id| !self.shared.queue.is_gone(*id))
    }

    /// Returns `true` if this number may have been given to an object: it is below the next one.
    pub(crate) fn has_given(&self, id: ObjectId) -> bool {
        id.0 < lock(&self.shared.ids).next
    }

    /// Returns the state of an object and its names in the database, without queued changes; `None` if there
    /// is none, or its removal is queued.
    pub(crate) fn object(&self, id: ObjectId) -> Option<(ObjectRow, Names)> {
        if self.shared.queue.is_gone(id) {
            return None;
        }
        let mut read = None;
        // Row and names are read in one transaction, as the listing may be dropped between two.
        readable(lock(&self.shared.reader).together(|reader| {
            let Some(row) = reader.object(id)?.and_then(|row| ObjectRow::decoded(&row)) else {
                return Ok(());
            };
            let mut names = Names::default();
            if row.attr.file_type == FileType::Directory {
                let take = |part: &[u8]| {
                    NamesRow::decode(part, |place, name, target| names.restore(place, name, target))
                };
                let are_all = reader.names(id, take)?;
                if !are_all {
                    // If a part is damaged, none of the names are used.
                    names = Names::default();
                }
                let (is_complete, next_place) = row.names;
                names.restored(is_complete && are_all, next_place);
            }
            read = Some((row, names));
            Ok(())
        }))?;
        read
    }

    pub(crate) fn queued(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.shared.queue.object(id)
    }

    /// Returns the rows of up to `count` objects after this one, in the order of their numbers, and the last
    /// number. Rows that cannot be decoded are left out. Returns `None` if there are no more.
    pub(crate) fn rows_after(
        &self,
        id: ObjectId,
        count: u32,
    ) -> Option<(ObjectId, Vec<(ObjectId, ObjectRow)>)> {
        let rows = readable(lock(&self.shared.reader).objects_after(id, count))?;
        let (last, _) = rows.last()?;
        Some((*last, rows.iter().filter_map(|(id, row)| Some((*id, ObjectRow::decoded(row)?))).collect()))
    }

    /// Returns `true` if names of a directory are in the database, or the database cannot be read.
    pub(crate) fn keeps_names(&self, dir: ObjectId) -> bool {
        readable(lock(&self.shared.reader).has_names(dir)) != Some(false)
    }
}
