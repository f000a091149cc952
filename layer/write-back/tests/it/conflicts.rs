//! Conflicts with another writer at the origin: both versions are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::Error;
use tombolo_core::fs::{Op, OpenFlags, RenameFlags};
use tombolo_test_support::{Act, Scripted, Session};

use crate::shown::{HIDDEN, assert_contents};
use crate::world::{Origin, Proxy};

/// Returns the other names in the root, and the contents of conflict copies.
fn ours(session: &Session) -> (Vec<String>, Vec<Vec<u8>>) {
    let (conflicts, rest): (Vec<_>, Vec<_>) =
        session.names("").into_iter().partition(|name| name.contains(".conflict-"));
    let ours = conflicts.iter().map(|name| session.contents(name)).collect();
    (rest, ours)
}

/// Runs a test with a new proxy, which looks up all names before its first change, and with one that has sent
/// changes before.
fn first_and_later(test: impl Fn(&Origin, &dyn Fn() -> Proxy)) {
    for is_first in [true, false] {
        let origin = Origin::new();
        let proxy = || {
            let proxy = origin.proxy();
            if !is_first {
                proxy.put("first", b"");
                flushed(&proxy, 0);
                proxy.unlink("first").expect("removed");
                flushed(&proxy, 0);
            }
            proxy
        };
        test(&origin, &proxy);
    }
}

fn flushed(proxy: &Proxy, conflicts: u64) {
    assert_eq!(proxy.write_back.flush().expect("a flush").conflicts, conflicts);
    assert_eq!(proxy.write_back.status().dirty_nodes, 0);
}

#[test]
fn conflicting_change_keeps_both_files() {
    first_and_later(|origin, proxy| {
        origin.direct.put("file", b"before");
        let proxy = proxy();
        proxy.overwrite("file", 0, b"OURS");
        origin.direct.put("file", b"theirs");
        flushed(&proxy, 1);
        for session in [&origin.direct, &proxy.session] {
            assert_eq!(session.contents("file"), b"theirs");
            assert_eq!(ours(session), (vec!["file".into()], vec![b"OURSrs".to_vec()]));
        }
    });
}

#[test]
fn conflict_copy_has_data_that_only_owners_read() {
    let origin = Origin::squashing(&["7:7"], 65534);
    origin.direct.chmod("", 0o777).expect("set");
    let theirs = origin.direct.by(7);
    theirs.put("file", b"before");
    theirs.chmod("file", 0o600).expect("set");
    let proxy = origin.proxy();
    let at = proxy.by(7);
    at.overwrite("file", 0, b"OURS");
    theirs.put("file", b"theirs");
    flushed(&proxy, 1);
    assert_eq!(ours(&origin.direct), (vec!["file".into()], vec![b"OURSrs".to_vec()]));
}

#[test]
fn failing_read_delays_the_conflict_copy() {
    let is_failing = Arc::new(AtomicBool::new(false));
    let fails = is_failing.clone();
    let origin = Origin::with(|inner| {
        Scripted::over(inner, move |call| {
            let is_read = call.op == Op::Read || call.op == Op::Open && !call.mutates;
            Act::fail_if(is_read && fails.load(Ordering::Relaxed), Error::io("a bad disk"))
        })
    });
    origin.direct.put("file", b"before");
    let proxy = origin.proxy();
    proxy.overwrite("file", 0, b"OURS");
    origin.direct.put("file", b"theirs");
    is_failing.store(true, Ordering::Relaxed);
    proxy.write_back.flush().expect_err("unreadable");
    assert_eq!(ours(&origin.direct), (vec!["file".into()], vec![]));
    is_failing.store(false, Ordering::Relaxed);
    flushed(&proxy, 1);
    assert_eq!(ours(&origin.direct), (vec!["file".into()], vec![b"OURSrs".to_vec()]));
}

#[test]
fn file_removed_by_others_becomes_a_conflict_copy() {
    first_and_later(|origin, proxy| {
        origin.direct.put("file", b"before");
        let proxy = proxy();
        proxy.put("file", b"ours");
        origin.direct.unlink("file").expect("removed");
        flushed(&proxy, 1);
        assert_eq!(ours(&origin.direct), (vec![], vec![b"ours".to_vec()]));
    });
}

#[test]
fn conflicting_name_keeps_both_files() {
    first_and_later(|origin, proxy| {
        let proxy = proxy();
        proxy.put("file", b"ours");
        origin.direct.put("file", b"theirs");
        flushed(&proxy, 1);
        for session in [&origin.direct, &proxy.session] {
            assert_eq!(session.contents("file"), b"theirs");
            assert_eq!(ours(session), (vec!["file".into()], vec![b"ours".to_vec()]));
        }
    });
}

#[test]
fn name_replaced_by_others_is_not_overwritten_or_removed() {
    first_and_later(|origin, proxy| {
        for name in ["one", "two"] {
            origin.direct.put(name, b"before");
        }
        let proxy = proxy();
        proxy.unlink("one").expect("removed");
        proxy.put("new", b"ours");
        proxy.rename("new", "two", RenameFlags::empty()).expect("replaced");
        for name in ["one", "two"] {
            origin.direct.put("other", b"theirs");
            origin.direct.rename("other", name, RenameFlags::empty()).expect("replaced");
        }
        flushed(&proxy, 2);
        assert_eq!(ours(&origin.direct), (vec!["one".into(), "two".into()], vec![b"ours".to_vec()]));
        for name in ["one", "two"] {
            assert_eq!(origin.direct.contents(name), b"theirs");
            assert_eq!(proxy.contents(name), b"theirs");
        }
    });
}

#[test]
fn directory_filled_by_others_is_not_removed() {
    first_and_later(|origin, proxy| {
        for dir in ["one", "two"] {
            origin.direct.mkdir(dir).expect("a directory");
        }
        let proxy = proxy();
        for dir in ["one", "two"] {
            proxy.rmdir(dir).expect("removed");
        }
        proxy.put("two", b"ours");
        for file in ["one/file", "two/file"] {
            origin.direct.put(file, b"theirs");
        }
        flushed(&proxy, 2);
        for session in [&origin.direct, &proxy.session] {
            assert_eq!(session.contents("one/file"), b"theirs");
            assert_eq!(session.contents("two"), b"ours");
            let all = session.names("");
            let other = all.iter().find(|name| name.starts_with("directory.conflict-")).expect("the other");
            assert_eq!(session.contents(&format!("{other}/file")), b"theirs");
        }
    });
}

#[test]
fn file_moved_or_removed_by_others_is_not_moved() {
    first_and_later(|origin, proxy| {
        origin.direct.mkdir("dir").expect("a directory");
        origin.direct.put("file", b"hello");
        let proxy = proxy();
        proxy.rename("dir", "ours", RenameFlags::empty()).expect("moved");
        proxy.rename("file", "moved", RenameFlags::empty()).expect("moved");
        origin.direct.rename("dir", "theirs", RenameFlags::empty()).expect("moved");
        origin.direct.unlink("file").expect("removed");
        flushed(&proxy, 2);
        for session in [&origin.direct, &proxy.session] {
            assert_eq!(ours(session), (vec!["theirs".to_owned()], vec![]));
        }
    });
}

#[test]
fn attributes_set_by_others_are_seen_after_local_writes() {
    first_and_later(|origin, proxy| {
        origin.direct.put("file", b"before");
        let proxy = proxy();
        proxy.overwrite("file", 0, b"OURS");
        origin.direct.chmod("file", 0o640).expect("another's");
        flushed(&proxy, 0);
        for session in [&origin.direct, &proxy.session] {
            assert_eq!(session.contents("file"), b"OURSre");
            assert_eq!(session.attr("file").mode.bits(), 0o640);
        }
    });
}

#[test]
fn conflict_copy_is_beside_the_present_local_name() {
    let origin = Origin::new();
    origin.direct.put("file", b"before");
    origin.direct.mkdir("dir").expect("a directory");
    let proxy = origin.proxy();
    proxy.put("file", b"ours");
    proxy.rename("file", "dir/moved", RenameFlags::empty()).expect("moved");
    origin.direct.put("file", b"theirs");
    flushed(&proxy, 1);
    let all = origin.direct.names("dir");
    let copy =
        all.iter().find(|name| name.starts_with("moved.conflict-")).unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(origin.direct.contents(&format!("dir/{copy}")), b"ours");
}

#[test]
fn a_hidden_name_of_another_proxy_is_left_alone() {
    let origin = Origin::new();
    origin.direct.put("theirs", b"theirs");
    for number in 1..100u64 {
        let hidden = format!("{HIDDEN}{:x}", 1 << 62 | number);
        origin.direct.link("theirs", &hidden).expect("linked");
    }
    let proxy = origin.proxy();
    proxy.put("ours", b"ours");
    flushed(&proxy, 0);
    assert_contents(&origin.direct, &[("theirs", "theirs"), ("ours", "ours")]);
    // Users can give no node such a name.
    let hidden = format!("{HIDDEN}1");
    let refused =
        [proxy.link("ours", &*hidden).err(), proxy.rename("ours", &*hidden, RenameFlags::empty()).err()];
    assert!(refused.iter().all(|error| matches!(error, Some(Error::AccessDenied))), "{refused:?}");
}

#[test]
fn our_own_changes_are_no_conflicts() {
    let origin = Origin::new();
    origin.direct.put("file", b"before");
    let proxy = origin.proxy();
    for round in 0..3 {
        proxy.put("file", &[round; 10]);
        proxy.rename("file", "other", RenameFlags::empty()).expect("moved");
        flushed(&proxy, 0);
        proxy.rename("other", "file", RenameFlags::empty()).expect("moved");
        proxy.link("file", "link").expect("linked");
        flushed(&proxy, 0);
        proxy.unlink("link").expect("removed");
    }
    flushed(&proxy, 0);
    assert_eq!(origin.direct.contents("file"), [2; 10]);
}

/// Uses nodes as an NFS client's handles do after the proxy's restart.
#[test]
fn conflict_copy_by_handle_stays_in_its_directory() {
    let origin = Origin::new();
    origin.direct.mkdir("dir").expect("a directory");
    for name in ["changed", "removed"] {
        origin.direct.put(&format!("dir/{name}"), b"before");
    }
    let proxy = origin.proxy();
    let nodes = ["changed", "removed"].map(|name| proxy.lookup(&format!("dir/{name}")).expect("it").node);
    drop(proxy);
    let proxy = origin.proxy();
    for node in nodes {
        proxy.handles().node_by_number(&proxy.cx, node).wait().expect("it is known");
        let file = proxy.open(node, OpenFlags::WRITE).expect("open");
        proxy.write(file, 0, b"OURS").expect("written");
        proxy.release(file);
    }
    origin.direct.put("dir/changed", b"theirs!");
    origin.direct.unlink("dir/removed").expect("removed");
    flushed(&proxy, 2);
    assert_eq!(origin.direct.names(""), ["dir"]);
    let kept = origin.direct.names("dir");
    let [theirs, ours, removed] = kept.try_into().expect("three files");
    assert_eq!(theirs, "changed");
    assert!(ours.starts_with("changed.conflict-"), "{ours}");
    assert!(removed.contains(".conflict-"), "{removed}");
    assert_eq!(origin.direct.contents(&format!("dir/{ours}")), b"OURSrs");
}

#[test]
fn removals_by_others_during_downtime_block_nothing() {
    let mut origin = Origin::new();
    for name in ["written", "set"] {
        origin.direct.put(name, b"before");
    }
    origin.direct.mkdir("dir").expect("a directory");
    let proxy = origin.proxy();
    proxy.put("written", b"ours");
    for name in ["set", "dir"] {
        proxy.chmod(name, 0o700).expect("set");
    }
    proxy.sync();
    origin.kill(proxy);
    for name in ["written", "set"] {
        origin.direct.unlink(name).expect("removed");
    }
    origin.direct.rmdir("dir").expect("removed");
    let proxy = origin.proxy();
    flushed(&proxy, 3);
    assert_eq!(ours(&origin.direct), (vec![], vec![b"ours".to_vec()]));
}
