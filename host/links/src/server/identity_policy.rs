//! Identities under which a link's requests may be performed.

use std::sync::Arc;

use super::service::{AllowedIdentities, Peer};
use tombolo_core::Identity;

/// Rule that permits or replaces the identity that a request names; see [`identity`](Self::identity).
#[derive(Clone, Debug)]
pub enum IdentityPolicy {
    /// Any identity named by a request.
    Any,
    /// Only the user of the peer's process, with its own groups.
    Own {
        /// User of the process.
        uid: u32,
        /// Group of the process.
        gid: u32,
        /// Supplementary groups.
        groups: Arc<[u32]>,
    },
}

impl IdentityPolicy {
    /// Returns the policy for a peer. A peer on another kernel has no credentials, but was given the memory
    /// by the operator, and is trusted.
    #[must_use]
    pub fn of(peer: &Peer) -> Self {
        match peer.credentials.as_ref().map(|verified| (verified.process, &verified.identities)) {
            None | Some((_, AllowedIdentities::Any)) => Self::Any,
            Some((process, AllowedIdentities::Own { groups })) => {
                Self::Own { uid: process.uid, gid: process.gid, groups: groups.clone() }
            }
        }
    }

    /// Returns `true` if every identity is allowed.
    #[must_use]
    pub fn allows_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    /// Returns the identity that performs a request naming `named`, or `None` if it is not permitted. Under
    /// [`Own`](Self::Own) root stands for the peer's process itself: for a mount, the kernel sends requests
    /// as root that no user caused (such as a close). They are performed with the process's own rights.
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
    fn own_identity_policy_allows_only_own_groups() {
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
