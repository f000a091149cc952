//! Attributes that the origin refuses to set: requested ones remain differences, implied ones follow the
//! origin, and everything else arrives.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_core::fs::{Create, Device, Export, FileType, Mode, NewMode, Op, RenameFlags};
use tombolo_core::{Error, Identity};
use tombolo_layer_basic::around::Call;
use tombolo_layer_write_back::{Allowed, Options, try_out};
use tombolo_test_support::history::cases;
use tombolo_test_support::{Act, READ_WRITE, Scripted, Session, mode, plain, until};

use crate::random::Pair;
use crate::shown::{put_named, tree};
use crate::world::{Origin, on_request};

/// Uid that the origin substitutes for unknown users.
const NOBODY: u32 = 65534;

/// Returns an origin that refuses every change of attributes while the switch is on.
fn strict() -> (Origin, Arc<AtomicBool>) {
    refusing(Op::Setattr)
}

#[test]
fn refused_owner_is_reported_and_blocks_nothing() {
    let (mut origin, strict) = strict();
    let proxy = origin.proxy();
    proxy.mkdir("dir").expect("made");
    proxy.put("dir/given", b"given");
    proxy.chown("dir/given", 7, 0).expect("answered");
    proxy.put("other", b"other");
    let refused = format!("{:?}", proxy.write_back.flush().expect_err("refused"));
    assert!(refused.contains("the owner of dir/given"), "{refused}");
    assert_eq!(origin.direct.contents("dir/given"), b"given");
    assert_eq!(origin.direct.names(""), ["dir", "other"], "no temporary name is left");
    assert_eq!(origin.direct.names("dir"), ["given"]);
    let status = proxy.write_back.status();
    assert_eq!((status.refused, status.is_refused, status.is_clean), (1, true, false));
    assert_eq!(status.at_origin, status.change, "all but that is there");
    assert!(status.failure.is_some());
    assert_eq!(proxy.attr("dir/given").uid, 7, "as the program has set it");

    proxy.put("later", b"later");
    proxy.write_back.flush().expect_err("still refused");
    assert_eq!(origin.direct.contents("later"), b"later");
    let proxy = origin.restarted(proxy);
    assert_eq!(proxy.attr("dir/given").uid, 7);
    proxy.write_back.flush().expect_err("it is tried once more, and refused");
    strict.store(false, Ordering::Relaxed);
    proxy.write_back.flush().expect("now it is allowed");
    assert_eq!(origin.direct.attr("dir/given").uid, 7);
    let status = proxy.write_back.status();
    assert_eq!((status.refused, status.is_clean, status.failure), (0, true, None));
}

#[test]
fn a_refusal_is_not_tried_again_unasked() {
    let (origin, _strict) = strict();
    let proxy = origin.proxy_with(Options { idle: Duration::ZERO, ..Options::default() });
    proxy.put("given", b"");
    proxy.chown("given", 7, 0).expect("answered");
    proxy.write_back.flush().expect_err("refused");
    let asked = origin.asked("setattr");
    proxy.put("other", b"bytes");
    until("the other file is there", || {
        let status = proxy.write_back.status();
        origin.direct.get("other").is_ok() && status.at_origin >= status.change
    });
    // Attributes of the new file and of the directory: all at once, then one by one, by each user.
    let more = origin.asked("setattr") - asked;
    assert!(more <= 12, "{more}");
    assert_eq!(proxy.write_back.status().refused, 1);
    // Reverting the change removes the difference.
    let owner = origin.direct.attr("given").uid;
    proxy.chown("given", owner, 0).expect("answered");
    proxy.write_back.flush().expect("nothing is refused");
}

/// Returns an origin that refuses one operation while the switch is on, as it is at first.
pub fn refusing(op: Op) -> (Origin, Arc<AtomicBool>) {
    let is_on = Arc::new(AtomicBool::new(true));
    (Origin::with(|inner| refuse(inner, op, is_on.clone())), is_on)
}

/// Puts a layer over an export that refuses one operation while the switch is on.
pub fn refuse(inner: Arc<dyn Export>, op: Op, is_on: Arc<AtomicBool>) -> Arc<dyn Export> {
    let is_refused = move |call: Call| call.op == op && is_on.load(Ordering::Relaxed);
    Scripted::over(inner, move |call| Act::fail_if(is_refused(call), Error::NotPermitted))
}

#[test]
fn links_and_renames_into_refused_directory_are_retained() {
    let (mut origin, refusing) = refusing(Op::Mkdir);
    put_named(&origin.direct, &["linked", "moved"]);
    let proxy = origin.proxy();
    proxy.mkdir("made").expect("answered");
    proxy.link("linked", "made/link").expect("answered");
    proxy.rename("moved", "made/moved", RenameFlags::empty()).expect("answered");
    proxy.put("both", b"both");
    proxy.link("both", "made/both").expect("answered");
    let is_shown = |at: &Session, place: &str| {
        for (path, data) in [("made/link", "linked"), ("made/moved", "moved"), ("made/both", "both")] {
            let read = at.get(path).unwrap_or_else(|error| panic!("{place}: {path}: {error}"));
            assert_eq!(read, data.as_bytes(), "{place}: {path}");
        }
    };
    for _ in 0..2 {
        proxy.write_back.flush().expect_err("refused");
        is_shown(&proxy, "after a refusal");
        assert_eq!(proxy.write_back.status().conflicts, 0);
    }
    let proxy = origin.restarted(proxy);
    proxy.write_back.flush().expect_err("refused");
    is_shown(&proxy.session, "after a restart");
    refusing.store(false, Ordering::Relaxed);
    proxy.write_back.flush().expect("now it is allowed");
    is_shown(&origin.direct, "at the origin");
    assert!(proxy.write_back.status().is_clean);
}

/// Performs the operation that the origin refuses, as a program would.
fn do_refused(op: Op, at: &Session) {
    match op {
        Op::Mknod => {
            let (dir, name) = at.parent("pipe").expect("a place");
            let (kind, mode) = (FileType::Fifo, NewMode::settled(Mode::new(0o600)));
            at.fs.mknod(&at.cx, dir, name, kind, mode, Device::default()).wait().expect("answered");
        }
        Op::Mkdir => {
            at.mkdir("made").expect("answered");
            at.mkdir("made/deep").expect("answered");
            at.put("made/deep/file", b"file");
        }
        Op::Create => at.put("made", b"file"),
        Op::Rename => {
            at.rename("old", "new", RenameFlags::empty()).expect("answered");
        }
        Op::Link => {
            at.link("old", "new").expect("answered");
        }
        Op::Write => at.put("old", b"new"),
        _ => {
            at.unlink("full/file").expect("answered");
            at.rmdir("full").expect("answered");
        }
    }
}

fn is_shown(op: Op, at: &Session) -> bool {
    let holds = |path: &str, data: &[u8]| at.get(path).is_ok_and(|found| found == data);
    match op {
        Op::Mknod => at.lookup("pipe").is_ok_and(|found| found.attr.file_type == FileType::Fifo),
        Op::Mkdir => holds("made/deep/file", b"file"),
        Op::Create => holds("made", b"file"),
        Op::Rename => holds("new", b"old") && at.lookup("old").is_err(),
        Op::Link => holds("new", b"old") && holds("old", b"old"),
        Op::Write => holds("old", b"new"),
        _ => at.lookup("full").is_err(),
    }
}

#[test]
fn refused_operations_are_reported_retained_and_block_nothing() {
    for op in [Op::Mknod, Op::Mkdir, Op::Create, Op::Rename, Op::Link, Op::Write, Op::Unlink] {
        let (mut origin, refusing) = refusing(op);
        put_named(&origin.direct, &["old", "kept"]);
        origin.direct.mkdir("full").expect("made");
        origin.direct.put("full/file", b"file");
        let prompt = Duration::from_millis(20);
        let proxy = origin.proxy_with(Options { idle: prompt, delay_max: prompt, ..Options::default() });
        do_refused(op, &proxy);
        proxy.chown("kept", 5, 0).expect("answered");
        proxy.chown("", 5, 0).expect("answered");
        let refused = format!("{:?}", proxy.write_back.flush().expect_err("refused"));
        assert!(refused.contains("the origin refuses what was done to"), "{op:?}: {refused}");
        let status = proxy.write_back.status();
        assert_eq!((status.refused, status.is_refused, status.is_clean), (1, true, false), "{op:?}");
        assert!(status.at_origin < status.change, "{op:?}: what was refused has not arrived");
        assert_eq!(status.settled, status.change, "{op:?}");
        assert!(status.failure.is_some_and(|failure| refused.contains(&failure)), "{op:?}");
        let owner = |path: &str| origin.direct.attr(path).uid;
        assert_eq!((owner("kept"), owner("")), (5, 5), "{op:?}");
        assert!(is_shown(op, &proxy), "{op:?}");
        // The refused operation is not repeated at once, and delays no other.
        std::thread::sleep(Duration::from_millis(200));
        let ended = proxy.write_back.status().attempts_ended;
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(proxy.write_back.status().attempts_ended, ended, "{op:?}");
        proxy.chown("kept", 6, 0).expect("answered");
        until("it does not wait for what was refused", || owner("kept") == 6);
        let proxy = origin.restarted(proxy);
        assert!(is_shown(op, &proxy.session), "{op:?}: it outlives a restart");
        proxy.write_back.flush().expect_err("it is tried once more, and refused");
        assert!(proxy.write_back.status().at_origin < proxy.write_back.status().change, "{op:?}");
        refusing.store(false, Ordering::Relaxed);
        proxy.write_back.flush().expect("now it is allowed");
        assert!(is_shown(op, &origin.direct), "{op:?}");
        let status = proxy.write_back.status();
        assert_eq!((status.refused, status.is_clean, status.failure), (0, true, None), "{op:?}");
    }
}

#[test]
fn refused_lookups_block_nothing_else() {
    let (origin, refusing) = refusing(Op::Lookup);
    refusing.store(false, Ordering::Relaxed);
    put_named(&origin.direct, &["old", "kept"]);
    let proxy = origin.proxy();
    do_refused(Op::Rename, &proxy.session);
    proxy.chown("kept", 5, 0).expect("answered");
    drop(proxy);
    refusing.store(true, Ordering::Relaxed);
    // Names are looked up first, as the earlier proxy may have changed them.
    let proxy = origin.proxy();
    proxy.write_back.flush().expect_err("refused");
    assert_eq!(origin.direct.attr("kept").uid, 5);
    assert!(origin.direct.get("old").is_ok(), "not changed unseen");
    refusing.store(false, Ordering::Relaxed);
    proxy.write_back.flush().expect("now it is allowed");
    assert!(is_shown(Op::Rename, &origin.direct));
    assert_eq!(proxy.write_back.status().conflicts, 0);
}

#[test]
fn removal_of_refused_files_ends_their_refusal() {
    let (origin, _refusing) = refusing(Op::Mkdir);
    let proxy = origin.proxy();
    do_refused(Op::Mkdir, &proxy);
    proxy.write_back.flush().expect_err("refused");
    proxy.unlink("made/deep/file").expect("removed");
    proxy.rmdir("made/deep").expect("removed");
    proxy.write_back.flush().expect_err("refused");
    proxy.rmdir("made").expect("removed");
    proxy.write_back.flush().expect("nothing is refused");
    let status = proxy.write_back.status();
    assert_eq!((status.refused, status.is_clean, status.failure), (0, true, None));
}

#[test]
fn writers_fail_once_only_refused_data_occupy_the_space() {
    let (origin, refusing) = refusing(Op::Create);
    origin.direct.put("old", b"old");
    let proxy = origin.proxy_with(Options { dirty_bytes_max: 1000, ..on_request() });
    proxy.put("refused", &[1; 900]);
    for _ in 0..2 {
        let (writer, (ended, written)) = (proxy.session.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || ended.send(writer.try_put("old", &[2; 200])));
        let written = written.recv_timeout(Duration::from_secs(30));
        assert!(matches!(written.expect("it does not wait"), Err(Error::NoSpace)));
        assert!(proxy.write_back.status().failure.is_some_and(|failure| failure.contains("refuses")));
    }
    // Each writer made no attempt of its own.
    assert!(proxy.write_back.status().attempts_ended <= 2);
    proxy.put("old", &[2; 50]);
    proxy.write_back.flush().expect_err("refused");
    assert_eq!(origin.direct.contents("old"), [2; 50]);
    proxy.unlink("refused").expect("removed");
    proxy.put("old", &[3; 200]);
    refusing.store(false, Ordering::Relaxed);
    proxy.write_back.flush().expect("all is there");
}

#[test]
fn refused_opening_hides_no_conflict() {
    for is_changed_first in [true, false] {
        let (origin, refusing) = refusing(Op::Open);
        refusing.store(false, Ordering::Relaxed);
        origin.direct.put("file", b"before");
        let proxy = origin.proxy();
        proxy.put("file", b"ours");
        proxy.chmod("file", 0o600).expect("answered");
        let theirs = || origin.direct.put("file", b"theirs!");
        if is_changed_first {
            theirs();
        }
        refusing.store(true, Ordering::Relaxed);
        assert_eq!(proxy.write_back.flush().is_ok(), is_changed_first);
        if !is_changed_first {
            theirs();
            refusing.store(false, Ordering::Relaxed);
            proxy.write_back.flush().expect("now it is allowed");
        }
        assert_eq!(proxy.write_back.status().conflicts, 1);
        assert_eq!(origin.direct.contents("file"), b"theirs!");
        let mode = origin.direct.attr("file").mode;
        assert_eq!(mode, Mode::new(if is_changed_first { 0o644 } else { 0o600 }));
        let all = origin.direct.names("");
        let copy = all.iter().find(|name| name.contains(".conflict-")).expect("a conflict copy");
        assert_eq!(origin.direct.contents(copy), b"ours");
    }
}

/// Puts a layer over an export that refuses `rate` of 1,000 changes and look-ups at random.
fn moody(inner: Arc<dyn Export>, rate: Arc<AtomicU64>, random: fastrand::Rng) -> Arc<dyn Export> {
    let random = Mutex::new(random);
    Scripted::over(inner, move |call| {
        let mut random = random.lock().expect("a lock");
        let errors = [Error::NotPermitted, Error::AccessDenied, Error::ReadOnly, Error::NotSupported];
        let is_refused = random.u64(0..1000) < rate.load(Ordering::Relaxed);
        let can_be = call.mutates || call.op == Op::Lookup || call.op == Op::Open;
        let error = errors.into_iter().nth(random.usize(0..4));
        error.filter(|_| is_refused && can_be).map_or(Act::Pass, Act::Fail)
    })
}

/// Returns names, link counts and contents of a tree, without the attributes, which may be the origin's.
fn names_and_data(session: &Session) -> Vec<(String, u32, String, u64, u64)> {
    let all = tree(session, false).into_iter();
    all.map(|(path, one)| (path, one.nlink, one.same_as, one.size, one.content)).collect()
}

#[test]
fn random_refusals_lose_nothing_and_hold_back_the_watermark() {
    for seed in 0..cases(3) {
        let mut random = fastrand::Rng::with_seed(seed);
        let rate = Arc::<AtomicU64>::default();
        let origin = Origin::with(|inner| moody(inner, rate.clone(), random.fork()));
        let mut pair = Pair::new(&origin);
        for at in 0..300 {
            let (step, expected, got) = pair.step(&mut random);
            let context = format!("seed {seed}, step {at}: {step:?}");
            // Shown attributes may be the origin's.
            assert_eq!(got.map(drop), expected.map(drop), "{context}");
            if random.u8(0..20) == 0 {
                rate.store([20, 200, 700][random.usize(0..3)], Ordering::Relaxed);
                let flushed = pair.proxy.write_back.flush();
                rate.store(0, Ordering::Relaxed);
                let status = pair.proxy.write_back.status();
                let has_arrived = names_and_data(&origin.direct) == names_and_data(&pair.twin.session);
                assert!(has_arrived || flushed.is_err() && status.at_origin < status.change, "{context}");
            }
            if random.u8(0..60) == 0 {
                pair = pair.restart(&origin);
            }
            if random.u8(0..20) == 0 {
                let expected = names_and_data(&pair.twin.session);
                assert_eq!(names_and_data(&pair.here.session), expected, "{context}");
            }
        }
        pair.release_all(&format!("seed {seed}"));
        pair.proxy.write_back.flush().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(names_and_data(&origin.direct), names_and_data(&pair.twin.session), "seed {seed}");
        let status = pair.proxy.write_back.status();
        assert_eq!((status.refused, status.is_clean, status.conflicts), (0, true, 0), "seed {seed}");
        assert_eq!((status.dirty_bytes, status.at_origin), (0, status.change), "seed {seed}");
    }
}

#[test]
fn implied_attributes_follow_the_origin() {
    let (origin, _strict) = strict();
    let proxy = origin.proxy();
    // Created with more rights than its final mode while it is sent.
    let file = proxy.file_as("made", &Create { mode: mode(0o200), ..plain() }).expect("made");
    proxy.write(file, 0, b"made").expect("written");
    proxy.release(file);
    assert_eq!(proxy.attr("made").mode, Mode::new(0o200));
    proxy.write_back.flush().expect("nothing was asked for that is refused");
    let theirs = origin.direct.attr("made");
    let ours = proxy.attr("made");
    assert_eq!((ours.mode, ours.uid, ours.mtime), (theirs.mode, theirs.uid, theirs.mtime));
    assert!(proxy.write_back.status().is_clean);
}

#[test]
fn file_of_a_squashed_user_keeps_its_local_owner() {
    let origin = Origin::squashing(&["0:0"], NOBODY);
    origin.direct.chmod("", 0o777).expect("set");
    let proxy = origin.proxy();
    let at = proxy.by(7);
    at.mkdir("dir").expect("made");
    at.put("dir/one", b"one");
    assert_eq!(at.attr("dir/one").uid, 7);
    proxy.write_back.flush().expect("all that was asked for is there");
    assert_eq!(at.attr("dir/one").uid, NOBODY);
    at.overwrite("dir/one", 0, b"two");
    at.chmod("dir/one", 0o600).expect("its own");
    at.put("dir/other", b"");
    proxy.write_back.flush().expect("all is there");
    assert_eq!(origin.direct.contents("dir/one"), b"two");
    assert_eq!(origin.direct.names("dir"), ["one", "other"]);
    assert!(matches!(at.by(8).open("dir/one", READ_WRITE), Err(Error::AccessDenied)));
}

#[test]
fn directory_is_sent_as_its_creating_user() {
    let (origin, strict) = strict();
    strict.store(false, Ordering::Relaxed);
    origin.direct.chmod("", 0o777).expect("set");
    strict.store(true, Ordering::Relaxed);
    let proxy = origin.proxy();
    let [maker, victim] = [8, 9].map(|id| proxy.by(id));
    maker.mkdir("dir").expect("made");
    maker.chmod("dir", 0o777).expect("its own");
    victim.release(victim.file_as("dir/secret", &Create { mode: mode(0o600), ..plain() }).expect("made"));
    proxy.write_back.flush().expect("all is there");
    let owner = |path: &str| origin.direct.attr(path).uid;
    assert_eq!((owner("dir"), owner("dir/secret")), (8, 9));
    // Checked by its attributes, as the origin does not have it.
    victim.release(victim.file_as("dir/later", &Create { mode: mode(0o600), ..plain() }).expect("made"));
    assert!(
        matches!(maker.open("dir/later", READ_WRITE), Err(Error::AccessDenied)),
        "it is not taken for the other"
    );
}

#[test]
fn a_trial_tells_what_the_origin_allows() {
    let (origin, strict) = strict();
    let proxy = origin.proxy();
    let allowed = || try_out(&proxy.cache, Identity::ROOT).expect("tried");
    assert_eq!(allowed(), Allowed { squashed_to: None, refuses_owners: true, refuses_modes: true });
    strict.store(false, Ordering::Relaxed);
    assert_eq!(allowed(), Allowed::default());
    assert_eq!(origin.direct.names(""), [""; 0], "nothing is left");
}
