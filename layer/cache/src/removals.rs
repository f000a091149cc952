//! Removals, through this cache, of names whose targets were uncertain: any file may have lost a link, so
//! link counts requested before are not used ([`Object::believed`](crate::object::Object::believed)).

use std::sync::Mutex;
use std::time::Instant;

use tombolo_core::fs::{Attr, FileType};
use tombolo_core::lock;

use crate::options::Contract;

/// Time of the last removal of a name whose target was uncertain. Where no client of the origin but this
/// cache creates names, only a file with several names is concerned.
#[derive(Debug, Default)]
pub(crate) struct UnknownRemoval(Mutex<Option<Instant>>);

impl UnknownRemoval {
    pub(crate) fn happened(&self) {
        *lock(&self.0) = Some(Instant::now());
    }

    /// Returns `true` if the link count in `attr`, requested at `asked`, may include the removed name.
    pub(crate) fn concerns(&self, attr: &Attr, asked: Option<Instant>, contract: Contract) -> bool {
        let has_others = attr.nlink > 1 || !contract.tells_changes();
        let may_have = has_others && attr.file_type != FileType::Directory && contract != Contract::Immutable;
        may_have && *lock(&self.0) > asked
    }
}
