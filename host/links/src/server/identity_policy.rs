//! The identities under which the requests of a link may be performed.

use std::sync::Arc;

use super::service::{AllowedIdentities, Peer};
use tombolo_core::Identity;

/// The identities under which the requests of a link may be performed.
#[derive(Clone, Debug)]
pub enum IdentityPolicy {
    /// Any that a request names.
    Any,
    /// Only that of the process that has the link.
    Own {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Beside `gid`.
        groups: Arc<[u32]>,
    },
}

impl IdentityPolicy {
    /// By what the host knows of the peer. Of one on another kernel it knows nothing, and the operator has
    /// given it the memory.
    #[must_use]
    pub fn of(peer: &Peer) -> Self {
        match peer.credentials.as_ref().map(|standing| (standing.process, &standing.identities)) {
            None | Some((_, AllowedIdentities::Any)) => Self::Any,
            Some((process, AllowedIdentities::Own { groups })) => {
                Self::Own { uid: process.uid, gid: process.gid, groups: groups.clone() }
            }
        }
    }

    /// Whether every identity is allowed.
    #[must_use]
    pub fn allows_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    /// The identity that performs a request which names this one; none if it may not. Root stands for the
    /// process itself: its kernel sends some requests as root that no user caused (a close, say), and they
    /// are performed with no more rights.
    #[must_use]
    pub fn identity(&self, named: Identity) -> Option<Identity> {
        let Self::Own { uid, gid, groups } = self else { return Some(named) };
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
    fn a_process_acts_only_as_itself_with_groups_that_it_has() {
        let policy = IdentityPolicy::Own { uid: 1000, gid: 100, groups: [4, 24].into() };
        for own in [named(1000, 100, &[]), named(1000, 24, &[100, 4]), named(1000, 4, &[24])] {
            assert_eq!(policy.identity(own.clone()), Some(own));
        }
        for other in [named(1001, 100, &[]), named(1000, 0, &[]), named(1000, 100, &[4, 27])] {
            assert_eq!(policy.identity(other), None);
        }
        assert_eq!(policy.identity(named(0, 0, &[0])), Some(named(1000, 100, &[4, 24])), "never root");
    }

    #[test]
    fn any_identity_is_allowed_to_a_trusted_process() {
        assert_eq!(IdentityPolicy::Any.identity(named(0, 0, &[])), Some(named(0, 0, &[])));
    }
}
