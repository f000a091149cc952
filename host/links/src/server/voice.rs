//! In whose name the requests of a link may be performed.

use std::sync::Arc;

use super::service::{Peer, SpeaksFor};
use tombolo_core::Identity;

/// In whose name the requests of a link may be performed.
#[derive(Clone, Debug)]
pub enum Voice {
    /// In whatever name they bear.
    Anybodys,
    /// Only in that of the process that has the link.
    Its {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Beside `gid`.
        groups: Arc<[u32]>,
    },
}

impl Voice {
    /// What the host knows of the peer. Of one that is on another kernel it knows nothing, and the operator has given it the memory.
    #[must_use]
    pub fn of(peer: &Peer) -> Self {
        match peer.credentials.as_ref().map(|standing| (standing.process, &standing.speaks_for)) {
            None | Some((_, SpeaksFor::Anybody)) => Self::Anybodys,
            Some((process, SpeaksFor::Itself { groups })) => {
                Self::Its { uid: process.uid, gid: process.gid, groups: groups.clone() }
            }
        }
    }

    /// Whether every name is believed.
    #[must_use]
    pub fn is_anybodys(&self) -> bool {
        matches!(self, Self::Anybodys)
    }

    /// Who acts when a request bears this name; none if nobody may. Root is the process itself: its kernel asks for some things
    /// in that name, of which nobody in particular is the cause (a close, say), and they are to be done with no more rights.
    #[must_use]
    pub fn identity(&self, named: Identity) -> Option<Identity> {
        let Self::Its { uid, gid, groups } = self else { return Some(named) };
        if named.uid == 0 {
            let groups = (!groups.is_empty()).then(|| groups.clone());
            return Some(Identity { uid: *uid, gid: *gid, groups });
        }
        let has = |group: u32| group == *gid || groups.contains(&group);
        let all = has(named.gid) && named.groups.iter().flat_map(|all| all.iter()).all(|&group| has(group));
        (named.uid == *uid && all).then_some(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(uid: u32, gid: u32, groups: &[u32]) -> Identity {
        Identity { uid, gid, groups: (!groups.is_empty()).then(|| groups.into()) }
    }

    #[test]
    fn a_process_acts_as_itself_with_groups_that_it_has_and_as_nobody_else() {
        let voice = Voice::Its { uid: 1000, gid: 100, groups: [4, 24].into() };
        for own in [named(1000, 100, &[]), named(1000, 24, &[100, 4]), named(1000, 4, &[24])] {
            assert_eq!(voice.identity(own.clone()), Some(own));
        }
        for other in [named(1001, 100, &[]), named(1000, 0, &[]), named(1000, 100, &[4, 27])] {
            assert_eq!(voice.identity(other), None);
        }
        assert_eq!(voice.identity(named(0, 0, &[0])), Some(named(1000, 100, &[4, 24])), "never root");
    }

    #[test]
    fn whoever_is_believed_acts_as_it_says() {
        assert_eq!(Voice::Anybodys.identity(named(0, 0, &[])), Some(named(0, 0, &[])));
    }
}
