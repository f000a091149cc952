//! Other exports of this process that may show the same files. If there is one, an export that observes the
//! host (`host_watch`) does not ignore the events of this process, and so reports changes made through the
//! other export.

use std::sync::{Arc, Mutex, Weak};

use tombolo_core::lock;

use crate::state::ExportState;
use crate::submounts::is_beneath;

static EXPORTS: Mutex<Vec<Weak<ExportState>>> = Mutex::new(Vec::new());

pub(crate) fn opened(export: &Arc<ExportState>) {
    let mut exports = lock(&EXPORTS);
    exports.retain(|export| export.strong_count() > 0);
    exports.push(Arc::downgrade(export));
}

impl ExportState {
    /// Returns `true` if another export of this process may show a file of this one: one contains the other,
    /// or the same file system is mounted twice.
    pub(crate) fn has_overlapping_export(&self) -> bool {
        let others: Vec<_> = lock(&EXPORTS).iter().filter_map(Weak::upgrade).collect();
        others.iter().any(|other| !std::ptr::eq(self, &**other) && self.overlaps(other))
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (own, theirs) = (self.mounts.all(), other.mounts.all());
        let mut pairs = own.iter().flat_map(|own| theirs.iter().map(move |theirs| (own, theirs)));
        pairs.any(|(own, theirs)| own.is_same_file_system(theirs)) || self.lies_with(other)
    }

    /// Returns `true` if one export's root contains the other's, or if that is unknown.
    fn lies_with(&self, other: &Self) -> bool {
        let path = |export: &Self| export.own.path(export.root.fd());
        match (path(self), path(other)) {
            (Ok(own), Ok(theirs)) => is_beneath(&own, &theirs) || is_beneath(&theirs, &own),
            _ => true,
        }
    }
}
