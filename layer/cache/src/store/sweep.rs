//! Search for objects that lost their last name in an earlier process, so that their rows can be removed.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;

use tombolo_core::fs::FileType;

use super::rows::{NamesRow, ObjectRow};
use super::{ObjectId, Store, lock, readable};
use crate::names::Target;

/// Number of rows read while the reader is locked once.
const ROWS: u32 = 256;

/// Lists stored objects without a cached name, if the directory in which they were last looked up is gone or
/// all its names are cached. Returns none if the store is dropped meanwhile.
pub(crate) fn unnamed(store: &Weak<Store>) -> Vec<ObjectId> {
    let (mut met_in, mut named) = (HashMap::new(), HashSet::new());
    let (mut are_all_kept, mut last) = (HashMap::new(), ObjectId(0));
    loop {
        let Some(store) = store.upgrade() else { return Vec::new() };
        let reader = lock(&store.shared.reader);
        let rows = readable(reader.objects_after(last, ROWS)).unwrap_or_default();
        let Some((next, _)) = rows.last() else { break };
        last = *next;
        for (id, row) in rows {
            let Some(row) = ObjectRow::decoded(&row) else { continue };
            if row.attr.file_type == FileType::Directory {
                let mut name = |_, _: &[u8], target: Target| {
                    named.insert(target.object);
                    true
                };
                let names = reader.names(id, |part| NamesRow::decode(part, &mut name));
                are_all_kept.insert(id, row.names.0 && readable(names) == Some(true));
            }
            met_in.extend(row.parent.filter(|_| id != ObjectId::ROOT).map(|parent| (id, parent)));
        }
    }
    let is_unnamed = |(id, parent): &(ObjectId, ObjectId)| {
        !named.contains(id) && are_all_kept.get(parent).copied().unwrap_or(true)
    };
    met_in.into_iter().filter(is_unnamed).map(|(id, _)| id).collect()
}
