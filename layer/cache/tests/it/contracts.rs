//! Validity of cached state while another client changes the origin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::{AccessMask, NodeId, Op, RenameFlags};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::fault::{self, Plan, Rule, What, When};
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::{Act, Scripted, Session, until};

use crate::world::{LONG, Origin, grow_old, options, pattern, refresh};

#[test]
fn immutable_tree_is_fetched_once() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(200_000, 1));
    for contract in [Contract::Immutable, Contract::Exclusive] {
        let cached = origin.cached_with(&dir.path().join(format!("{contract:?}")), options(contract));
        assert_eq!(cached.contents("file"), pattern(200_000, 1));
        assert!(matches!(cached.lookup("none"), Err(Error::NotFound)));
        let asked = origin.asked_in_all();
        for _ in 0..10 {
            assert_eq!(cached.contents("file"), pattern(200_000, 1));
            assert!(matches!(cached.lookup("none"), Err(Error::NotFound)));
        }
        assert_eq!(origin.asked_in_all(), asked, "{contract:?}");
    }
}

#[test]
fn directory_created_under_exclusive_is_listed_without_the_origin() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let lists = |contract, is_other: bool| {
        let cached = origin.cached_with(&dir.path().join(format!("{contract:?}")), options(contract));
        let text = format!("{contract:?}");
        let made = cached.dir(&text);
        cached.dir((made, "ours"));
        if is_other {
            origin.direct.dir(&format!("{text}/other"));
        }
        let before = origin.asked("readdir");
        (cached.names(made), origin.asked("readdir") - before)
    };
    assert_eq!(lists(Contract::Exclusive, false), (vec!["ours".to_owned()], 0));
    assert_eq!(lists(Contract::CloseToOpen, true), (vec!["other".to_owned(), "ours".to_owned()], 1));
}

#[test]
fn overlapping_changes_under_exclusive_keep_names_and_permissions() {
    let (origin, dir) = (Origin::far(Duration::from_millis(3)), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached_with(dir.path(), options(Contract::Exclusive));
    cached.chmod("", 0o777).expect("setattr");
    let user = cached.by(8);
    let parent = user.mkdir_mode("work", 0o700).expect("made").entry.node;
    let asked = || ["access", "readdir", "lookup"].map(|operation| origin.asked(operation));
    let before = asked();
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
                    assert!(matches!(user.lookup((parent, &moved)), Err(Error::NotFound)));
                }
            });
        }
    });
    let mut expected: Vec<_> = (0..160).map(|at| format!("{}-{}", at / 20, at % 20)).collect();
    expected.sort();
    assert_eq!(user.names(parent), expected);
    assert_eq!(asked(), before);
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
    let cached = origin.cached_with(dir.path(), options(Contract::Exclusive));
    // Cache the directory as it is before the change.
    cached.mkdir("old").expect("made");
    cached.attr(NodeId::ROOT);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| cached.lookup("new"));
        until("it is looked up", || origin.asked("lookup") > 0);
        cached.mkdir("new").expect("made");
        go.keep(());
        let looked_up = looks.join().expect("no panic");
        assert!(matches!(looked_up, Err(Error::NotFound)), "it was looked up before it was made");
    });
    // With cached permissions, the cache answers.
    cached.access(NodeId::ROOT, AccessMask::EXECUTE).expect("allowed");
    cached.lookup("new").expect("made");
}

#[test]
fn an_open_sees_what_was_closed_before_it() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    for round in 0..100 {
        origin.direct.put("file", &pattern(1000, round));
        assert_eq!(cached.contents("file"), pattern(1000, round));
    }
    let reads = origin.asked("read");
    grow_old();
    assert_eq!(cached.contents("file"), pattern(1000, 99));
    assert_eq!(cached.contents("file"), pattern(1000, 99));
    assert!(origin.asked("read") <= reads + 1, "the same version is not read again");
}

#[test]
fn name_just_created_at_origin_is_found_immediately() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("known", b"");
    grow_old();
    let cached = origin.cached_with(dir.path(), refresh(LONG));
    cached.names("");
    for round in 0..3 {
        let text = format!("new-{round}");
        // Absences are valid for a tenth of a second.
        std::thread::sleep(Duration::from_millis(120));
        origin.direct.put(&text, b"here");
        assert_eq!(cached.get(&text).expect("it was made before"), b"here");
    }
}

#[test]
fn absent_names_cost_one_revalidation_of_their_directory() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    (0..10).for_each(|n| origin.direct.put(&format!("known-{n}"), b""));
    grow_old();
    let contracts = [Contract::CloseToOpen, Contract::Exclusive, Contract::Refresh(LONG)];
    for contract in contracts {
        let options = Options { contract, attr_refresh: LONG, ..Options::default() };
        let cached = origin.cached_with(&dir.path().join(format!("{contract:?}")), options);
        cached.names("");
        let _ = cached.lookup("none");
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
    let cached = origin.cached_with(dir.path(), refresh(LONG));
    cached.names("");
    std::thread::sleep(Duration::from_millis(150));
    let waits_of_a_second = || {
        let (began, mut ended, mut waits) = (Instant::now(), Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(1) {
            let looked = Instant::now();
            assert!(matches!(cached.lookup("none"), Err(Error::NotFound)));
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
    cached.lookup("none").expect("found");
}

#[test]
fn attributes_without_open_respect_their_maximum_age() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let attr_refresh = Duration::from_millis(300);
    let cached = origin.cached_with(dir.path(), refresh(attr_refresh));
    origin.direct.put("file", b"one");
    let entry = cached.lookup("file").expect("found");
    assert!(matches!(cached.lookup("new"), Err(Error::NotFound)));
    origin.direct.put("file", b"three");
    origin.direct.put("new", b"");
    std::thread::sleep(attr_refresh + Duration::from_millis(50));
    assert_eq!(cached.attr(entry.node).size, 5);
    cached.lookup("new").expect("found");
    origin.direct.unlink("new").expect("unlink");
    std::thread::sleep(attr_refresh + Duration::from_millis(50));
    assert!(matches!(cached.lookup("new"), Err(Error::NotFound)));
}

#[test]
fn a_change_of_ours_hides_no_other_s() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let attr_refresh = Duration::from_millis(300);
    let cached = origin.cached_with(dir.path(), refresh(attr_refresh));
    grow_old();
    assert!(matches!(cached.lookup("theirs"), Err(Error::NotFound)));
    origin.direct.put("theirs", b"");
    cached.mkdir("ours").expect("mkdir");
    std::thread::sleep(attr_refresh + Duration::from_millis(50));
    // The directory is unchanged since the local change.
    cached.attr(NodeId::ROOT);
    cached.lookup("theirs").expect("found");
}

#[test]
fn losing_an_unknown_name_revalidates_the_file() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    origin.direct.put("file", b"");
    origin.direct.link("file", "link").expect("link");
    let entry = cached.lookup("file").expect("found");
    assert_eq!(entry.attr.nlink, 2);
    cached.unlink("link").expect("unlink");
    assert_eq!(cached.attr(entry.node).nlink, 1);
}

#[test]
fn losing_a_name_added_by_others_revalidates_the_file() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached_with(dir.path(), refresh(LONG));
    let direct = &origin.direct;
    direct.put("file", b"");
    direct.put("other", b"");
    direct.link("file", "link").expect("link");
    let entry = cached.lookup("file").expect("found");
    cached.lookup("other").expect("found");
    // The former `other` is the file now.
    direct.rename("link", "other", Default::default()).expect("rename");
    cached.unlink("other").expect("unlink");
    assert_eq!((entry.attr.nlink, cached.attr(entry.node).nlink), (2, 1));
}

#[test]
fn removal_fails_while_the_target_is_unknown() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    let fails = Rule { op: Some(Op::Lookup), when: When::Nth(1), what: What::Fail(|| Error::TimedOut) };
    origin.export = Arc::new(fault::over(origin.export, Plan { rules: vec![fails], seed: 0 }));
    let cached = origin.cached_with(dir.path(), Options::default());
    let unlink = || cached.unlink("file");
    assert!(matches!(unlink(), Err(Error::TimedOut)));
    origin.direct.lookup("file").expect("still there");
    unlink().expect("unlink");
}

/// Compares each read through the cache with the origin's data.
#[test]
fn each_open_reads_current_data_with_two_writers() {
    let mut random = fastrand::Rng::with_seed(7);
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached_with(dir.path(), refresh(Duration::ZERO));
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
        let read = |at: &Session| at.get(&b).map_err(|error| error.to_string());
        let [there, here] = [&origin.direct, &cached.session].map(read);
        let lens = [&there, &here].map(|read| read.as_ref().map(Vec::len));
        assert!(there == here, "step {step}: {b} there and here: {lens:?}");
    }
}

#[test]
fn earlier_opening_reads_later_local_writes() {
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        origin.direct.put("file", &pattern(5000, 1));
        let cached = origin.cached(dir.path(), contract);
        let file = cached.reader("file");
        assert_eq!(cached.read(file, 0, 9000).expect("read"), pattern(5000, 1));
        cached.put("file", &pattern(7000, 2));
        assert_eq!(cached.read(file, 0, 9000).expect("read"), pattern(7000, 2), "{contract:?}");
    }
}
