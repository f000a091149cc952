//! Extended attributes on an origin that supports them.

use tombolo_core::fs::{Mode, NodeId, SetAttr, XattrName, XattrSet};
use tombolo_core::{Error, Result};
use tombolo_layer_cache::Contract;

use crate::world::{Origin, Session};

fn named(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).expect("a name")
}

fn node(session: &Session) -> NodeId {
    session.lookup("file").expect("there").node
}

fn value(session: &Session, text: &str) -> Result<Vec<u8>> {
    let xattrs = session.fs.xattrs().expect("extended attributes");
    xattrs.get(&session.cx, node(session), named(text), 100).wait()
}

fn names(session: &Session) -> Vec<u8> {
    let xattrs = session.fs.xattrs().expect("extended attributes");
    xattrs.list(&session.cx, node(session), 100).wait().expect("names")
}

fn set(session: &Session, text: &str, value: &[u8]) -> Result<()> {
    let xattrs = session.fs.xattrs().expect("extended attributes");
    xattrs.set(&session.cx, node(session), named(text), value, XattrSet::Any, false).wait()
}

#[test]
fn extended_attributes_are_the_origins() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    set(&origin.direct, "user.a", b"1").expect("set");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    assert_eq!(value(&cached.session, "user.a").expect("a value"), b"1");
    set(&cached.session, "user.a", b"2").expect("set");
    set(&cached.session, "user.b", b"new").expect("set");
    for session in [&origin.direct, &cached.session] {
        assert_eq!(value(session, "user.a").expect("a value"), b"2");
        assert_eq!(names(session), b"user.a\0user.b\0");
    }
    let xattrs = cached.session.fs.xattrs().expect("extended attributes");
    xattrs.remove(&cached.session.cx, node(&cached.session), named("user.a")).wait().expect("removed");
    for session in [&origin.direct, &cached.session] {
        assert!(matches!(value(session, "user.a"), Err(Error::NoAttribute)));
    }
}

#[test]
fn extended_attributes_require_permission_to_read_or_set() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    set(&origin.direct, "user.a", b"1").expect("set");
    let closed = SetAttr { mode: Some(Mode::new(0o600)), uid: Some(7), ..SetAttr::default() };
    let at_origin = node(&origin.direct);
    origin.direct.fs.setattr(&origin.direct.cx, at_origin, None, &closed).wait().expect("setattr");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let (owner, other) = (cached.session.of_user(7), cached.session.of_user(8));
    assert_eq!(value(&owner, "user.a").expect("the owner"), b"1");
    assert!(matches!(value(&other, "user.a"), Err(Error::AccessDenied)));
    assert!(matches!(set(&other, "user.a", b"2"), Err(Error::AccessDenied)));
}

#[test]
fn setting_an_acl_changes_mode_and_permissions() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"text");
    let closed = SetAttr { mode: Some(Mode::new(0o600)), ..SetAttr::default() };
    let at_origin = node(&origin.direct);
    origin.direct.fs.setattr(&origin.direct.cx, at_origin, None, &closed).wait().expect("setattr");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let user = cached.session.of_user(7);
    assert!(user.get("file").is_err());
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1, 6, u32::MAX), (2, 4, 7), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend([tag, 0, permissions, 0]);
        list.extend(u32::to_le_bytes(id));
    }
    set(&cached.session, "system.posix_acl_access", &list).expect("set");
    assert_eq!(user.get("file").expect("may read now"), b"text");
    assert_eq!(cached.session.lookup("file").expect("there").attr.mode.bits() & 0o777, 0o640);
}
