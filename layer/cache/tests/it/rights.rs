//! Permissions on cached state.

use tombolo_core::Error;
use tombolo_core::fs::{AccessMask, Mode, NodeId, SetAttr};
use tombolo_layer_cache::Contract;
use tombolo_test_support::{READ_WRITE, Session};

use crate::world::{Origin, pattern};

fn chmod(session: &Session, text: &str, mode: u32, uid: u32) {
    let set = SetAttr { mode: Some(Mode::new(mode)), uid: Some(uid), ..SetAttr::default() };
    session.setattr(text, set).expect("setattr");
}

#[test]
fn data_of_one_user_are_not_another_s() {
    for contract in [Contract::Immutable, Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        origin.direct.put("secret", &pattern(1000, 1));
        chmod(&origin.direct, "secret", 0o600, 7);
        let cached = origin.cached(dir.path(), contract);
        let (owner, other) = (cached.by(7), cached.by(8));
        for _ in 0..3 {
            assert_eq!(owner.get("secret").expect("the owner"), pattern(1000, 1));
            assert!(matches!(other.get("secret"), Err(Error::AccessDenied)), "{contract:?}");
            let node = other.lookup("secret").expect("its name is no secret").node;
            assert!(matches!(other.access(node, AccessMask::READ), Err(Error::AccessDenied)), "{contract:?}");
            owner.access(node, AccessMask::READ).expect("the owner");
        }
    }
}

#[test]
fn names_of_a_closed_directory_are_not_shown() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    origin.direct.chmod("", 0o700).expect("setattr");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    cached.lookup("file").expect("the superuser");
    let other = cached.by(8);
    for name in ["file", "none"] {
        assert!(matches!(other.lookup(name), Err(Error::AccessDenied)), "{name}");
    }
}

#[test]
fn revoked_permission_ends_at_the_next_open() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"text");
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    let user = cached.by(8);
    assert_eq!(user.get("file").expect("any user"), b"text");
    chmod(&origin.direct, "file", 0o600, 7);
    assert!(matches!(user.get("file"), Err(Error::AccessDenied)));
    chmod(&origin.direct, "file", 0o644, 7);
    assert_eq!(user.get("file").expect("any user again"), b"text");
}

#[test]
fn permission_denied_in_combination_may_be_allowed_alone() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"text");
    chmod(&origin.direct, "file", 0o644, 7);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let user = cached.by(8);
    let node = user.lookup("file").expect("there").node;
    assert!(matches!(user.access(node, AccessMask::READ | AccessMask::WRITE), Err(Error::AccessDenied)));
    assert!(matches!(user.open(node, READ_WRITE), Err(Error::AccessDenied)));
    user.access(node, AccessMask::READ).expect("any user");
    assert_eq!(user.get("file").expect("any user"), b"text");
}

#[test]
fn mode_change_drops_permissions_and_name_change_does_not() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let (all, user) = (AccessMask::READ | AccessMask::WRITE | AccessMask::EXECUTE, cached.by(8));
    let may = || user.access(NodeId::ROOT, all);
    let set_mode = |mode| cached.chmod(NodeId::ROOT, mode).expect("setattr");
    set_mode(0o777);
    may().expect("any user");
    let asked = origin.asked("access");
    user.put("file", b"text");
    may().expect("any user");
    assert_eq!(origin.asked("access"), asked, "a name more changes nothing of it");
    set_mode(0o755);
    assert!(matches!(may(), Err(Error::AccessDenied)));
}

#[test]
fn setting_directory_mode_and_owner_implies_permissions() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let all = AccessMask::READ | AccessMask::WRITE | AccessMask::EXECUTE;
    cached.chmod("", 0o777).expect("set");
    let user = cached.by(8);
    let node = user.mkdir_mode("dir", 0o700).expect("made").entry.node;
    let asked = origin.asked("access");
    user.chmod(node, 0o500).expect("set");
    user.access(node, AccessMask::READ | AccessMask::EXECUTE).expect("its owner");
    assert!(matches!(user.access(node, AccessMask::WRITE), Err(Error::AccessDenied)));
    cached.setattr(node, SetAttr { uid: Some(9), ..SetAttr::default() }).expect("set");
    cached.access(node, all).expect("the superuser");
    assert_eq!(origin.asked("access"), asked, "a change that only they may make shows it");
    let read = user.access(node, AccessMask::READ);
    assert!(matches!(read, Err(Error::AccessDenied)), "the owner is another now");
}

#[test]
fn permissions_are_revalidated_if_others_may_change_them() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let user = cached.by(0);
    user.put("file", b"text");
    let node = user.lookup("file").expect("there").node;
    user.access(node, AccessMask::READ).expect("its maker");
    cached.cache.invalidate();
    user.attr(node);
    let asked = origin.asked("access");
    user.access(node, AccessMask::READ).expect("its maker");
    assert_eq!(origin.asked("access"), asked + 1);
}
