//! What a caller may do with a file, where NFS asks differently from a local system.
//!
//! Everything that works on names is checked by the back end as it is done. Reading and writing are not:
//! openings are shared by all callers, so each call is checked here. An answer of the back end is kept for as
//! long as the file's attributes say that nothing about it can have changed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quick_cache::sync::Cache;
use tombolo_core::fs::{AccessMask, Attr, FileSystem, Mode, NodeId, Timestamp};
use tombolo_core::{Ctx, Error, Identity, Result};

/// Answers of the back end, at most so many.
const GRANTS_MAX: usize = 8192;

/// A change of the attributes that follows within this time may leave the same ctime behind: no clock of a
/// file system ticks slower.
const TICK: Duration = Duration::from_secs(2);

/// The permissions that were checked so far.
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

#[derive(Clone, Copy)]
struct Grant {
    stamp: Stamp,
    asked: AccessMask,
    allowed: AccessMask,
}

/// What permissions depend on. ACLs are not here, but to change one changes the ctime.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    mode: Mode,
    uid: u32,
    gid: u32,
    ctime: Timestamp,
}

impl Permissions {
    /// Nothing was asked yet.
    pub fn new(file_system: Arc<dyn FileSystem>) -> Self {
        Self { file_system, grants: Cache::new(GRANTS_MAX) }
    }

    /// Whether the caller may read the file. Its owner always may: the file may have been open when its mode
    /// was changed. So may a caller that may execute it: the client's kernel reads it for that (RFC 1813
    /// §4.4).
    pub async fn check_read(&self, cx: &Ctx, node: NodeId, attr: &Attr) -> Result<()> {
        if is_privileged(&cx.identity, attr) {
            return Ok(());
        }
        let wanted = AccessMask::READ | AccessMask::EXECUTE;
        let allowed = self.allowed(cx, node, attr, wanted).await?;
        if allowed.intersects(wanted) { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Whether the caller may write the file. Its owner always may (RFC 1813 §4.4).
    pub async fn check_write(&self, cx: &Ctx, node: NodeId, attr: &Attr) -> Result<()> {
        if is_privileged(&cx.identity, attr) {
            return Ok(());
        }
        let allowed = self.allowed(cx, node, attr, AccessMask::WRITE).await?;
        if allowed.contains(AccessMask::WRITE) { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Which of `wanted` the caller may do. `attr` is how the node is now.
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
        let known = self.grants.get(&key).filter(|grant| grant.stamp == stamp);
        let mut grant =
            known.unwrap_or(Grant { stamp, asked: AccessMask::empty(), allowed: AccessMask::empty() });
        let unknown = wanted - grant.asked;
        if unknown.is_empty() {
            return Ok(grant.allowed & wanted);
        }
        for mask in unknown.iter() {
            match self.file_system.access(cx, node, mask).resolve().await {
                Ok(()) => grant.allowed |= mask,
                Err(Error::AccessDenied | Error::NotPermitted | Error::ReadOnly | Error::TextBusy) => {}
                Err(error) => return Err(error),
            }
            grant.asked |= mask;
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

/// Whether the attributes changed so long ago that the next change will show.
fn is_settled(ctime: Timestamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(ctime.secs).is_ok_and(|secs| Duration::new(secs, ctime.nanos) + TICK < now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_back_memory::Memory;
    use tombolo_core::fs::{Client, Device, Export, FileType, Name, NewMode, PermissionCheck, SetAttr};
    use tombolo_core::{Answer, SessionId};

    const SESSION: SessionId = SessionId(1);

    struct Bench {
        file_system: Arc<dyn FileSystem>,
        permissions: Arc<Permissions>,
        node: NodeId,
    }

    impl Bench {
        /// A file of user 1000 with this mode.
        fn new(mode: u32) -> Self {
            let client = Client { session: SESSION, label: "test".into(), checks: PermissionCheck::BackEnd };
            let file_system = Memory::default().attach(&client).expect("attach");
            let cx = Ctx::root(SESSION);
            let name = Name::new(b"file").expect("a name");
            let mode = NewMode::settled(Mode::new(mode));
            let made = file_system.mknod(&cx, NodeId::ROOT, name, FileType::Regular, mode, Device::default());
            let node = made.wait().expect("mknod").entry.node;
            let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
            file_system.setattr(&cx, node, None, &owner).wait().expect("chown");
            Self { permissions: Arc::new(Permissions::new(file_system.clone())), file_system, node }
        }

        /// Whether this user may read, and whether it may write.
        fn may(&self, uid: u32) -> (bool, bool) {
            let attr =
                self.file_system.getattr(&Ctx::root(SESSION), self.node, None).wait().expect("getattr");
            let cx = Ctx { identity: Identity { uid, gid: uid, groups: None }, ..Ctx::root(SESSION) };
            let (permissions, node) = (self.permissions.clone(), self.node);
            let answer = Answer::later(async move {
                let read = permissions.check_read(&cx, node, &attr).await.is_ok();
                Ok((read, permissions.check_write(&cx, node, &attr).await.is_ok()))
            });
            answer.wait().expect("an answer")
        }

        fn change(&self, set: SetAttr) {
            self.file_system.setattr(&Ctx::root(SESSION), self.node, None, &set).wait().expect("setattr");
        }
    }

    #[test]
    fn the_owner_may_always_and_others_as_the_mode_says() {
        let file = Bench::new(0o600);
        assert_eq!(file.may(1000), (true, true));
        assert_eq!(file.may(2000), (false, false));
        assert_eq!(file.may(0), (true, true));
        file.change(SetAttr { mode: Some(Mode::new(0)), ..SetAttr::default() });
        assert_eq!(file.may(1000), (true, true), "it may have been open when the mode was changed");
    }

    #[test]
    fn execute_permission_allows_reading() {
        assert_eq!(Bench::new(0o711).may(2000), (true, false));
    }

    #[test]
    fn a_cached_permission_ends_with_its_attributes() {
        let file = Bench::new(0o644);
        // Until the ctime is old enough, nothing is kept; either way the answer is right at once.
        for wait in [Duration::ZERO, TICK + Duration::from_millis(100)] {
            std::thread::sleep(wait);
            assert_eq!(file.may(2000), (true, false));
            assert_eq!(file.permissions.grants.is_empty(), wait.is_zero());
        }
        file.change(SetAttr { mode: Some(Mode::new(0o600)), ..SetAttr::default() });
        assert_eq!(file.may(2000), (false, false));
    }
}
