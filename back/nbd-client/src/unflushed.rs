//! What a lost connection may have cost: changes that were answered and not made durable.

/// Counts changes; guarded by the lock of the requests.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// Changes that were answered.
    answered: u64,
    /// So many of them are durable.
    durable: u64,
    /// Some may be lost, and that was not told yet.
    lost: bool,
}

impl Unflushed {
    /// A change that is not durable was answered.
    pub(crate) fn changed(&mut self) {
        self.answered += 1;
    }

    /// What a flush that is sent now will make durable.
    pub(crate) fn mark(&self) -> u64 {
        self.answered
    }

    /// A flush with this mark was answered.
    pub(crate) fn flushed(&mut self, mark: u64) {
        self.durable = self.durable.max(mark);
    }

    /// The connection is lost: another server process may answer from now on.
    pub(crate) fn connection_lost(&mut self) {
        self.lost |= self.durable < self.answered;
        self.durable = self.answered;
    }

    /// Whether a flush has to fail, which is told once.
    pub(crate) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_answered_and_not_flushed_is_lost_and_that_is_told_once() {
        let mut unflushed = Unflushed::default();
        unflushed.connection_lost();
        assert!(!unflushed.take_loss());
        unflushed.changed();
        let mark = unflushed.mark();
        unflushed.flushed(mark);
        unflushed.connection_lost();
        assert!(!unflushed.take_loss());
        let mark = unflushed.mark();
        unflushed.changed();
        unflushed.flushed(mark);
        unflushed.connection_lost();
        assert!(unflushed.take_loss(), "it was answered after the flush had begun");
        assert!(!unflushed.take_loss());
    }
}
