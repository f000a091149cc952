//! Failures of writes that were already answered.

use tombolo_core::{Error, Result};

use super::copy_of_error::copy_of;

/// Failures of writes, and the reported ones. The next write or flush reports a failure, and so do all that
/// were waiting when it occurred.
#[derive(Debug, Default)]
pub(super) struct Losses {
    count: u64,
    reported: u64,
    last: Option<Error>,
}

/// How many losses were reported before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported(u64);

impl Losses {
    /// Something was lost.
    pub(super) fn add(&mut self, error: Error) {
        self.count += 1;
        // The first is the cause, the next may follow from it.
        if self.last.is_none() || self.reported + 1 == self.count {
            self.last = Some(error);
        }
    }

    /// The last is not reported yet.
    pub(super) fn is_unreported(&self) -> bool {
        self.count > self.reported
    }

    /// To be called before a wait begins.
    pub(super) fn reported(&self) -> Reported {
        Reported(self.reported)
    }

    /// Reports what was lost since `before`.
    pub(super) fn report(&mut self, before: Reported) -> Result<()> {
        if self.count <= before.0 {
            return Ok(());
        }
        self.reported = self.count;
        Err(self.last.as_ref().map_or(Error::Io { source: None }, copy_of))
    }
}
