//! Failures of writes that were already answered.

use tombolo_core::{Error, Result};

use super::copy_of_error::copy_of;

/// Counts of failures and of those already reported. The next write or flush reports a failure, and so do all
/// writes and flushes that were waiting when it occurred.
#[derive(Debug, Default)]
pub(super) struct Losses {
    count: u64,
    reported: u64,
    /// First of the unreported failures; without unreported ones, the first of those reported last.
    cause: Option<Error>,
}

/// Number of losses reported when an operation began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported(u64);

impl Losses {
    /// Records the failure of a write that was already answered.
    pub(super) fn add(&mut self, error: Error) {
        self.count += 1;
        // The first unreported failure is retained, as it causes those that follow.
        if self.cause.is_none() || self.reported + 1 == self.count {
            self.cause = Some(error);
        }
    }

    pub(super) fn is_unreported(&self) -> bool {
        self.count > self.reported
    }

    /// Returns the number of reported losses; call it before a wait.
    pub(super) fn reported(&self) -> Reported {
        Reported(self.reported)
    }

    /// Fails with the cause if a loss was unreported at `before` or has occurred since; all losses then count
    /// as reported.
    pub(super) fn report(&mut self, before: Reported) -> Result<()> {
        if self.count <= before.0 {
            return Ok(());
        }
        self.reported = self.count;
        Err(self.cause.as_ref().map_or(Error::Io { source: None }, copy_of))
    }
}
