//! POSIX access control lists in the format of `system.posix_acl_*` (acl(5); `linux/posix_acl_xattr.h`).

use tombolo_core::fs::Mode;
use tombolo_core::{Error, Identity, Result};

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// Id of entries for no particular user or group.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A valid list. Permissions are three bits: read 4, write 2, execute 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    user_obj: u8,
    users: Vec<(u32, u8)>,
    group_obj: u8,
    groups: Vec<(u32, u8)>,
    mask: Option<u8>,
    other: u8,
}

impl Acl {
    /// Parses the value of an extended attribute. Refuses what the kernel refuses (`posix_acl_valid`).
    pub(crate) fn parse(value: &[u8]) -> Result<Self> {
        let (version, entries) = value.split_first_chunk::<4>().ok_or(Error::InvalidArgument)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Error::NotSupported);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(Error::InvalidArgument);
        }
        let (mut user_obj, mut group_obj, mut mask, mut other) = (None, None, None, None);
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        let mut last_tag = 0;
        for &[t0, t1, p0, p1, i0, i1, i2, i3] in entries {
            let tag = u16::from_le_bytes([t0, t1]);
            let perm = u8::try_from(u16::from_le_bytes([p0, p1])).ok().filter(|perm| *perm <= 7);
            let perm = perm.ok_or(Error::InvalidArgument)?;
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            if tag < last_tag {
                return Err(Error::InvalidArgument);
            }
            last_tag = tag;
            let twice = match tag {
                USER_OBJ => user_obj.replace(perm).is_some(),
                GROUP_OBJ => group_obj.replace(perm).is_some(),
                MASK => mask.replace(perm).is_some(),
                OTHER => other.replace(perm).is_some(),
                USER if id != NO_ID => {
                    users.push((id, perm));
                    false
                }
                GROUP if id != NO_ID => {
                    groups.push((id, perm));
                    false
                }
                _ => true,
            };
            if twice {
                return Err(Error::InvalidArgument);
            }
        }
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(Error::InvalidArgument);
        }
        match (user_obj, group_obj, other) {
            (Some(user_obj), Some(group_obj), Some(other)) => {
                Ok(Self { user_obj, users, group_obj, groups, mask, other })
            }
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Encodes the list as the value of an extended attribute, in the kernel's order of entries.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut push = |tag: u16, perm: u8, id: u32| {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&u16::from(perm).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        };
        push(USER_OBJ, self.user_obj, NO_ID);
        self.users.iter().for_each(|&(id, perm)| push(USER, perm, id));
        push(GROUP_OBJ, self.group_obj, NO_ID);
        self.groups.iter().for_each(|&(id, perm)| push(GROUP, perm, id));
        if let Some(mask) = self.mask {
            push(MASK, mask, NO_ID);
        }
        push(OTHER, self.other, NO_ID);
        bytes
    }

    /// Returns `true` if the list is equivalent to a mode.
    pub(crate) fn is_minimal(&self) -> bool {
        self.mask.is_none()
    }

    /// Returns `mode` with the permission bits that represent this list: the group bits are the mask, if
    /// there is one.
    pub(crate) fn mode(&self, mode: Mode) -> Mode {
        let bits = u32::from(self.user_obj) << 6
            | u32::from(self.mask.unwrap_or(self.group_obj)) << 3
            | u32::from(self.other);
        Mode::new(mode.bits() & !0o777 | bits)
    }

    /// Updates the list after a change of the mode, whose group bits become the mask if there is one.
    pub(crate) fn chmod(&mut self, mode: Mode) {
        let bits = mode.bits();
        self.user_obj = (bits >> 6 & 7) as u8;
        *self.mask.as_mut().unwrap_or(&mut self.group_obj) = (bits >> 3 & 7) as u8;
        self.other = (bits & 7) as u8;
    }

    /// Returns the access list of a node created with `mode` in a directory with this default list. The umask
    /// is ignored (acl(5), "Object creation and default ACLs").
    pub(crate) fn inherited(&self, mode: Mode) -> Self {
        let mut acl = self.clone();
        let bits = mode.bits();
        acl.user_obj &= (bits >> 6 & 7) as u8;
        *acl.mask.as_mut().unwrap_or(&mut acl.group_obj) &= (bits >> 3 & 7) as u8;
        acl.other &= (bits & 7) as u8;
        acl
    }

    /// Returns `true` if `identity` has all `wanted` permissions on a node of `uid` and `gid` (acl(5),
    /// "Access check algorithm").
    pub(crate) fn allows(&self, identity: &Identity, uid: u32, gid: u32, wanted: u8) -> bool {
        let masked = |perm: u8| perm & self.mask.unwrap_or(7);
        if identity.uid == uid {
            return self.user_obj & wanted == wanted;
        }
        if let Some(&(_, perm)) = self.users.iter().find(|(user, _)| *user == identity.uid) {
            return masked(perm) & wanted == wanted;
        }
        let own = Some((gid, self.group_obj));
        let mut matching =
            own.iter().chain(&self.groups).filter(|(group, _)| identity.in_group(*group)).peekable();
        if matching.peek().is_some() {
            return matching.any(|&(_, perm)| masked(perm) & wanted == wanted);
        }
        self.other & wanted == wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `user::rwx, user:7:rw-, group::r--, group:9:rwx, mask::rw-, other::---`.
    fn sample() -> Acl {
        Acl { user_obj: 7, users: vec![(7, 6)], group_obj: 4, groups: vec![(9, 7)], mask: Some(6), other: 0 }
    }

    fn identity(uid: u32, gid: u32) -> Identity {
        Identity { uid, gid, groups: None }
    }

    #[test]
    fn acl_round_trips_and_malformed_bytes_are_refused() {
        let bytes = sample().to_bytes();
        assert_eq!(Acl::parse(&bytes).unwrap(), sample());
        assert_eq!(sample().mode(Mode::new(0o2000)).bits(), 0o2760);
        for cut in 0..bytes.len() {
            assert!(Acl::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut twice = bytes.clone();
        twice.extend_from_slice(&bytes[bytes.len() - ENTRY_BYTES..]);
        assert!(Acl::parse(&twice).is_err());
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let acl = sample();
        assert!(acl.allows(&identity(1, 1), 1, 1, 7), "the owner is not masked");
        assert!(acl.allows(&identity(7, 1), 1, 1, 6));
        assert!(!acl.allows(&identity(7, 9), 1, 1, 1), "a named user gets nothing from groups");
        assert!(acl.allows(&identity(2, 9), 1, 1, 2));
        assert!(!acl.allows(&identity(2, 9), 1, 1, 1), "masked");
        assert!(!acl.allows(&identity(2, 1), 1, 1, 2), "the owning group only reads");
        assert!(!acl.allows(&identity(2, 2), 1, 1, 4));
    }
}
