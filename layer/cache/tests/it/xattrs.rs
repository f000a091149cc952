//! Extended attributes on an origin that supports them.

use tombolo_core::Error;
use tombolo_core::fs::{Mode, SetAttr};
use tombolo_layer_cache::Contract;

use crate::world::Origin;

#[test]
fn extended_attributes_are_the_origins() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    origin.direct.set_xattr("file", "user.a", b"1").expect("set");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    assert_eq!(cached.xattr("file", "user.a").expect("a value"), b"1");
    cached.set_xattr("file", "user.a", b"2").expect("set");
    cached.set_xattr("file", "user.b", b"new").expect("set");
    for session in [&origin.direct, &cached.session] {
        assert_eq!(session.xattr("file", "user.a").expect("a value"), b"2");
        assert_eq!(session.xattr_list("file").expect("names"), ["user.a", "user.b"]);
    }
    cached.remove_xattr("file", "user.a").expect("removed");
    for session in [&origin.direct, &cached.session] {
        assert!(matches!(session.xattr("file", "user.a"), Err(Error::NoAttribute)));
    }
}

#[test]
fn extended_attributes_require_permission_to_read_or_set() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    origin.direct.set_xattr("file", "user.a", b"1").expect("set");
    let closed = SetAttr { mode: Some(Mode::new(0o600)), uid: Some(7), ..SetAttr::default() };
    origin.direct.setattr("file", closed).expect("setattr");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let (owner, other) = (cached.by(7), cached.by(8));
    assert_eq!(owner.xattr("file", "user.a").expect("the owner"), b"1");
    assert!(matches!(other.xattr("file", "user.a"), Err(Error::AccessDenied)));
    assert!(matches!(other.set_xattr("file", "user.a", b"2"), Err(Error::AccessDenied)));
}

#[test]
fn setting_an_acl_changes_mode_and_permissions() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"text");
    origin.direct.chmod("file", 0o600).expect("setattr");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let user = cached.by(7);
    assert!(user.get("file").is_err());
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1, 6, u32::MAX), (2, 4, 7), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend([tag, 0, permissions, 0]);
        list.extend(u32::to_le_bytes(id));
    }
    cached.set_xattr("file", "system.posix_acl_access", &list).expect("set");
    assert_eq!(user.get("file").expect("may read now"), b"text");
    assert_eq!(cached.attr("file").mode.bits() & 0o777, 0o640);
}
