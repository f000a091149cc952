//! Changes to nodes that were evicted afterwards.
//!
//! A reply concurrent with a change may describe the state before it. A known node has recorded the change
//! and rejects such a reply; a node evicted meanwhile, such as a file written and closed, would accept it.

use std::collections::HashMap;
use std::time::Instant;

use tombolo_wire_nfs3::FileHandleBuf;

/// Handles of nodes that changed and were evicted, with the time at which their last attributes were
/// received.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    heard: HashMap<FileHandleBuf, Instant>,
    /// Latest time of all nodes that are no longer listed individually; `None` if there are none.
    all: Option<Instant>,
}

/// Maximum number of individual entries, which are then combined into one time for all.
const EVICTED_MAX: usize = 1024;

impl Evicted {
    /// Adds an evicted node with the time at which its last attributes were received.
    pub(super) fn add(&mut self, handle: FileHandleBuf, heard: Instant) {
        if self.heard.len() >= EVICTED_MAX {
            self.all = self.all.max(self.heard.drain().map(|(_, heard)| heard).max());
        }
        self.heard.insert(handle, heard);
    }

    /// Returns `true` if a reply to a call made at `asked` is newer than the evicted attributes, or if none
    /// are known.
    pub(super) fn may_tell(&self, handle: &FileHandleBuf, asked: Instant) -> bool {
        let heard = self.heard.get(handle).copied().max(self.all);
        heard.is_none_or(|heard| asked >= heard)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tombolo_wire_nfs3::FileHandle;

    use super::*;

    #[test]
    fn evicted_handles_count_as_changed_last() {
        let start = Instant::now();
        let handle = |number: usize| FileHandle::new(&number.to_be_bytes()).expect("short").to_owned();
        let at = |number: usize| start + Duration::from_millis(number as u64);
        let mut evicted = Evicted::default();
        for number in 1..=EVICTED_MAX {
            evicted.add(handle(number), at(number));
        }
        assert!(!evicted.may_tell(&handle(5), at(4)) && evicted.may_tell(&handle(5), at(5)));
        assert!(evicted.may_tell(&handle(0), start), "never forgotten");
        evicted.add(handle(0), at(0));
        assert_eq!(evicted.heard.len(), 1);
        assert!(!evicted.may_tell(&handle(5), at(5)) && evicted.may_tell(&handle(5), at(EVICTED_MAX)));
    }
}
