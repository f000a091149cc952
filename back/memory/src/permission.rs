//! Permissions, by POSIX and Linux rules. Used when the export checks permissions itself.

use tombolo_core::fs::{AccessMask, Mode};
use tombolo_core::{Error, Identity, Result};

use crate::node::{Node, is_root};

/// Fails with `AccessDenied` unless `identity` may do all of `mask` with `node`.
pub(crate) fn check(identity: &Identity, node: &Node, mask: AccessMask) -> Result<()> {
    let wanted = mask.bits();
    let allowed = if is_root(identity) {
        // The superuser executes only what has an execute bit.
        !mask.contains(AccessMask::EXECUTE) || node.is_directory() || node.mode.bits() & 0o111 != 0
    } else if let Some(acl) = &node.access_acl {
        acl.allows(identity, node.uid, node.gid, wanted)
    } else {
        let bits = node.mode.bits();
        let class = match () {
            () if identity.uid == node.uid => bits >> 6,
            () if identity.in_group(node.gid) => bits >> 3,
            () => bits,
        };
        class as u8 & wanted == wanted
    };
    if allowed { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Fails with `NotPermitted` unless `identity` owns `node`.
pub(crate) fn check_owner(identity: &Identity, node: &Node) -> Result<()> {
    if is_root(identity) || identity.uid == node.uid { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Fails with `NotPermitted` when the sticky bit of `dir` keeps `identity` from removing `victim` from it.
pub(crate) fn check_sticky(identity: &Identity, dir: &Node, victim: &Node) -> Result<()> {
    let sticky = dir.mode.bits() & Mode::STICKY != 0;
    if !sticky || is_root(identity) || identity.uid == dir.uid || identity.uid == victim.uid {
        Ok(())
    } else {
        Err(Error::NotPermitted)
    }
}

/// Fails with `NotPermitted` unless `identity` may give `node` this owner and group (chown(2)).
pub(crate) fn check_chown(
    identity: &Identity,
    node: &Node,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<()> {
    let owns = identity.uid == node.uid;
    let uid_fits = uid.is_none_or(|uid| owns && uid == node.uid);
    let gid_fits = gid.is_none_or(|gid| owns && (gid == node.gid || identity.in_group(gid)));
    if is_root(identity) || (uid_fits && gid_fits) { Ok(()) } else { Err(Error::NotPermitted) }
}
