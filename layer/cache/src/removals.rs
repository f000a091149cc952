//! Names removed here whose files were unknown.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{Attr, FileType};

use crate::options::Contract;

/// When a name was last taken away of which it was not known for sure what it led to: a file has a name less,
/// and it may be any. Where no other gives files names, any that had more than one.
#[derive(Debug, Default)]
pub(crate) struct UnknownRemoval(Mutex<Option<Instant>>);

impl UnknownRemoval {
    /// Such a name was taken away by now.
    pub(crate) fn happened(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether attributes that were asked for at `asked` may tell of a name too many.
    pub(crate) fn concerns(&self, attr: &Attr, asked: Option<Instant>, contract: Contract) -> bool {
        let has_others = attr.nlink > 1 || !contract.tells_changes();
        let may_have = has_others && attr.file_type != FileType::Directory && contract != Contract::Immutable;
        may_have && *self.0.lock().unwrap_or_else(PoisonError::into_inner) > asked
    }
}
