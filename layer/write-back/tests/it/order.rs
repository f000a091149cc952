//! Order of arrival, and changes made or lost meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::{Op, RenameFlags, SetAttr};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::delay;
use tombolo_test_support::{Act, Scripted, until};

use crate::shown::{put_named, tree};
use crate::trouble::Trouble;
use crate::world::{Origin, Proxy};

fn troubled() -> (Arc<Trouble>, Origin) {
    let trouble = Trouble::new(0);
    let origin = Origin::with(|memory| trouble.over(memory));
    (trouble, origin)
}

/// Returns the position of an operation among the requests to the origin.
fn first(trouble: &Trouble, op: Op) -> usize {
    let log = trouble.log.lock().expect("a lock");
    log.iter().position(|each| *each == op).unwrap_or_else(|| panic!("{op:?} was not asked for"))
}

fn flush(proxy: &Proxy) {
    proxy.write_back.flush().expect("a flush");
}

#[test]
fn a_name_is_given_when_its_data_are_committed() {
    let (trouble, origin) = troubled();
    let proxy = origin.proxy();
    proxy.put("file", b"hello");
    flush(&proxy);
    let order = [Op::Create, Op::Write, Op::Fsync, Op::Rename].map(|op| first(&trouble, op));
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn nothing_is_removed_before_what_replaces_it_is_there() {
    let (trouble, origin) = troubled();
    origin.direct.mkdir("name").expect("a directory");
    origin.direct.put("name/old", b"old");
    let proxy = origin.proxy();
    proxy.unlink("name/old").expect("removed");
    proxy.rmdir("name").expect("removed");
    proxy.put("name", b"new");
    flush(&proxy);
    let last_rename = {
        let log = trouble.log.lock().expect("a lock");
        log.iter().rposition(|each| *each == Op::Rename).expect("a rename")
    };
    assert!(last_rename < first(&trouble, Op::Unlink) && last_rename < first(&trouble, Op::Rmdir));
    assert_eq!(origin.direct.contents("name"), b"new");
}

#[test]
fn data_lost_by_the_origin_before_commit_are_resent() {
    let (trouble, origin) = troubled();
    origin.direct.put("file", b"old");
    let proxy = origin.proxy();
    proxy.put("file", b"hello");
    // The server restarts: unstable data are lost, and its verifier changes.
    let direct = origin.direct.clone();
    trouble.once(Op::Fsync, move || {
        let node = direct.lookup("file").expect("the file").node;
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        direct.setattr(node, set).expect("lost");
        Some(Error::io("the write verifier has changed"))
    });
    assert!(proxy.write_back.flush().is_err());
    assert!(proxy.write_back.status().failure.is_some_and(|failure| failure.contains("verifier")));
    assert_eq!(proxy.contents("file"), b"hello", "it is kept here");
    flush(&proxy);
    assert_eq!(origin.direct.contents("file"), b"hello");
}

#[test]
fn writes_during_a_transfer_are_sent_next_time() {
    let (trouble, origin) = troubled();
    let proxy = origin.proxy();
    proxy.put("file", b"hello");
    let session = proxy.session.clone();
    trouble.once(Op::Fsync, move || {
        session.overwrite("file", 1, b"a");
        None
    });
    flush(&proxy);
    assert_eq!(origin.direct.contents("file"), b"hello");
    assert_eq!(proxy.contents("file"), b"hallo");
    flush(&proxy);
    assert_eq!(origin.direct.contents("file"), b"hallo");
}

#[test]
fn panicked_attempt_is_not_reported_as_complete() {
    for op in [Op::Create, Op::Write, Op::Rename, Op::Getattr] {
        let (trouble, origin) = troubled();
        let proxy = origin.proxy();
        proxy.put("file", b"hello");
        trouble.once(op, || panic!("planted"));
        let error = proxy.write_back.flush().expect_err("a panic");
        assert!(error.to_string().contains("input/output"), "{error}");
        proxy.put("other", b"more");
        flush(&proxy);
        assert_eq!(tree(&origin.direct, false), tree(&proxy.session, false));
    }
}

#[test]
fn names_in_a_ring_are_exchanged() {
    let (_, origin) = troubled();
    put_named(&origin.direct, &["a", "b", "c"]);
    let proxy = origin.proxy();
    for (one, other) in [("a", "b"), ("b", "c")] {
        proxy.rename(one, other, RenameFlags::EXCHANGE).expect("exchanged");
    }
    flush(&proxy);
    assert_eq!(["a", "b", "c"].map(|name| origin.direct.contents(name)), [b"b", b"c", b"a"]);
    assert_eq!(tree(&origin.direct, true), tree(&proxy.session, true));
}

#[test]
fn a_file_takes_the_names_of_two_others() {
    let trouble = Trouble::new(0);
    let slow = |memory| delay::over(memory, Duration::from_millis(50)).expect("a thread");
    let origin = Origin::with(|memory| trouble.over(Arc::new(slow(memory))));
    for name in ["a", "b"] {
        origin.direct.put(name, b"old");
    }
    let proxy = origin.proxy();
    proxy.put("new", b"new");
    proxy.rename("new", "a", RenameFlags::empty()).expect("renamed");
    proxy.unlink("b").expect("removed");
    proxy.link("a", "b").expect("a link");
    // The name of its creation is free when the file gets that name again.
    let (direct, first) = (origin.direct.clone(), Arc::new(Mutex::new(None)));
    let found = first.clone();
    trouble.once(Op::Link, move || {
        *found.lock().expect("a lock") = direct.get("a").ok();
        None
    });
    flush(&proxy);
    assert_eq!(first.lock().expect("a lock").as_deref(), Some(&b"new"[..]));
    assert_eq!(origin.direct.contents("b"), b"new");
    assert_eq!(tree(&origin.direct, true), tree(&proxy.session, true));
}

#[test]
fn file_removed_with_rename_in_doubt_stays_removed() {
    let (trouble, origin) = troubled();
    let proxy = origin.proxy();
    proxy.put("file", b"file");
    let (direct, failure) = (origin.direct.clone(), || Some(Error::io("trouble")));
    trouble.once(Op::Rename, move || {
        let all = direct.names("");
        direct.rename(&all[0], "file", RenameFlags::empty()).expect("performed, but not answered");
        failure()
    });
    proxy.write_back.flush().expect_err("it is not known whether it was performed");
    proxy.unlink("file").expect("removed");
    // The temporary name is looked up, and the other one cannot be.
    let next = trouble.clone();
    trouble.once(Op::Lookup, move || {
        next.once(Op::Lookup, failure);
        None
    });
    proxy.write_back.flush().expect_err("a look-up has failed");
    drop(proxy);
    let proxy = origin.proxy();
    flush(&proxy);
    assert!(proxy.lookup("file").is_err() && origin.direct.lookup("file").is_err());
    assert_eq!(proxy.write_back.status().conflicts, 0);
}

#[test]
fn exchange_beside_a_rename_makes_no_cycle() {
    let (is_armed, is_listing) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let go_on = Arc::<Promise<()>>::default();
    let (armed, listing, held) = (is_armed.clone(), is_listing.clone(), go_on.clone());
    let origin = Origin::with(|inner| {
        Scripted::over(inner, move |call| match call.op == Op::Readdir && armed.load(Ordering::SeqCst) {
            true => {
                listing.store(true, Ordering::SeqCst);
                Act::Withhold(held.clone())
            }
            false => Act::Pass,
        })
    });
    for dir in ["other", "parent", "parent/dir", "parent/dir/empty"] {
        origin.direct.dir(dir);
    }
    origin.direct.put("other/file", b"bytes");
    let proxy = origin.proxy();
    for path in ["other/file", "parent/dir/empty"] {
        proxy.lookup(path).expect("there");
    }
    is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let renamed = scope.spawn(|| proxy.rename("other", "parent/dir/empty", RenameFlags::empty()));
        until("the directory to be replaced is listed", || is_listing.load(Ordering::SeqCst));
        proxy.rename("other/file", "parent/dir", RenameFlags::EXCHANGE).expect("exchanged");
        is_armed.store(false, Ordering::SeqCst);
        go_on.keep(());
        let refused = renamed.join().expect("no panic");
        assert!(matches!(refused, Err(Error::InvalidArgument | Error::NotEmpty)), "{refused:?}");
    });
    assert_eq!(proxy.names("other/file"), ["empty"]);
}
