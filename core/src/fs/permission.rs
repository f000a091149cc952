//! POSIX and Linux permission rules, for a file system that checks permissions itself.

use super::{AccessMask, Attr, Mode};
use crate::{Error, Identity, Result};

/// Owner and mode of a node: the inputs of a permission check in the absence of an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owning group.
    pub gid: u32,
    /// Permission bits of the node.
    pub mode: Mode,
    /// `true` for a directory, which the superuser can search without an execute bit.
    pub is_directory: bool,
}

impl From<&Attr> for Ownership {
    fn from(attr: &Attr) -> Self {
        let is_directory = attr.file_type == super::FileType::Directory;
        Self { uid: attr.uid, gid: attr.gid, mode: attr.mode, is_directory }
    }
}

impl Ownership {
    /// Fails with `AccessDenied` unless `identity` has all of `mask`. `by_list` decides for users other than
    /// the superuser where an access control list extends the mode.
    pub fn check(
        &self,
        identity: &Identity,
        mask: AccessMask,
        by_list: Option<impl FnOnce(u8) -> bool>,
    ) -> Result<()> {
        let (bits, wanted) = (self.mode.bits(), mask.bits());
        let allowed = match by_list {
            // The superuser needs an execute bit to execute a file.
            _ if identity.is_root() => {
                !mask.contains(AccessMask::EXECUTE) || self.is_directory || bits & 0o111 != 0
            }
            Some(by_list) => by_list(wanted),
            None => {
                let class = match () {
                    () if identity.uid == self.uid => bits >> 6,
                    () if identity.in_group(self.gid) => bits >> 3,
                    () => bits,
                };
                class as u8 & wanted == wanted
            }
        };
        if allowed { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Checks access by the mode alone, for a node without an access control list.
    pub fn check_mode(&self, identity: &Identity, mask: AccessMask) -> Result<()> {
        self.check(identity, mask, None::<fn(u8) -> bool>)
    }

    /// Fails with `NotPermitted` unless `identity` is the owner, or the superuser.
    pub fn check_owner(&self, identity: &Identity) -> Result<()> {
        permitted(identity.is_root() || identity.uid == self.uid)
    }

    /// Fails with `NotPermitted` if the sticky bit of this directory prevents `identity` from removing a node
    /// of `victim_uid` from it.
    pub fn check_sticky(&self, identity: &Identity, victim_uid: u32) -> Result<()> {
        let is_sticky = self.mode.bits() & Mode::STICKY != 0;
        permitted(!is_sticky || identity.is_root() || [self.uid, victim_uid].contains(&identity.uid))
    }

    /// Fails with `NotPermitted` unless `identity` may set this owner and group (chown(2)).
    pub fn check_chown(&self, identity: &Identity, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let owns = identity.uid == self.uid;
        let uid_fits = uid.is_none_or(|uid| owns && uid == self.uid);
        let gid_fits = gid.is_none_or(|gid| owns && (gid == self.gid || identity.in_group(gid)));
        permitted(identity.is_root() || (uid_fits && gid_fits))
    }
}

impl Mode {
    /// Returns the mode without set-user-id, and without set-group-id if the group may execute (without that
    /// right set-group-id does not mean execution).
    #[must_use]
    pub const fn without_privileges(self) -> Self {
        const GROUP_EXECUTE: u32 = 0o010;
        let dropped = match self.bits() & GROUP_EXECUTE {
            0 => Self::SET_UID,
            _ => Self::SET_UID | Self::SET_GID,
        };
        Self::new(self.bits() & !dropped)
    }
}

impl Identity {
    /// Returns `true` for the superuser.
    pub const fn is_root(&self) -> bool {
        self.uid == Self::ROOT.uid
    }

    /// Returns `true` if a mode that this user sets on a node of `gid` loses set-group-id (chmod(2)).
    pub fn loses_set_gid(&self, gid: u32) -> bool {
        !self.is_root() && !self.in_group(gid)
    }
}

fn permitted(is_permitted: bool) -> Result<()> {
    if is_permitted { Ok(()) } else { Err(Error::NotPermitted) }
}
