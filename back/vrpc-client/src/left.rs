//! What a server is to be told that nobody needs any more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{File, NodeId};

/// Something that nobody needs any more, in the numbers of the server of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    /// Whose numbers these are.
    pub(crate) link: u32,
    pub(crate) what: What,
}

/// What it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Opening(File),
    LookUps(NodeId, u64),
}

/// What the server of a link that is being made is told once that is the session's.
#[derive(Debug, Default)]
pub(crate) struct Left(Mutex<Vec<Gone>>);

impl Left {
    pub(crate) fn put(&self, gone: Gone) {
        self.list().push(gone);
    }

    /// What the server of that link is to be told. What a former one was to be told goes: it is not there any more.
    pub(crate) fn take(&self, link: u32) -> Vec<Gone> {
        let mut list = self.list();
        let (later, now) = std::mem::take(&mut *list).into_iter().partition(|gone| gone.link > link);
        *list = later;
        now.into_iter().filter(|gone: &Gone| gone.link == link).collect()
    }

    fn list(&self) -> MutexGuard<'_, Vec<Gone>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_told_what_is_its_own() {
        let left = Left::default();
        let gone = |link| Gone { link, what: What::LookUps(NodeId(7), 1) };
        [2, 3, 4].into_iter().for_each(|link| left.put(gone(link)));
        assert_eq!(left.take(3), [gone(3)]);
        assert_eq!(left.take(2), []);
        assert_eq!(left.take(4), [gone(4)]);
        assert_eq!(left.take(4), []);
    }
}
