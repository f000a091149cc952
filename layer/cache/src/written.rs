//! Local writes to a file under *exclusive*: only the written parts become invalid.
//!
//! From the start of a write, the written part is read from the origin; the remainder stays valid. Once no
//! write or opening for writing is left and the new version is known, written parts are cached again on use.
//! If parts do not suffice, the whole file is invalid until the last opening for writing ends: for example if
//! a write fails, the size changes, only the origin knows the offset of an append, or other processes read
//! the data by their own descriptors. After a write without an answer, which the origin may still perform,
//! the file is treated for as long as the cache runs as if other clients changed it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_core::fs::{Attr, FileType, WeakAttr};
use tombolo_core::{Error, Result};

use crate::cache::Cache;
use crate::data::Data;
use crate::object::{Object, State};
use crate::options::Contract;
use crate::sharing::Extents;

/// Parts of a file written since the version of its data.
#[derive(Debug, Default)]
pub(crate) enum Written {
    #[default]
    Nothing,
    /// These parts; the size is unchanged.
    Parts(Extents),
    /// The whole file, or unknown parts.
    All,
}

/// A write in progress. It counts as an opening for writing.
pub(crate) struct UnderWay {
    object: Arc<Object>,
    ending: Ending,
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Taken,
    Failed,
    /// The origin may still perform the write.
    Unanswered,
}

impl State {
    /// Returns `true` if a read of this range must bypass the cache.
    pub(crate) fn is_read_past(&mut self, contract: Contract, range: &Range<u64>) -> bool {
        if contract != Contract::Exclusive {
            if matches!(self.written, Written::Parts(_)) {
                self.lose();
            }
            return self.writers > 0;
        }
        self.settle_written();
        match &self.written {
            Written::Nothing => false,
            Written::Parts(parts) => parts.overlaps(range),
            Written::All => self.writers > 0,
        }
    }

    /// Returns `true` if the file is open for writing, or was written locally since the version of its data.
    pub(crate) fn is_written_here(&self) -> bool {
        self.writers > 0 || !matches!(self.written, Written::Nothing)
    }

    /// Returns `true` if the cached data are current except for written parts.
    pub(crate) fn is_written_in_parts(&self) -> bool {
        matches!(self.written, Written::Parts(_)) && self.data.is_some()
    }

    /// Returns `true` if attributes received while parts are written differ by local writes alone, so the
    /// cached data stay valid. A change of the size drops them.
    pub(crate) fn expects(&mut self, attr: &Attr, contract: Contract) -> bool {
        let size = self.data.as_ref().map(|data| data.version().size);
        if !matches!(self.written, Written::Parts(_)) {
            return false;
        }
        if contract != Contract::Exclusive || size != Some(attr.size) {
            self.lose();
            return false;
        }
        true
    }

    /// Drops the data, as the origin's contents are unknown.
    pub(crate) fn lose(&mut self) {
        self.changed();
        self.written = if self.writers > 0 { Written::All } else { Written::Nothing };
    }

    /// Records a local change of the size, which invalidates the data of a file with local writes.
    pub(crate) fn resized(&mut self) {
        if self.writers > 0 || !matches!(self.written, Written::Nothing) {
            self.lose();
        }
    }

    /// Records an eviction of data. If parts were written, data fetched later may include the writes or not,
    /// so the whole file becomes invalid.
    pub(crate) fn evicted(&mut self, generation: u64) {
        let is_in_parts = self.is_written_in_parts();
        if self.data.take_if(|data| data.file.generation() == generation).is_some() && is_in_parts {
            self.lose();
        }
    }

    /// Records the end of a write or of an opening for writing. Attributes requested after the last write
    /// stay valid: a close changes nothing at the origin.
    pub(crate) fn end_writing(&mut self) {
        self.writers = self.writers.saturating_sub(1);
        if self.writers == 0 && matches!(self.written, Written::All) {
            self.lose();
        }
    }

    /// Returns `true` if the file certainly has this version, and is neither being written nor held.
    pub(crate) fn is_at_rest(&mut self, version: &WeakAttr) -> bool {
        self.settle_written();
        let is_known = self.asked.is_some() && self.version() == *version;
        is_known && self.writers == 0 && matches!(self.written, Written::Nothing) && !self.is_held()
    }

    /// Assigns the new version to the data, and drops the written parts, once no write or opening for writing
    /// is left and the attributes were requested after the last. Drops all data if the size has changed. Does
    /// nothing while a written part is being fetched, as the fetched data may be older.
    fn settle_written(&mut self) {
        let Written::Parts(parts) = &self.written else { return };
        let version = self.version();
        let Some(data) = self.data.clone() else { return self.lose() };
        if self.writers > 0 || self.asked.is_none() {
            return;
        }
        if data.version().size != version.size {
            return self.lose();
        }
        if data.forget(parts.as_slice(), version) {
            self.written = Written::Nothing;
        }
    }

    /// Records the start of a write to a part. Returns `false` if parts do not suffice.
    fn begin_part(&mut self, range: Range<u64>) -> bool {
        let version = self.version();
        let Some(data) = self.data.as_ref() else { return false };
        let is_known = match self.written {
            Written::Nothing => self.asked.is_some() && data.version() == version,
            Written::Parts(_) => true,
            Written::All => false,
        };
        if !is_known
            || self.is_held()
            || data.is_lent.load(Ordering::Relaxed)
            || range.end > data.version().size
        {
            return false;
        }
        // The database does not record written parts, so a later process must not use these data.
        data.set_written();
        if let Written::Nothing = self.written {
            self.written = Written::Parts(Extents::default());
        }
        self.recency = None;
        let Written::Parts(parts) = &mut self.written else { return false };
        parts.add(range.clone());
        // With too many parts, `add` ignores a range that touches none of them: none of it is present.
        range.is_empty() || parts.overlaps(&range)
    }
}

impl Object {
    /// Returns `true` if these data are current except for written parts.
    pub(crate) fn is_written_in_parts(&self, data: &Arc<Data>) -> bool {
        let state = self.state();
        state.is_written_in_parts() && state.data.as_ref().is_some_and(|known| Arc::ptr_eq(known, data))
    }
}

impl Cache {
    /// Records the start of a write, and its range if that is known.
    pub(crate) fn begin_write(&self, object: &Arc<Object>, range: Option<Range<u64>>) -> UnderWay {
        let contract = self.options_of(object).contract;
        let may_be_told_apart = contract == Contract::Exclusive
            && object.file_type == FileType::Regular
            && self.borrower.get().is_none();
        let mut state = object.state();
        state.writers += 1;
        if !range.is_some_and(|range| may_be_told_apart && state.begin_part(range)) {
            state.lose();
        }
        drop(state);
        UnderWay { object: object.clone(), ending: Ending::Unanswered }
    }
}

impl UnderWay {
    pub(crate) fn end<T>(mut self, outcome: &Result<T>) {
        self.ending = match outcome {
            Ok(_) => Ending::Taken,
            Err(error) if is_unanswered(error) => Ending::Unanswered,
            Err(_) => Ending::Failed,
        };
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.ending == Ending::Unanswered {
            self.object.set_unanswered();
        }
        let mut state = self.object.state();
        if self.ending != Ending::Taken {
            state.lose();
        }
        // The write may have changed size and times.
        state.asked = None;
        state.changed_here();
        state.end_writing();
    }
}

/// Returns `true` if the origin may still perform a request that failed with this error.
pub(crate) fn is_unanswered(error: &Error) -> bool {
    matches!(error, Error::TimedOut | Error::Interrupted | Error::Disconnected)
}
