//! Which users become the anonymous one.

/// Who is not taken for whom they say they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whom {
    /// Everybody is believed, root too.
    Nobody,
    /// A client's root is not root here: user 0 and group 0 become the anonymous ones, others stay who they are.
    #[default]
    Root,
    /// All are anonymous.
    All,
}

/// How callers are squashed, and into whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    /// Who.
    pub whom: Whom,
    /// The anonymous user.
    pub anonymous_uid: u32,
    /// The anonymous group.
    pub anonymous_gid: u32,
}

/// Stands for no user and no group. Whoever says that it is theirs says nothing: to the kernel it would mean to leave an
/// id as it is (setresuid(2)), which is ours.
pub const NO_ID: u32 = u32::MAX;

/// The ids of "nobody" on all Linux systems.
const NOBODY: u32 = 65_534;

impl Default for Squash {
    /// Root becomes nobody.
    fn default() -> Self {
        Self { whom: Whom::default(), anonymous_uid: NOBODY, anonymous_gid: NOBODY }
    }
}

impl Squash {
    /// Whether all callers are the same to us.
    #[inline]
    pub(super) fn takes_all(&self) -> bool {
        self.whom == Whom::All
    }

    #[inline]
    pub(super) fn uid(&self, uid: u32) -> u32 {
        if self.applies_to(uid) { self.anonymous_uid } else { uid }
    }

    #[inline]
    pub(super) fn gid(&self, gid: u32) -> u32 {
        if self.applies_to(gid) { self.anonymous_gid } else { gid }
    }

    fn applies_to(&self, id: u32) -> bool {
        match self.whom {
            _ if id == NO_ID => true,
            Whom::Nobody => false,
            Whom::Root => id == 0,
            Whom::All => true,
        }
    }
}
