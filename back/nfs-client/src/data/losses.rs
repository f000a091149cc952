//! Writes that failed after they were answered.

use tombolo_core::{Error, Result};

use super::copy_of_error::copy_of;

/// What failed, and who was told. Whoever next writes or makes the file stable is told, and so is everyone who was waiting
/// when it failed; then it is over.
#[derive(Debug, Default)]
pub(super) struct Losses {
    count: u64,
    reported: u64,
    last: Option<Error>,
}

/// How many losses somebody knows of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen(u64);

impl Losses {
    /// Something was lost.
    pub(super) fn add(&mut self, error: Error) {
        self.count += 1;
        // The first is the cause, the next may follow from it.
        if self.last.is_none() || self.reported + 1 == self.count {
            self.last = Some(error);
        }
    }

    /// Nobody was told yet of the last.
    pub(super) fn is_unreported(&self) -> bool {
        self.count > self.reported
    }

    /// To be asked by one who begins to wait.
    pub(super) fn seen(&self) -> Seen {
        Seen(self.reported)
    }

    /// Tells of what was lost since `seen`.
    pub(super) fn report(&mut self, seen: Seen) -> Result<()> {
        if self.count <= seen.0 {
            return Ok(());
        }
        self.reported = self.count;
        Err(self.last.as_ref().map_or(Error::Io { source: None }, copy_of))
    }
}
