//! Mapping of callers to the anonymous user, as in NFS servers.

use crate::Identity;

/// The set of callers mapped to the anonymous user. [`NO_ID`] is mapped in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SquashMode {
    /// No callers.
    None,
    /// User 0 and group 0; others are unchanged.
    #[default]
    Root,
    /// All callers.
    All,
}

/// The squashing policy of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    /// Set of callers that are mapped.
    pub mode: SquashMode,
    /// User id to which callers are mapped.
    pub anonymous_uid: u32,
    /// Group id to which callers are mapped.
    pub anonymous_gid: u32,
}

/// An id that stands for no user and no group. The server never accepts it from a caller: setresuid(2) would
/// leave the server's own id unchanged.
pub const NO_ID: u32 = u32::MAX;

/// The ids of the user `nobody` on most Linux systems.
const NOBODY: u32 = 65_534;

impl Default for Squash {
    /// Maps root to the user `nobody`.
    fn default() -> Self {
        Self { mode: SquashMode::default(), anonymous_uid: NOBODY, anonymous_gid: NOBODY }
    }
}

impl Squash {
    /// The policy that maps no id except [`NO_ID`].
    pub const NONE: Squash = Squash { mode: SquashMode::None, anonymous_uid: NOBODY, anonymous_gid: NOBODY };

    /// Returns the effective identity of a caller. Allocates only if one of the groups is mapped.
    #[must_use]
    pub fn identity(&self, named: Identity) -> Identity {
        if self.takes_all() {
            return Identity { uid: self.anonymous_uid, gid: self.anonymous_gid, groups: None };
        }
        let groups = match named.groups {
            Some(groups) if groups.iter().any(|&group| self.gid(group) != group) => {
                Some(groups.iter().map(|&group| self.gid(group)).collect())
            }
            groups => groups,
        };
        Identity { uid: self.uid(named.uid), gid: self.gid(named.gid), groups }
    }

    /// Returns `true` if all callers have the same effective identity.
    #[inline]
    #[must_use]
    pub fn takes_all(&self) -> bool {
        self.mode == SquashMode::All
    }

    /// Maps a user id to the anonymous one, if the policy applies to it.
    #[inline]
    #[must_use]
    pub fn uid(&self, uid: u32) -> u32 {
        if self.applies_to(uid) { self.anonymous_uid } else { uid }
    }

    /// Maps a group id to the anonymous one, if the policy applies to it.
    #[inline]
    #[must_use]
    pub fn gid(&self, gid: u32) -> u32 {
        if self.applies_to(gid) { self.anonymous_gid } else { gid }
    }

    fn applies_to(&self, id: u32) -> bool {
        match self.mode {
            _ if id == NO_ID => true,
            SquashMode::None => false,
            SquashMode::Root => id == 0,
            SquashMode::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squash_maps_uid_gid_and_groups() {
        let named = |uid, gid, groups: &[u32]| Identity {
            uid,
            gid,
            groups: (!groups.is_empty()).then(|| groups.into()),
        };
        let of = |mode| Squash { mode, anonymous_uid: 99, anonymous_gid: 98 };
        let (root, user) = (named(0, 0, &[0, 5]), named(1000, 0, &[0, 7]));
        assert_eq!(of(SquashMode::None).identity(root.clone()), root);
        assert_eq!(of(SquashMode::Root).identity(root.clone()), named(99, 98, &[98, 5]));
        assert_eq!(of(SquashMode::Root).identity(user.clone()), named(1000, 98, &[98, 7]));
        assert_eq!(of(SquashMode::All).identity(user), named(99, 98, &[]));
        assert_eq!(Squash::NONE.identity(named(NO_ID, NO_ID, &[NO_ID])), named(65_534, 65_534, &[65_534]));
    }
}
