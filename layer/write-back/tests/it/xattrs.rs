//! Extended attributes of files of an origin that supports them.

use std::sync::Arc;

use tombolo_core::fs::{FileSystem, NodeId, Op, SetAttr};
use tombolo_core::{Error, forward};
use tombolo_test_support::{Session, wrapped, xattr_name};

use crate::trouble::Trouble;
use crate::world::{Origin, Proxy};

const CAPABILITY: &str = "security.capability";

/// Returns the value of an attribute; `None` if it does not exist.
pub fn get(session: &Session, node: NodeId, name: &str) -> Option<Vec<u8>> {
    match session.xattr(node, name) {
        Ok(value) => Some(value),
        Err(Error::NoAttribute) => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Returns names and values, in order.
pub fn all(session: &Session, node: NodeId) -> Vec<(String, Vec<u8>)> {
    let names = session.xattr_list(node).expect("a list").into_iter();
    let value = |name: &str| session.xattr(node, name).expect("what is listed is there");
    names.map(|name| (name.clone(), value(&name))).collect()
}

fn of(session: &Session, path: &str) -> Vec<(String, Vec<u8>)> {
    all(session, session.node(path).expect("there"))
}

fn one(name: &str, value: &[u8]) -> Vec<(String, Vec<u8>)> {
    vec![(name.to_owned(), value.to_owned())]
}

fn flush(proxy: &Proxy) {
    proxy.write_back.flush().expect("a flush");
    assert!(proxy.write_back.status().is_clean);
}

#[test]
fn extended_attributes_are_sent_with_other_changes() {
    let origin = Origin::new();
    for dir in ["old", "old/dir"] {
        origin.direct.mkdir(dir).expect("mkdir");
        origin.direct.set_xattr(dir, "user.theirs", b"1").expect("set");
    }
    origin.direct.put("old/file", b"text");
    origin.direct.set_xattr("old/file", "user.gone", b"1").expect("set");
    let proxy = origin.proxy();
    proxy.put("new", b"text");
    for path in ["new", "old/file", "old/dir"] {
        proxy.set_xattr(path, "user.a", b"before").expect("set");
        proxy.set_xattr(path, "user.a", b"ours").expect("set");
    }
    proxy.remove_xattr("old/file", "user.gone").expect("removed");
    assert!(matches!(proxy.remove_xattr("old/file", "user.gone"), Err(Error::NoAttribute)));
    proxy.set_xattr("new", "user.b", b"1").expect("set");
    proxy.remove_xattr("new", "user.b").expect("removed");
    let (ours, both) = (one("user.a", b"ours"), [one("user.a", b"ours"), one("user.theirs", b"1")].concat());
    assert_eq!(of(&origin.direct, "old/file"), one("user.gone", b"1"), "the origin does not have them yet");
    for _ in 0..2 {
        assert_eq!(
            (of(&proxy, "new"), of(&proxy, "old/file"), of(&proxy, "old/dir")),
            (ours.clone(), ours.clone(), both.clone())
        );
        flush(&proxy);
    }
    for path in ["new", "old/file", "old/dir"] {
        assert_eq!(of(&origin.direct, path), of(&proxy, path), "{path}");
    }
    assert_eq!(origin.asked("setxattr"), 3, "each goes once");
}

#[test]
fn extended_attributes_outlive_a_kill() {
    let mut origin = Origin::new();
    origin.direct.put("old", b"text");
    origin.direct.set_xattr("old", "user.gone", b"1").expect("set");
    let proxy = origin.proxy();
    proxy.put("new", b"text");
    for path in ["new", "old"] {
        proxy.set_xattr(path, "user.a", b"\0kept\0").expect("set");
    }
    proxy.remove_xattr("old", "user.gone").expect("removed");
    proxy.sync();
    let proxy = origin.restarted(proxy);
    for path in ["new", "old"] {
        assert_eq!(of(&proxy.session, path), one("user.a", b"\0kept\0"), "{path}");
    }
    flush(&proxy);
    for path in ["new", "old"] {
        assert_eq!(of(&origin.direct, path), one("user.a", b"\0kept\0"), "{path}");
    }
}

#[test]
fn attributes_set_during_a_transfer_are_sent_next_time() {
    let trouble = Trouble::new(1);
    let origin = Origin::with(|memory| trouble.over(memory));
    let proxy = origin.proxy();
    proxy.put("file", b"text");
    proxy.set_xattr("file", "user.a", b"1").expect("set");
    proxy.set_xattr("file", "user.b", b"1").expect("set");
    let session = proxy.session.clone();
    trouble.once(Op::Setxattr, move || {
        session.set_xattr("file", "user.a", b"2").expect("set");
        session.remove_xattr("file", "user.b").expect("removed");
        None
    });
    proxy.write_back.flush().expect("a flush");
    assert!(!proxy.write_back.status().is_clean);
    assert_eq!(of(&proxy.session, "file"), one("user.a", b"2"));
    flush(&proxy);
    assert_eq!(of(&origin.direct, "file"), one("user.a", b"2"));
}

#[test]
fn next_change_drops_capabilities_for_good() {
    let origin = Origin::new();
    for path in ["written", "cut", "given"] {
        origin.direct.put(path, b"text");
        origin.direct.set_xattr(path, CAPABILITY, b"at the origin").expect("set");
    }
    let proxy = origin.proxy();
    let node = |path: &str| proxy.lookup(path).expect("there").node;
    let change = |path: &str| {
        let set = |set: SetAttr| proxy.setattr(node(path), set).map(drop);
        let file = proxy.writer(path);
        let changed = match path {
            "written" => proxy.write(file, 0, b"T").map(drop),
            "cut" => set(SetAttr { size: Some(1), ..SetAttr::default() }),
            _ => set(SetAttr { uid: Some(7), ..SetAttr::default() }),
        };
        proxy.release(file);
        changed.expect("changed");
    };
    for path in ["written", "cut", "given"] {
        assert_eq!(get(&proxy, node(path), CAPABILITY).expect("theirs"), b"at the origin");
        change(path);
        assert_eq!((get(&proxy, node(path), CAPABILITY), of(&proxy, path)), (None, vec![]), "{path}");
        proxy.set_xattr(path, CAPABILITY, b"ours").expect("set");
        change(path);
        assert_eq!(get(&proxy, node(path), CAPABILITY), None, "{path}");
    }
    for path in ["written", "given"] {
        proxy.set_xattr(path, CAPABILITY, b"after it").expect("set");
    }
    flush(&proxy);
    for session in [&proxy, &origin.direct] {
        for path in ["written", "given"] {
            assert_eq!(of(session, path), one(CAPABILITY, b"after it"), "{path}");
        }
        assert_eq!(of(session, "cut"), vec![]);
    }
}

#[test]
fn unsent_extended_attributes_are_limited_to_64_kib() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    proxy.put("file", b"text");
    let half = vec![7; 33 << 10];
    for name in ["user.a", "user.a"] {
        proxy.set_xattr("file", name, &half).expect("set");
    }
    assert!(matches!(proxy.set_xattr("file", "user.b", &half), Err(Error::NoSpace)));
    flush(&proxy);
    proxy.set_xattr("file", "user.b", &half).expect("the first is at the origin");
    flush(&proxy);
    assert_eq!(of(&origin.direct, "file").len(), 2);
}

#[test]
fn extended_attributes_of_ours_go_with_our_version() {
    let origin = Origin::new();
    origin.direct.put("file", b"before");
    let proxy = origin.proxy();
    proxy.overwrite("file", 0, b"OURS");
    proxy.set_xattr("file", "user.a", b"ours").expect("set");
    origin.direct.put("file", b"theirs");
    origin.direct.set_xattr("file", "user.a", b"theirs").expect("set");
    assert_eq!(proxy.write_back.flush().expect("a flush").conflicts, 1);
    for session in [&origin.direct, &proxy.session] {
        let ours = session.names("").into_iter().find(|name| name.contains(".conflict-"));
        assert_eq!(of(session, &ours.expect("ours")), one("user.a", b"ours"));
        assert_eq!(of(session, "file"), one("user.a", b"theirs"));
    }
}

#[test]
fn access_lists_are_neither_shown_nor_taken() {
    let origin = Origin::new();
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1, 6, u32::MAX), (2, 6, 7), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend([tag, 0, permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_access";
    origin.direct.put("file", b"");
    origin.direct.set_xattr("file", name, &list).expect("set");
    let proxy = origin.proxy();
    let node = proxy.lookup("file").expect("there").node;
    assert_eq!((get(&proxy.session, node, name), all(&proxy.session, node)), (None, vec![]));
    assert!(matches!(proxy.set_xattr("file", name, &list), Err(Error::NotSupported)));
}

#[test]
fn watermarks_are_neither_listed_nor_set() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    proxy.put("file", b"text");
    for path in ["", "file"] {
        let name = "user.tombolo.watermarks";
        assert!(matches!(proxy.set_xattr(path, name, b"1"), Err(Error::NotPermitted)));
        assert!(matches!(proxy.remove_xattr(path, name), Err(Error::NotPermitted)));
        assert_eq!(of(&proxy.session, path), vec![]);
    }
}

#[test]
fn an_origin_without_extended_attributes_keeps_none_here() {
    let origin = Origin::with(|memory| wrapped(memory, Bare));
    let proxy = origin.proxy();
    proxy.put("file", b"text");
    assert!(matches!(proxy.set_xattr("file", "user.a", b"1"), Err(Error::NotImplemented)));
    let (session, node) = (&proxy.session, proxy.lookup("file").expect("there").node);
    let value = session.xattrs().get(&session.cx, node, xattr_name(CAPABILITY), 100);
    assert!(matches!(value, tombolo_core::Answer::Done(Err(Error::NotSupported))), "at once");
    flush(&proxy);
}

/// A session of an origin without extended attributes, like one over NFS version 3.
struct Bare(Arc<dyn FileSystem>);

impl FileSystem for Bare {
    forward!(to self.0; lookup getattr setattr access readlink create create_unnamed mkdir symlink mknod link unlink
        rmdir rename open flush fsync read write readdir statfs syncfs forget release profile persistent_handles);
}
