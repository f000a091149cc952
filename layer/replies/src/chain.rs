//! Linked lists of a shard's answered entries, oldest first: one of all, and one for each client.

/// Neighbours of an entry in one list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    older: Option<u32>,
    newer: Option<u32>,
}

/// Both ends of a list, whose entries refer to each other by [`Links`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    pub oldest: Option<u32>,
    newest: Option<u32>,
}

/// A collection whose elements are linked, each identified by a number. Unused numbers have no links.
pub(super) trait Linked {
    fn links(&mut self, index: u32) -> Option<&mut Links>;
}

impl Chain {
    /// Appends an entry that is not in the list, as the newest.
    pub fn push(&mut self, entries: &mut impl Linked, index: u32) {
        if let Some(links) = entries.links(index) {
            *links = Links { older: self.newest, newer: None };
        }
        match self.newest.and_then(|newest| entries.links(newest)) {
            Some(links) => links.newer = Some(index),
            None => self.oldest = Some(index),
        }
        self.newest = Some(index);
    }

    pub fn remove(&mut self, entries: &mut impl Linked, index: u32) {
        let Some(Links { older, newer }) = entries.links(index).map(std::mem::take) else { return };
        match older.and_then(|older| entries.links(older)) {
            Some(links) => links.newer = newer,
            None => self.oldest = newer,
        }
        match newer.and_then(|newer| entries.links(newer)) {
            Some(links) => links.older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Linked for Vec<Links> {
        fn links(&mut self, index: u32) -> Option<&mut Links> {
            self.get_mut(index as usize)
        }
    }

    fn order(chain: Chain, entries: &[Links]) -> Vec<u32> {
        std::iter::successors(chain.oldest, |&index| entries[index as usize].newer).collect()
    }

    #[test]
    fn entries_leave_from_both_ends_and_the_middle() {
        let mut entries = vec![Links::default(); 5];
        let mut chain = Chain::default();
        (0..5).for_each(|index| chain.push(&mut entries, index));
        chain.remove(&mut entries, 2);
        assert_eq!(order(chain, &entries), [0, 1, 3, 4]);
        chain.remove(&mut entries, 0);
        chain.remove(&mut entries, 4);
        assert_eq!(order(chain, &entries), [1, 3]);
        chain.push(&mut entries, 0);
        assert_eq!(order(chain, &entries), [1, 3, 0]);
        [1, 0, 3].into_iter().for_each(|index| chain.remove(&mut entries, index));
        assert!(order(chain, &entries).is_empty());
        chain.push(&mut entries, 4);
        assert_eq!(order(chain, &entries), [4]);
    }
}
