//! Nodes and openings to be released at the server.

use std::sync::Mutex;

use tombolo_core::fs::{File, NodeId};
use tombolo_core::lock;

/// An unneeded node or opening, with the ids of one link's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    /// Number of the link on which the object is bound.
    pub(crate) link: u32,
    pub(crate) kind: ReleasedKind,
}

/// The released object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasedKind {
    Opening(File),
    /// A node, with the number of look-ups that the server has counted.
    LookUps(NodeId, u64),
}

/// Releases for the server of a link that is being established, sent once it is the current one.
#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue(Mutex<Vec<Released>>);

impl ReleaseQueue {
    pub(crate) fn put(&self, gone: Released) {
        lock(&self.0).push(gone);
    }

    /// Takes the releases for that link's server. Discards releases for former links, whose servers have
    /// ended the session.
    pub(crate) fn take(&self, link: u32) -> Vec<Released> {
        let mut list = lock(&self.0);
        let (later, now) = std::mem::take(&mut *list).into_iter().partition(|gone| gone.link > link);
        *list = later;
        now.into_iter().filter(|gone: &Released| gone.link == link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_told_what_is_its_own() {
        let releases = ReleaseQueue::default();
        let gone = |link| Released { link, kind: ReleasedKind::LookUps(NodeId(7), 1) };
        [2, 3, 4].into_iter().for_each(|link| releases.put(gone(link)));
        assert_eq!(releases.take(3), [gone(3)]);
        assert_eq!(releases.take(2), []);
        assert_eq!(releases.take(4), [gone(4)]);
        assert_eq!(releases.take(4), []);
    }
}
