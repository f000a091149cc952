//! Mapping of credentials to the identities for which the back end checks permissions.

use std::sync::Arc;

use quick_cache::sync::Cache;
use tombolo_core::{Error, Identity, Result, Squash};
use tombolo_host_links::server::IdentityPolicy;
use tombolo_host_rpc::server::{Origin, Peer};
use tombolo_wire_rpc::{AuthSys, Credential, GIDS_MAX};

use super::claims::Claims;
use super::groups::Groups;

/// Maximum number of cached group lists.
const LISTS_MAX: usize = 1024;

/// Mapper of credentials to identities, with a cache of group lists.
#[derive(Debug)]
pub struct Identities {
    lists: Cache<Arc<[u32]>, Arc<[u32]>>,
    groups: Option<Groups>,
    claims: Option<Claims>,
}

impl Identities {
    /// Creates a mapper. With `groups`, supplementary groups are looked up, not taken from the credential.
    #[must_use]
    pub fn new(groups: Option<Groups>) -> Self {
        Self { lists: Cache::new(LISTS_MAX), groups, claims: None }
    }

    /// Restricts network callers to the identities that their certificates allow, if there are `claims`.
    #[must_use]
    pub fn under(self, claims: Option<Claims>) -> Self {
        Self { claims, ..self }
    }

    /// Returns the identity of the caller with this credential. Waits only for a group look-up. Fails with
    /// [`Error::WouldBlock`] if that look-up cannot be started, and with [`Error::NotPermitted`] if the
    /// identity policy of the caller's link does not allow the identity.
    pub async fn identity(
        &self,
        squash: Squash,
        credential: &Credential<'_>,
        peer: &Peer,
    ) -> Result<Identity> {
        match &peer.origin {
            Origin::Link(link) if !link.identity_policy.allows_any() => {
                return self.under_policy(squash, credential, &link.identity_policy);
            }
            Origin::Network(_) if !squash.takes_all() => {
                if let Some(claims) = &self.claims {
                    let named = self.named(credential);
                    let claimed = claims.identity(peer.certificate.get().map(AsRef::as_ref), named);
                    // Claimed groups are checked by the rules, so none are looked up.
                    return Ok(claimed.map_or(anonymous(squash), |claimed| self.within(squash, claimed)));
                }
            }
            _ => {}
        }
        let sys = match credential {
            Credential::Sys(sys) if !squash.takes_all() => sys,
            _ => return Ok(anonymous(squash)),
        };
        let (uid, gid) = (squash.uid(sys.uid), squash.gid(sys.gid));
        let groups = match &self.groups {
            None => self.credential_groups(squash, sys),
            Some(groups) => self.squashed(squash, groups.of(uid).await?),
        };
        Ok(Identity { uid, gid, groups })
    }

    /// Returns the identity that an AUTH_SYS credential names.
    fn named(&self, credential: &Credential<'_>) -> Option<Identity> {
        match credential {
            Credential::Sys(sys) => {
                Some(Identity { uid: sys.uid, gid: sys.gid, groups: self.shared(&sys.gids) })
            }
            _ => None,
        }
    }

    /// Squashes an identity that the caller may claim.
    fn within(&self, squash: Squash, Identity { uid, gid, groups }: Identity) -> Identity {
        let groups = groups.and_then(|groups| self.squashed(squash, groups));
        Identity { uid: squash.uid(uid), gid: squash.gid(gid), groups }
    }

    /// Returns the identity of a process under an identity policy. Claimed groups are checked against the
    /// kernel's, so none are looked up. Without an AUTH_SYS credential, returns the process's identity.
    fn under_policy(
        &self,
        squash: Squash,
        credential: &Credential<'_>,
        identity_policy: &IdentityPolicy,
    ) -> Result<Identity> {
        if squash.takes_all() {
            return Ok(anonymous(squash));
        }
        let named = self.named(credential).unwrap_or_default();
        let claimed = identity_policy.identity(named).ok_or(Error::NotPermitted)?;
        Ok(self.within(squash, claimed))
    }

    /// Returns the groups that the credential names, squashed; `None` if it names none.
    fn credential_groups(&self, squash: Squash, sys: &AuthSys<'_>) -> Option<Arc<[u32]>> {
        let mut groups = [0; GIDS_MAX];
        let groups = groups.get_mut(..sys.gids.len())?;
        groups.iter_mut().zip(&*sys.gids).for_each(|(to, gid)| *to = squash.gid(*gid));
        self.shared(groups)
    }

    /// Squashes groups; `None` if the list is empty.
    fn squashed(&self, squash: Squash, groups: Arc<[u32]>) -> Option<Arc<[u32]>> {
        if groups.iter().all(|&gid| squash.gid(gid) == gid) {
            return (!groups.is_empty()).then_some(groups);
        }
        let squashed: Vec<u32> = groups.iter().map(|&gid| squash.gid(gid)).collect();
        self.shared(&squashed)
    }

    /// Returns a list shared by all callers with these groups; `None` if there are no groups.
    fn shared(&self, groups: &[u32]) -> Option<Arc<[u32]>> {
        if groups.is_empty() {
            return None;
        }
        if let Some(list) = self.lists.get(groups) {
            return Some(list);
        }
        let list: Arc<[u32]> = groups.into();
        self.lists.insert(list.clone(), list.clone());
        Some(list)
    }
}

fn anonymous(squash: Squash) -> Identity {
    Identity { uid: squash.anonymous_uid, gid: squash.anonymous_gid, groups: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::{Answer, SquashMode};
    use tombolo_host_rpc::server::Transport;
    use tombolo_wire_rpc::Gids;

    fn sys(uid: u32, gid: u32, groups: &[u32]) -> Credential<'static> {
        let gids = Gids::new(groups).expect("not more than sixteen");
        Credential::Sys(AuthSys { stamp: 1, machine: b"host", uid, gid, gids })
    }

    fn identity(identities: &Arc<Identities>, mode: SquashMode, credential: Credential<'static>) -> Identity {
        let squash = Squash { mode, anonymous_uid: 99, anonymous_gid: 98 };
        let identities = identities.clone();
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), Transport::Tcp);
        Answer::later(async move { identities.identity(squash, &credential, &peer).await })
            .wait()
            .expect("an identity")
    }

    fn shown(identity: &Identity) -> (u32, u32, Vec<u32>) {
        (identity.uid, identity.gid, identity.groups().to_vec())
    }

    #[test]
    fn squashing_applies_to_root_or_all() {
        let identities = Arc::new(Identities::new(None));
        let as_seen = |mode, credential| shown(&identity(&identities, mode, credential));
        let (root, user) = (sys(0, 0, &[0, 5]), sys(1000, 100, &[0, 7]));
        assert_eq!(as_seen(SquashMode::None, root), (0, 0, vec![0, 5]));
        assert_eq!(as_seen(SquashMode::None, user), (1000, 100, vec![0, 7]));
        assert_eq!(as_seen(SquashMode::Root, root), (99, 98, vec![98, 5]));
        assert_eq!(as_seen(SquashMode::Root, user), (1000, 100, vec![98, 7]));
        assert_eq!(as_seen(SquashMode::Root, sys(1000, 0, &[])), (1000, 98, vec![]));
        assert_eq!(as_seen(SquashMode::All, root), (99, 98, vec![]));
        assert_eq!(as_seen(SquashMode::All, user), (99, 98, vec![]));
        for mode in [SquashMode::None, SquashMode::Root, SquashMode::All] {
            assert_eq!(as_seen(mode, Credential::None), (99, 98, vec![]), "AUTH_NONE, {mode:?}");
        }
    }

    #[test]
    fn link_callers_are_their_process_before_squashing() {
        use tombolo_host_links::server::IdentityPolicy;
        let identities = Identities::new(None);
        let identity_policy =
            |uid, gid, groups: &[u32]| IdentityPolicy::Own { uid, gid, groups: groups.into() };
        let seen = |mode, credential: Credential<'static>, identity_policy: &IdentityPolicy| {
            let squash = Squash { mode, anonymous_uid: 99, anonymous_gid: 98 };
            identities
                .under_policy(squash, &credential, identity_policy)
                .map(|identity| shown(&identity))
                .ok()
        };
        let joe = identity_policy(1000, 100, &[7]);
        let itself = Some((1000, 100, vec![7]));
        for mode in [SquashMode::None, SquashMode::Root] {
            assert_eq!(seen(mode, sys(0, 0, &[0]), &joe), itself, "root is the process itself");
            assert_eq!(seen(mode, Credential::None, &joe), itself, "and so is AUTH_NONE");
            assert_eq!(seen(mode, sys(1000, 7, &[100]), &joe), Some((1000, 7, vec![100])));
            for other in [sys(1001, 100, &[]), sys(1000, 0, &[]), sys(1000, 100, &[7, 4])] {
                assert_eq!(seen(mode, other, &joe), None, "{mode:?}");
            }
        }
        assert_eq!(seen(SquashMode::All, sys(1001, 5, &[4]), &joe), Some((99, 98, vec![])), "all are alike");
        let in_roots_group = identity_policy(1000, 0, &[0]);
        assert_eq!(seen(SquashMode::Root, sys(0, 0, &[]), &in_roots_group), Some((1000, 98, vec![98])));
    }

    #[test]
    fn a_group_list_is_stored_once() {
        let identities = Arc::new(Identities::new(None));
        let all: Vec<u32> = (1..=16).collect();
        let first = identity(&identities, SquashMode::Root, sys(1000, 100, &all)).groups.expect("groups");
        let second = identity(&identities, SquashMode::Root, sys(1001, 101, &all)).groups.expect("groups");
        assert!(Arc::ptr_eq(&first, &second));
        for n in 0..10 * LISTS_MAX as u32 {
            identity(&identities, SquashMode::Root, sys(1000, 100, &[n + 1]));
        }
        assert!(identities.lists.len() <= LISTS_MAX + LISTS_MAX / 2, "{}", identities.lists.len());
    }

    #[test]
    fn looked_up_groups_override_the_credential() {
        let identities = Arc::new(Identities::new(Some(Groups::new())));
        let root = identity(&identities, SquashMode::None, sys(0, 0, &[777]));
        assert!(root.in_group(0) && !root.in_group(777));
        let stranger = identity(&identities, SquashMode::None, sys(3_999_999_999, 100, &[777]));
        assert_eq!(shown(&stranger), (3_999_999_999, 100, vec![]));
        // The anonymous user's groups, not root's.
        let squashed = identity(&identities, SquashMode::Root, sys(0, 0, &[777]));
        assert_eq!((squashed.uid, squashed.gid, squashed.in_group(0)), (99, 98, false));
    }
}
