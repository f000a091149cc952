//! Changes at risk when a connection is lost: acknowledged, but not durable.

/// Counters of changes, guarded by the lock of the requests.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// Number of changes acknowledged without being durable.
    answered: u64,
    /// Number of these changes that a flush has since made durable, or whose loss is recorded in `lost`.
    durable: u64,
    /// `true` if changes may be lost and no flush has reported it yet.
    lost: bool,
}

impl Unflushed {
    /// Counts an acknowledged change that is not durable.
    pub(crate) fn changed(&mut self) {
        self.answered += 1;
    }

    /// Returns the number of changes acknowledged without being durable: a flush sent now makes them durable.
    pub(crate) fn answered(&self) -> u64 {
        self.answered
    }

    /// Records the reply to a flush that was sent after `change_count` changes were acknowledged.
    pub(crate) fn flushed(&mut self, change_count: u64) {
        self.durable = self.durable.max(change_count);
    }

    /// Records the loss of the connection, after which another server process may answer.
    pub(crate) fn connection_lost(&mut self) {
        self.lost |= self.durable < self.answered;
        self.durable = self.answered;
    }

    /// Returns `true` if a flush has to fail; only once per loss.
    pub(crate) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_unflushed_changes_are_reported_once() {
        let mut unflushed = Unflushed::default();
        unflushed.connection_lost();
        assert!(!unflushed.take_loss());
        unflushed.changed();
        let change_count = unflushed.answered();
        unflushed.flushed(change_count);
        unflushed.connection_lost();
        assert!(!unflushed.take_loss());
        let change_count = unflushed.answered();
        unflushed.changed();
        unflushed.flushed(change_count);
        unflushed.connection_lost();
        assert!(unflushed.take_loss(), "it was answered after the flush had begun");
        assert!(!unflushed.take_loss());
    }
}
