//! The length of a file's complete prefix.

use std::collections::BTreeMap;

/// A record of completed pieces, in any order.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    complete: u64,
    /// Completed pieces after a gap: first byte, and the byte after the last. Their number grows while an
    /// earlier piece is in flight.
    beyond: BTreeMap<u64, u64>,
}

impl Prefix {
    /// Creates a record with everything before `complete` done.
    pub fn starting_at(complete: u64) -> Self {
        Self { complete, beyond: BTreeMap::new() }
    }

    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Records the bytes from `start` to `end` as done. Pieces do not overlap.
    pub fn done(&mut self, start: u64, end: u64) {
        if start > self.complete {
            self.beyond.insert(start, end);
            return;
        }
        self.complete = self.complete.max(end);
        while let Some(entry) = self.beyond.first_entry() {
            if *entry.key() > self.complete {
                break;
            }
            self.complete = self.complete.max(entry.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ends_at_the_first_gap() {
        let mut prefix = Prefix::starting_at(10);
        prefix.done(20, 30);
        prefix.done(40, 50);
        assert_eq!(prefix.complete(), 10);
        prefix.done(10, 20);
        assert_eq!(prefix.complete(), 30);
        prefix.done(30, 40);
        assert_eq!((prefix.complete(), prefix.beyond.len()), (50, 0));
    }
}
