//! Attributes that the origin refuses to set: requested ones remain differences, implied ones follow the
//! origin, and everything else arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::fs::{Export, Mode, Op, RenameFlags, SetAttr};
use tombolo_core::{Answer, Ctx, Error, Identity};
use tombolo_layer_basic::around::{Around, Call, Layered, Payload};
use tombolo_layer_idmap::{self as idmap, IdMap, Ids};
use tombolo_layer_write_back::{Allowed, try_out};

use crate::shown::names;
use crate::world::{Origin, Session};

/// Uid that the origin substitutes for unknown users.
const NOBODY: u32 = 65534;

/// An origin that refuses every change of attributes while `true`.
struct Strict(AtomicBool);

impl Around for Strict {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match call.op == Op::Setattr && self.0.load(Ordering::Relaxed) {
            true => Answer::err(Error::NotPermitted),
            false => inner(),
        }
    }
}

fn strict() -> (Origin, Arc<Strict>) {
    let strict = Arc::new(Strict(AtomicBool::new(true)));
    let layer = strict.clone();
    let over = |inner: Arc<dyn Export>| Arc::new(Layered::new(inner, layer)) as Arc<dyn Export>;
    (Origin::with(over), strict)
}

fn chown(session: &Session, path: &str, uid: u32) {
    let node = session.find(path).expect("there").node;
    let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
    session.fs.setattr(&session.cx, node, None, &set).wait().expect("answered");
}

fn root_names(session: &Session) -> Vec<String> {
    names(session, tombolo_core::fs::NodeId::ROOT)
}

#[test]
fn refused_owner_is_reported_and_blocks_nothing() {
    let (mut origin, strict) = strict();
    let proxy = origin.proxy();
    let at = &proxy.session;
    at.mkdir("dir").expect("made");
    at.put("dir/given", b"given").expect("written");
    chown(at, "dir/given", 7);
    at.put("other", b"other").expect("written");
    let refused = proxy.write_back.flush().expect_err("refused").to_string();
    let said =
        std::error::Error::source(&proxy.write_back.flush().expect_err("refused")).map(ToString::to_string);
    assert!(format!("{refused} {said:?}").contains("the owner of dir/given"), "{refused} {said:?}");
    assert_eq!(origin.direct.get("dir/given").expect("there"), b"given");
    assert_eq!(root_names(&origin.direct), ["dir", "other"], "no temporary name is left");
    assert_eq!(names(&origin.direct, origin.direct.find("dir").expect("there").node), ["given"]);
    let status = proxy.write_back.status();
    assert_eq!((status.refused, status.is_refused, status.is_clean), (1, true, false));
    assert_eq!(status.at_origin, status.change, "all but that is there");
    assert!(status.failure.is_some());
    assert_eq!(at.find("dir/given").expect("there").attr.uid, 7, "as the program has set it");

    at.put("later", b"later").expect("written");
    proxy.write_back.flush().expect_err("still refused");
    assert_eq!(origin.direct.get("later").expect("there"), b"later");
    origin.kill(proxy);
    let proxy = origin.proxy();
    assert_eq!(proxy.session.find("dir/given").expect("there").attr.uid, 7);
    proxy.write_back.flush().expect_err("it is tried once more, and refused");
    strict.0.store(false, Ordering::Relaxed);
    proxy.write_back.flush().expect("now it is allowed");
    assert_eq!(origin.direct.find("dir/given").expect("there").attr.uid, 7);
    let status = proxy.write_back.status();
    assert_eq!((status.refused, status.is_clean, status.failure), (0, true, None));
}

#[test]
fn a_refusal_is_not_tried_again_unasked() {
    let (origin, _strict) = strict();
    let proxy = origin.proxy_with(tombolo_layer_write_back::Options {
        idle: std::time::Duration::ZERO,
        ..tombolo_layer_write_back::Options::default()
    });
    let at = &proxy.session;
    at.put("given", b"").expect("written");
    chown(at, "given", 7);
    proxy.write_back.flush().expect_err("refused");
    let asked = origin.asked("setattr");
    at.put("other", b"bytes").expect("written");
    while origin.direct.get("other").is_err()
        || proxy.write_back.status().at_origin < proxy.write_back.status().change
    {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Attributes of the new file and of the directory: all at once, then one by one, by each user.
    let more = origin.asked("setattr") - asked;
    assert!(more <= 12, "{more}");
    assert_eq!(proxy.write_back.status().refused, 1);
    // Reverting the change removes the difference.
    let owner = origin.direct.find("given").expect("there").attr.uid;
    chown(at, "given", owner);
    proxy.write_back.flush().expect("nothing is refused");
}

/// An origin that refuses one operation while that is so.
struct Refusing(Op, AtomicBool);

impl Around for Refusing {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match call.op == self.0 && self.1.load(Ordering::Relaxed) {
            true => Answer::err(Error::NotPermitted),
            false => inner(),
        }
    }
}

fn refusing(op: Op) -> (Origin, Arc<Refusing>) {
    let refusing = Arc::new(Refusing(op, AtomicBool::new(true)));
    let layer = refusing.clone();
    let over = |inner: Arc<dyn Export>| Arc::new(Layered::new(inner, layer)) as Arc<dyn Export>;
    (Origin::with(over), refusing)
}

#[test]
fn links_and_renames_into_refused_directory_are_retained() {
    let (mut origin, refusing) = refusing(Op::Mkdir);
    for name in ["linked", "moved"] {
        origin.direct.put(name, name.as_bytes()).expect("written");
    }
    let proxy = origin.proxy();
    let at = &proxy.session;
    at.mkdir("made").expect("answered");
    at.link("linked", "made/link").expect("answered");
    at.rename("moved", "made/moved", RenameFlags::empty()).expect("answered");
    at.put("both", b"both").expect("written");
    at.link("both", "made/both").expect("answered");
    let is_shown = |at: &Session, place: &str| {
        for (path, data) in [("made/link", "linked"), ("made/moved", "moved"), ("made/both", "both")] {
            let read = at.get(path).unwrap_or_else(|error| panic!("{place}: {path}: {error}"));
            assert_eq!(read, data.as_bytes(), "{place}: {path}");
        }
    };
    for _ in 0..2 {
        proxy.write_back.flush().expect_err("refused");
        is_shown(at, "after a refusal");
        assert_eq!(proxy.write_back.status().conflicts, 0);
    }
    origin.kill(proxy);
    let proxy = origin.proxy();
    proxy.write_back.flush().expect_err("refused");
    is_shown(&proxy.session, "after a restart");
    refusing.1.store(false, Ordering::Relaxed);
    proxy.write_back.flush().expect("now it is allowed");
    is_shown(&origin.direct, "at the origin");
    assert!(proxy.write_back.status().is_clean);
}

#[test]
fn implied_attributes_follow_the_origin() {
    let (origin, _strict) = strict();
    let proxy = origin.proxy();
    let at = &proxy.session;
    // Created with more rights than its final mode while it is sent.
    let file = at.create("made", 0o200).expect("made");
    at.write(file, 0, b"made").expect("written");
    at.close(file);
    assert_eq!(at.find("made").expect("there").attr.mode, Mode::new(0o200));
    proxy.write_back.flush().expect("nothing was asked for that is refused");
    let theirs = origin.direct.find("made").expect("there").attr;
    let ours = at.find("made").expect("there").attr;
    assert_eq!((ours.mode, ours.uid, ours.mtime), (theirs.mode, theirs.uid, theirs.mtime));
    assert!(proxy.write_back.status().is_clean);
}

#[test]
fn file_of_a_squashed_user_keeps_its_local_owner() {
    let squashes = |inner: Arc<dyn Export>| {
        let ids = || Ids::new(vec!["0:0".parse().expect("a range")], NOBODY).expect("a map");
        Arc::new(idmap::over(inner, IdMap { users: ids(), groups: ids() })) as Arc<dyn Export>
    };
    let origin = Origin::with(squashes);
    let set = SetAttr { mode: Some(Mode::new(0o777)), ..SetAttr::default() };
    let (fs, cx) = (&origin.direct.fs, &origin.direct.cx);
    fs.setattr(cx, tombolo_core::fs::NodeId::ROOT, None, &set).wait().expect("set");
    let proxy = origin.proxy();
    let identity = Identity { uid: 7, gid: 7, groups: None };
    let at = Session { cx: Ctx { identity, ..proxy.session.cx.clone() }, ..proxy.session.clone() };
    at.mkdir("dir").expect("made");
    at.put("dir/one", b"one").expect("written");
    assert_eq!(at.find("dir/one").expect("there").attr.uid, 7);
    proxy.write_back.flush().expect("all that was asked for is there");
    assert_eq!(at.find("dir/one").expect("there").attr.uid, NOBODY);
    let file = at.open("dir/one").expect("it is its own");
    at.write(file, 0, b"two").expect("written");
    at.close(file);
    let node = at.find("dir/one").expect("there").node;
    let set = SetAttr { mode: Some(Mode::new(0o600)), ..SetAttr::default() };
    at.fs.setattr(&at.cx, node, None, &set).wait().expect("its own");
    at.put("dir/other", b"").expect("its own directory");
    proxy.write_back.flush().expect("all is there");
    assert_eq!(origin.direct.get("dir/one").expect("there"), b"two");
    assert_eq!(names(&origin.direct, origin.direct.find("dir").expect("there").node), ["one", "other"]);
    let stranger = Identity { uid: 8, gid: 8, groups: None };
    let stranger = Session { cx: Ctx { identity: stranger, ..at.cx.clone() }, ..at.clone() };
    assert!(matches!(stranger.open("dir/one"), Err(Error::AccessDenied)));
}

#[test]
fn directory_is_sent_as_its_creating_user() {
    let (origin, strict) = strict();
    let set = SetAttr { mode: Some(Mode::new(0o777)), ..SetAttr::default() };
    let (fs, cx) = (&origin.direct.fs, &origin.direct.cx);
    strict.0.store(false, Ordering::Relaxed);
    fs.setattr(cx, tombolo_core::fs::NodeId::ROOT, None, &set).wait().expect("set");
    strict.0.store(true, Ordering::Relaxed);
    let proxy = origin.proxy();
    let [maker, victim] = [8, 9].map(|id| {
        let identity = Identity { uid: id, gid: id, groups: None };
        Session { cx: Ctx { identity, ..proxy.session.cx.clone() }, ..proxy.session.clone() }
    });
    maker.mkdir("dir").expect("made");
    let node = maker.find("dir").expect("there").node;
    maker.fs.setattr(&maker.cx, node, None, &set).wait().expect("its own");
    victim.close(victim.create("dir/secret", 0o600).expect("made"));
    proxy.write_back.flush().expect("all is there");
    let owner = |path: &str| origin.direct.find(path).expect("there").attr.uid;
    assert_eq!((owner("dir"), owner("dir/secret")), (8, 9));
    // Checked by its attributes, as the origin does not have it.
    victim.close(victim.create("dir/later", 0o600).expect("made"));
    assert!(matches!(maker.open("dir/later"), Err(Error::AccessDenied)), "it is not taken for the other");
}

#[test]
fn a_trial_tells_what_the_origin_allows() {
    let (origin, strict) = strict();
    let proxy = origin.proxy();
    let user = || tombolo_core::Identity::ROOT;
    let allowed = try_out(&proxy.cache, user()).expect("tried");
    let refuses = Allowed { squashed_to: None, refuses_owners: true, refuses_modes: true };
    assert_eq!(allowed, refuses);
    strict.0.store(false, Ordering::Relaxed);
    assert_eq!(try_out(&proxy.cache, user()).expect("tried"), Allowed::default());
    assert_eq!(root_names(&origin.direct), [""; 0], "nothing is left");
}
