//! Permission checks of NFS that differ from those of a local system.
//!
//! The back end checks operations on names as it performs them. Reading and writing go through openings
//! shared by all callers, so each call is checked here, except a WRITE to a file that is already open for
//! writing by the superuser, or by the owner if the back end compares owners itself (`Write::by_owner`). The
//! back end's answers are cached while the file's attributes show no change.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quick_cache::sync::Cache;
use tombolo_core::fs::{AccessMask, Attr, FileSystem, Mode, NodeId, Timestamp};
use tombolo_core::{Ctx, Error, Identity, Result};

/// Maximum number of cached answers.
const GRANTS_MAX: usize = 8192;

/// Coarsest granularity of a file system's clock: two changes within it may leave the same ctime.
const TICK: Duration = Duration::from_secs(2);

/// Cache of checked permissions.
pub(crate) struct Permissions {
    file_system: Arc<dyn FileSystem>,
    grants: Cache<(NodeId, UserKey), Grant>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct UserKey {
    uid: u32,
    gid: u32,
    groups: Option<Arc<[u32]>>,
}

/// The back end's answers about a user and a node, valid while the node has these attributes.
#[derive(Clone, Copy)]
struct Grant {
    stamp: Stamp,
    checked: AccessMask,
    /// Part of `checked` that the user may do.
    allowed: AccessMask,
}

/// Attributes that permissions depend on. A change of an ACL changes the ctime.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    mode: Mode,
    uid: u32,
    gid: u32,
    ctime: Timestamp,
}

impl Permissions {
    /// Creates an empty cache.
    pub fn new(file_system: Arc<dyn FileSystem>) -> Self {
        Self { file_system, grants: Cache::new(GRANTS_MAX) }
    }

    /// Checks that the caller may read the file. The superuser always may, and so may the owner, because the
    /// file may have been opened before a change of its mode. A caller with execute permission may, too,
    /// because the client's kernel reads the file to execute it (RFC 1813 §4.4).
    pub async fn check_read(&self, cx: &Ctx, node: NodeId, attr: &Attr) -> Result<()> {
        if is_privileged(&cx.identity, attr) {
            return Ok(());
        }
        let wanted = AccessMask::READ | AccessMask::EXECUTE;
        let allowed = self.allowed(cx, node, attr, wanted).await?;
        if allowed.intersects(wanted) { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Checks that the caller may write the file. The superuser and the owner always may (RFC 1813 §4.4).
    pub async fn check_write(&self, cx: &Ctx, node: NodeId, attr: &Attr) -> Result<()> {
        if is_privileged(&cx.identity, attr) {
            return Ok(());
        }
        let allowed = self.allowed(cx, node, attr, AccessMask::WRITE).await?;
        if allowed.contains(AccessMask::WRITE) { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Returns the part of `wanted` that the caller may do. `attr` are the node's current attributes.
    pub async fn allowed(
        &self,
        cx: &Ctx,
        node: NodeId,
        attr: &Attr,
        wanted: AccessMask,
    ) -> Result<AccessMask> {
        let stamp = Stamp { mode: attr.mode, uid: attr.uid, gid: attr.gid, ctime: attr.ctime };
        let Identity { uid, gid, groups } = &cx.identity;
        let key = (node, UserKey { uid: *uid, gid: *gid, groups: groups.clone() });
        let cached = self.grants.get(&key).filter(|grant| grant.stamp == stamp);
        let mut grant =
            cached.unwrap_or(Grant { stamp, checked: AccessMask::empty(), allowed: AccessMask::empty() });
        let unchecked = wanted - grant.checked;
        if unchecked.is_empty() {
            return Ok(grant.allowed & wanted);
        }
        for mask in unchecked.iter() {
            match self.file_system.access(cx, node, mask).resolve().await {
                Ok(()) => grant.allowed |= mask,
                Err(Error::AccessDenied | Error::NotPermitted | Error::ReadOnly | Error::TextBusy) => {}
                Err(error) => return Err(error),
            }
            grant.checked |= mask;
        }
        if is_settled(attr.ctime) {
            self.grants.insert(key, grant);
        }
        Ok(grant.allowed & wanted)
    }
}

fn is_privileged(identity: &Identity, attr: &Attr) -> bool {
    identity.uid == 0 || identity.uid == attr.uid
}

/// Returns `true` if the ctime is old enough that the next change will be visible.
fn is_settled(ctime: Timestamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(ctime.secs).is_ok_and(|secs| Duration::new(secs, ctime.nanos) + TICK < now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_back_memory::Memory;
    use tombolo_core::block_on;
    use tombolo_test_support::Session;

    #[test]
    fn a_cached_permission_ends_with_its_attributes() {
        let session = Session::attach(&Memory::default());
        let (permissions, node) = (Permissions::new(session.fs.clone()), session.mknod("file").node);
        session.chown(node, 1000, 1000).expect("chown");
        let user = session.by(2000).cx;
        let may = || {
            let attr = session.attr(node);
            let may_read = block_on(permissions.check_read(&user, node, &attr)).is_ok();
            (may_read, block_on(permissions.check_write(&user, node, &attr)).is_ok())
        };
        // A recent ctime prevents caching; the answer is right immediately in both cases.
        for wait in [Duration::ZERO, TICK + Duration::from_millis(100)] {
            std::thread::sleep(wait);
            assert_eq!(may(), (true, false));
            assert_eq!(permissions.grants.is_empty(), wait.is_zero());
        }
        session.chmod(node, 0o600).expect("chmod");
        assert_eq!(may(), (false, false));
    }
}
