//! Validity of cached state while another client changes the origin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::{AccessMask, NodeId, Op, RenameFlags};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::fault::{self, Plan, Rule, What, When};
use tombolo_layer_cache::{Contract, Options, Prefetch};
use tombolo_test_support::{Act, Scripted, Session};

use crate::world::{Origin, grow_old, opened_store, pattern};

#[test]
fn immutable_tree_is_fetched_once() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(200_000, 1));
    for contract in [Contract::Immutable, Contract::Exclusive] {
        let options = Options { contract, prefetch: Prefetch::Off, ..Options::default() };
        let cached =
            origin.cached_with(&dir.path().join(format!("{contract:?}")), options, Default::default());
        assert_eq!(cached.session.get("file").expect("read"), pattern(200_000, 1));
        assert!(matches!(cached.session.lookup("none"), Err(Error::NotFound)));
        let asked = origin.asked_in_all();
        for _ in 0..10 {
            assert_eq!(cached.session.get("file").expect("read"), pattern(200_000, 1));
            assert!(matches!(cached.session.lookup("none"), Err(Error::NotFound)));
        }
        assert_eq!(origin.asked_in_all(), asked, "{contract:?}");
    }
}

#[test]
fn directory_created_under_exclusive_is_listed_without_the_origin() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let lists = |contract, is_other: bool| {
        let options = Options { contract, prefetch: Prefetch::Off, ..Options::default() };
        let cached =
            origin.cached_with(&dir.path().join(format!("{contract:?}")), options, Default::default());
        let (session, text) = (&cached.session, format!("{contract:?}"));
        let made = session.dir(&text);
        session.dir((made, "ours"));
        if is_other {
            origin.direct.dir(&format!("{text}/other"));
        }
        let before = origin.asked("readdir");
        (session.names(made), origin.asked("readdir") - before)
    };
    assert_eq!(lists(Contract::Exclusive, false), (vec!["ours".to_owned()], 0));
    let (mut names, asked) = lists(Contract::CloseToOpen, true);
    names.sort();
    assert_eq!((names, asked), (vec!["other".to_owned(), "ours".to_owned()], 1));
}

#[test]
fn overlapping_changes_under_exclusive_keep_names_and_permissions() {
    let (origin, dir) = (Origin::far(Duration::from_millis(3)), tempfile::tempdir().expect("a directory"));
    let options = Options { contract: Contract::Exclusive, prefetch: Prefetch::Off, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    cached.session.chmod("", 0o777).expect("setattr");
    let user = cached.session.by(8);
    let parent = user.mkdir_mode("work", 0o700).expect("made").entry.node;
    let asked = ["access", "readdir", "lookup"].map(|operation| origin.asked(operation));
    std::thread::scope(|scope| {
        for by in 0..8 {
            let user = &user;
            scope.spawn(move || {
                for round in 0..20 {
                    let (stays, goes) = (format!("{by}-{round}"), format!("{by}-gone"));
                    for text in [&stays, &goes] {
                        user.mkdir((parent, text)).expect("made");
                    }
                    let moved = format!("{by}-moved");
                    user.rename((parent, &goes), (parent, &moved), RenameFlags::empty()).expect("moved");
                    user.rmdir((parent, &moved)).expect("removed");
                    user.access(parent, AccessMask::WRITE | AccessMask::EXECUTE).expect("its maker");
                    user.lookup((parent, &stays)).expect("there");
                    let gone = user.lookup((parent, &moved));
                    assert!(matches!(gone, Err(Error::NotFound)));
                }
            });
        }
    });
    let mut names = user.names(parent);
    names.sort();
    let mut expected: Vec<_> = (0..160).map(|at| format!("{}-{}", at / 20, at % 20)).collect();
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(asked, ["access", "readdir", "lookup"].map(|operation| origin.asked(operation)));
}

#[test]
fn lookup_result_from_before_a_change_is_discarded() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let go = Arc::<Promise<()>>::default();
    let held = go.clone();
    origin.export = Scripted::over(origin.export, move |call| match call.op {
        Op::Lookup => Act::Withhold(held.clone()),
        _ => Act::Pass,
    });
    let options = Options { contract: Contract::Exclusive, prefetch: Prefetch::Off, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    let session = &cached.session;
    // Cache the directory as it is before the change.
    session.mkdir("old").expect("made");
    session.attr(NodeId::ROOT);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| session.lookup("new"));
        while origin.asked("lookup") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        session.mkdir("new").expect("made");
        go.keep(());
        let looked_up = looks.join().expect("no panic");
        assert!(matches!(looked_up, Err(Error::NotFound)), "it was looked up before it was made");
    });
    // With cached permissions, the cache answers.
    session.access(NodeId::ROOT, AccessMask::EXECUTE).expect("allowed");
    session.lookup("new").expect("made");
}

#[test]
fn an_open_sees_what_was_closed_before_it() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    for round in 0..100 {
        origin.direct.put("file", &pattern(1000, round));
        assert_eq!(cached.session.get("file").expect("read"), pattern(1000, round));
    }
    let reads = origin.asked("read");
    grow_old();
    assert_eq!(cached.session.get("file").expect("read"), pattern(1000, 99));
    assert_eq!(cached.session.get("file").expect("read"), pattern(1000, 99));
    assert!(origin.asked("read") <= reads + 1, "the same version is not read again");
}

#[test]
fn name_just_created_at_origin_is_found_immediately() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("known", b"");
    grow_old();
    let options = Options { attr_refresh: Duration::from_secs(3600), ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    cached.session.names("");
    for round in 0..3 {
        let text = format!("new-{round}");
        // Absences are valid for a tenth of a second.
        std::thread::sleep(Duration::from_millis(120));
        origin.direct.put(&text, b"here");
        assert_eq!(cached.session.get(&text).expect("it was made before"), b"here");
    }
}

#[test]
fn absent_names_cost_one_revalidation_of_their_directory() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    (0..10).for_each(|n| origin.direct.put(&format!("known-{n}"), b""));
    grow_old();
    let contracts =
        [Contract::CloseToOpen, Contract::Exclusive, Contract::Refresh(Duration::from_secs(3600))];
    for contract in contracts {
        let options = Options { contract, attr_refresh: Duration::from_secs(3600), ..Options::default() };
        let cached =
            origin.cached_with(&dir.path().join(format!("{contract:?}")), options, Default::default());
        cached.session.names("");
        let _ = cached.session.lookup("none");
        let (looked_up, listed) = (origin.asked("lookup"), origin.asked("readdir"));
        let (asked, began) = (origin.asked("getattr"), Instant::now());
        std::thread::scope(|scope| {
            for by in 0..8 {
                let session = &cached.session;
                scope.spawn(move || {
                    for n in 0..500 {
                        assert!(matches!(session.lookup(&format!("none-{by}-{n}")), Err(Error::NotFound)));
                    }
                });
            }
        });
        let (looks, tenths) = (origin.asked("getattr") - asked, began.elapsed().as_millis() as u64 / 100);
        // Each look-up takes the attributes that accompany a reply, which is free, and then requests them, at
        // most twice in a tenth of a second.
        let most = if contract == Contract::CloseToOpen { 4 * (tenths + 1) } else { 0 };
        assert!(looks <= most, "{contract:?}: {looks} looks in {tenths} tenths of a second");
        assert_eq!((origin.asked("lookup"), origin.asked("readdir")), (looked_up, listed), "{contract:?}");
    }
}

#[test]
fn only_the_first_of_many_failing_look_ups_waits() {
    const DELAY: Duration = Duration::from_millis(25);
    let (origin, dir) = (Origin::far(DELAY), tempfile::tempdir().expect("a directory"));
    origin.direct.put("known", b"");
    grow_old();
    let options = Options { attr_refresh: Duration::from_secs(3600), ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    cached.session.names("");
    std::thread::sleep(Duration::from_millis(150));
    let waits_of_a_second = || {
        let (began, mut ended, mut waits) = (Instant::now(), Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(1) {
            let looked = Instant::now();
            assert!(matches!(cached.session.lookup("none"), Err(Error::NotFound)));
            // Nothing was renewed while this thread had no processor.
            let was_held_up = looked.duration_since(ended) > DELAY / 2;
            ended = Instant::now();
            waits += u32::from(!was_held_up && ended.duration_since(looked) > DELAY / 2);
            std::thread::sleep(Duration::from_millis(1));
        }
        waits
    };
    // Of look-ups that wait for each renewal there are eight in every second, however busy the machine is.
    let waits: Vec<_> =
        std::iter::repeat_with(waits_of_a_second).take(10).take_while(|waits| *waits > 3).collect();
    assert!(waits.len() < 10, "{waits:?} look-ups have waited");
    // A new file is found by a look-up that begins a tenth of a second later.
    origin.direct.put("none", b"");
    std::thread::sleep(Duration::from_millis(110));
    cached.session.lookup("none").expect("found");
}

#[test]
fn attributes_without_open_respect_their_maximum_age() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let attr_refresh = Duration::from_millis(300);
    let options = Options { attr_refresh, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    origin.direct.put("file", b"one");
    let entry = cached.session.lookup("file").expect("found");
    assert!(matches!(cached.session.lookup("new"), Err(Error::NotFound)));
    origin.direct.put("file", b"three");
    origin.direct.put("new", b"");
    std::thread::sleep(attr_refresh + Duration::from_millis(50));
    let attr = cached.session.attr(entry.node);
    assert_eq!(attr.size, 5);
    cached.session.lookup("new").expect("found");
    let unlinked = origin.direct.unlink("new");
    unlinked.expect("unlink");
    std::thread::sleep(attr_refresh + Duration::from_millis(50));
    assert!(matches!(cached.session.lookup("new"), Err(Error::NotFound)));
}

#[test]
fn a_change_of_ours_hides_no_other_s() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let attr_refresh = Duration::from_millis(300);
    let options = Options { attr_refresh, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    grow_old();
    assert!(matches!(cached.session.lookup("theirs"), Err(Error::NotFound)));
    origin.direct.put("theirs", b"");
    let session = &cached.session;
    let made = session.mkdir("ours");
    made.expect("mkdir");
    std::thread::sleep(attr_refresh + Duration::from_millis(50));
    // The directory is unchanged since the local change.
    session.attr(NodeId::ROOT);
    session.lookup("theirs").expect("found");
}

#[test]
fn losing_an_unknown_name_revalidates_the_file() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    origin.direct.put("file", b"");
    let theirs = origin.direct.lookup("file").expect("found").node;
    let linked = origin.direct.link(theirs, "link");
    linked.expect("link");
    let session = &cached.session;
    let entry = session.lookup("file").expect("found");
    assert_eq!(entry.attr.nlink, 2);
    session.unlink("link").expect("unlink");
    let attr = session.attr(entry.node);
    assert_eq!(attr.nlink, 1);
}

#[test]
fn losing_a_name_added_by_others_revalidates_the_file() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let options = Options { attr_refresh: Duration::from_secs(3600), ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    let (direct, session) = (&origin.direct, &cached.session);
    direct.put("file", b"");
    direct.put("other", b"");
    let theirs = direct.lookup("file").expect("found").node;
    direct.link(theirs, "link").expect("link");
    let entry = session.lookup("file").expect("found");
    session.lookup("other").expect("found");
    // The former `other` is the file now.
    direct.rename("link", "other", Default::default()).expect("rename");
    session.unlink("other").expect("unlink");
    let attr = session.attr(entry.node);
    assert_eq!((entry.attr.nlink, attr.nlink), (2, 1));
}

#[test]
fn removal_fails_while_the_target_is_unknown() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    let fails = Rule { op: Some(Op::Lookup), when: When::Nth(1), what: What::Fail(|| Error::TimedOut) };
    let export = Arc::new(fault::over(origin.export.clone(), Plan { rules: vec![fails], seed: 0 }));
    let store = opened_store(dir.path(), Default::default());
    let cache = tombolo_layer_cache::over(&*export, store, Options::default()).expect("a cache");
    let session = Session::attach(&cache);
    let unlink = || session.unlink("file");
    assert!(matches!(unlink(), Err(Error::TimedOut)));
    origin.direct.lookup("file").expect("still there");
    unlink().expect("unlink");
}

/// Compares each read through the cache with the origin's data.
#[test]
fn each_open_reads_current_data_with_two_writers() {
    let mut random = fastrand::Rng::with_seed(7);
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let options = Options { attr_refresh: Duration::ZERO, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    for step in 0..1500 {
        let (a, b) = (format!("file-{}", random.u8(..6)), format!("file-{}", random.u8(..6)));
        let writer = if random.bool() { &origin.direct } else { &cached.session };
        match random.u8(..6) {
            0 | 1 => writer.put(&a, &pattern(random.usize(..200_000), random.u8(..))),
            2 => {
                let _ = writer.unlink(&a);
            }
            3 => {
                let _ = writer.rename(&a, &b, Default::default());
            }
            _ => {}
        }
        let (there, here) = (origin.direct.get(&b), cached.session.get(&b));
        match (there, here) {
            (Ok(there), Ok(here)) => assert!(there == here, "step {step}: {b} differs"),
            (Err(there), Err(here)) => assert_eq!(there.to_string(), here.to_string(), "step {step}: {b}"),
            (there, here) => {
                panic!(
                    "step {step}: {b}: {:?} there and {:?} here",
                    there.map(|b| b.len()),
                    here.map(|b| b.len())
                )
            }
        }
    }
}

#[test]
fn earlier_opening_reads_later_local_writes() {
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        origin.direct.put("file", &pattern(5000, 1));
        let cached = origin.cached(dir.path(), contract);
        let file = cached.session.reader("file");
        assert_eq!(cached.session.read(file, 0, 9000).expect("read"), pattern(5000, 1));
        cached.session.put("file", &pattern(7000, 2));
        assert_eq!(cached.session.read(file, 0, 9000).expect("read"), pattern(7000, 2), "{contract:?}");
    }
}
