//! Which users become the anonymous one, in the words of NFS servers.

use crate::Identity;

/// Which callers become the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SquashMode {
    /// No caller.
    None,
    /// A client's root is not root here: user 0 and group 0 become the anonymous ones, others stay.
    #[default]
    Root,
    /// All are anonymous.
    All,
}

/// Which callers are squashed, and into which user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    /// Which callers.
    pub mode: SquashMode,
    /// The anonymous user.
    pub anonymous_uid: u32,
    /// The anonymous group.
    pub anonymous_gid: u32,
}

/// Stands for no user and no group. A caller that claims it claims nothing: to the kernel it would mean to
/// leave an id as it is (setresuid(2)), which is ours.
pub const NO_ID: u32 = u32::MAX;

/// The ids of the user `nobody` on all Linux systems.
const NOBODY: u32 = 65_534;

impl Default for Squash {
    /// Root becomes the user `nobody`.
    fn default() -> Self {
        Self { mode: SquashMode::default(), anonymous_uid: NOBODY, anonymous_gid: NOBODY }
    }
}

impl Squash {
    /// No caller is squashed.
    pub const NONE: Squash = Squash { mode: SquashMode::None, anonymous_uid: NOBODY, anonymous_gid: NOBODY };

    /// The identity that a caller gets. Allocates only if one of the groups becomes another.
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

    /// Whether all callers are the same to us.
    #[inline]
    #[must_use]
    pub fn takes_all(&self) -> bool {
        self.mode == SquashMode::All
    }

    /// What becomes of a user.
    #[inline]
    #[must_use]
    pub fn uid(&self, uid: u32) -> u32 {
        if self.applies_to(uid) { self.anonymous_uid } else { uid }
    }

    /// What becomes of a group.
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
    fn root_or_all_become_the_anonymous_one_in_every_place_that_names_them() {
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
