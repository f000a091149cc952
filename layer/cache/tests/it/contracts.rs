//! Validity of cached state while another client changes the origin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::fs::{
    AccessMask, Client, Entry, Export, FileSystem, Mode, Name, NewMode, NodeId, Op, RenameFlags, SetAttr,
};
use tombolo_core::{Answer, Ctx, Error, Result, forward};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::fault::{self, Plan, Rule, What, When};
use tombolo_layer_cache::{Contract, Options, Prefetch};

use crate::world::{Origin, Session, attach, grow_old, name, opened_store, pattern};

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
        let make = |by: &Session, parent, text: &str| {
            by.fs.mkdir(&by.cx, parent, name(text), NewMode::default()).wait().expect("made").entry.node
        };
        let made = make(session, NodeId::ROOT, &text);
        make(session, made, "ours");
        if is_other {
            make(&origin.direct, origin.direct.lookup(&text).expect("there").node, "other");
        }
        let before = origin.asked("readdir");
        (session.list_of(made), origin.asked("readdir") - before)
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
    let root = SetAttr { mode: Some(Mode::new(0o777)), ..SetAttr::default() };
    cached.session.fs.setattr(&cached.session.cx, NodeId::ROOT, None, &root).wait().expect("setattr");
    let user = cached.session.of_user(8);
    let mode = NewMode::settled(Mode::new(0o700));
    let parent = user.fs.mkdir(&user.cx, NodeId::ROOT, name("work"), mode).wait().expect("made").entry.node;
    let asked = ["access", "readdir", "lookup"].map(|operation| origin.asked(operation));
    std::thread::scope(|scope| {
        for by in 0..8 {
            let user = &user;
            scope.spawn(move || {
                for round in 0..20 {
                    let (stays, goes) = (format!("{by}-{round}"), format!("{by}-gone"));
                    for text in [&stays, &goes] {
                        user.fs.mkdir(&user.cx, parent, name(text), mode).wait().expect("made");
                    }
                    let moved = format!("{by}-moved");
                    let renamed = user.fs.rename(
                        &user.cx,
                        parent,
                        name(&goes),
                        parent,
                        name(&moved),
                        RenameFlags::empty(),
                    );
                    renamed.wait().expect("moved");
                    user.fs.rmdir(&user.cx, parent, name(&moved)).wait().expect("removed");
                    user.fs
                        .access(&user.cx, parent, AccessMask::WRITE | AccessMask::EXECUTE)
                        .wait()
                        .expect("its maker");
                    user.fs.lookup(&user.cx, parent, name(&stays)).wait().expect("there");
                    let gone = user.fs.lookup(&user.cx, parent, name(&moved)).wait();
                    assert!(matches!(gone, Err(Error::NotFound)));
                }
            });
        }
    });
    let mut names = user.list_of(parent);
    names.sort();
    let mut expected: Vec<_> = (0..160).map(|at| format!("{}-{}", at / 20, at % 20)).collect();
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(asked, ["access", "readdir", "lookup"].map(|operation| origin.asked(operation)));
}

/// An origin that performs look-ups at once, but delays the reply until it is released.
struct KeepsBack<T: ?Sized>(Arc<T>, Arc<Promise<()>>);

impl Export for KeepsBack<dyn Export> {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(KeepsBack(self.0.attach(client)?, self.1.clone())))
    }
}

impl FileSystem for KeepsBack<dyn FileSystem> {
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let (found, go) = (self.0.lookup(cx, parent, name).wait(), self.1.clone());
        Answer::later(async move {
            go.kept().await;
            found
        })
    }

    forward!(to self.0; getattr setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename open flush fsync read write readdir statfs syncfs forget release profile persistent_handles);
}

#[test]
fn lookup_result_from_before_a_change_is_discarded() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let go = Arc::<Promise<()>>::default();
    origin.export = Arc::new(KeepsBack(origin.export, go.clone()));
    let options = Options { contract: Contract::Exclusive, prefetch: Prefetch::Off, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    let session = &cached.session;
    // Cache the directory as it is before the change.
    session.fs.mkdir(&session.cx, NodeId::ROOT, name("old"), NewMode::default()).wait().expect("made");
    session.fs.getattr(&session.cx, NodeId::ROOT, None).wait().expect("there");
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| session.lookup("new"));
        while origin.asked("lookup") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        session.fs.mkdir(&session.cx, NodeId::ROOT, name("new"), NewMode::default()).wait().expect("made");
        go.keep(());
        let looked_up = looks.join().expect("no panic");
        assert!(matches!(looked_up, Err(Error::NotFound)), "it was looked up before it was made");
    });
    // With cached permissions, the cache answers.
    session.fs.access(&session.cx, NodeId::ROOT, AccessMask::EXECUTE).wait().expect("allowed");
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
    cached.session.list();
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
        cached.session.list();
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
    cached.session.list();
    std::thread::sleep(Duration::from_millis(150));
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
    assert!(waits <= 3, "{waits} look-ups have waited");
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
    let attr = cached.session.fs.getattr(&cached.session.cx, entry.node, None).wait().expect("there");
    assert_eq!(attr.size, 5);
    cached.session.lookup("new").expect("found");
    let unlinked = origin.direct.fs.unlink(&origin.direct.cx, NodeId::ROOT, name("new")).wait();
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
    let made = session.fs.mkdir(&session.cx, NodeId::ROOT, name("ours"), NewMode::default()).wait();
    made.expect("mkdir");
    std::thread::sleep(attr_refresh + Duration::from_millis(50));
    // The directory is unchanged since the local change.
    session.fs.getattr(&session.cx, NodeId::ROOT, None).wait().expect("there");
    session.lookup("theirs").expect("found");
}

#[test]
fn losing_an_unknown_name_revalidates_the_file() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    origin.direct.put("file", b"");
    let theirs = origin.direct.lookup("file").expect("found").node;
    let linked = origin.direct.fs.link(&origin.direct.cx, theirs, NodeId::ROOT, name("link")).wait();
    linked.expect("link");
    let session = &cached.session;
    let entry = session.lookup("file").expect("found");
    assert_eq!(entry.attr.nlink, 2);
    session.fs.unlink(&session.cx, NodeId::ROOT, name("link")).wait().expect("unlink");
    let attr = session.fs.getattr(&session.cx, entry.node, None).wait().expect("there");
    assert_eq!(attr.nlink, 1);
}

#[test]
fn losing_a_name_added_by_others_revalidates_the_file() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let options = Options { attr_refresh: Duration::from_secs(3600), ..Options::default() };
    let cached = origin.cached_with(dir.path(), options, Default::default());
    let (direct, session, root) = (&origin.direct, &cached.session, NodeId::ROOT);
    direct.put("file", b"");
    direct.put("other", b"");
    let theirs = direct.lookup("file").expect("found").node;
    direct.fs.link(&direct.cx, theirs, root, name("link")).wait().expect("link");
    let entry = session.lookup("file").expect("found");
    session.lookup("other").expect("found");
    // The former `other` is the file now.
    let renamed = direct.fs.rename(&direct.cx, root, name("link"), root, name("other"), Default::default());
    renamed.wait().expect("rename");
    session.fs.unlink(&session.cx, root, name("other")).wait().expect("unlink");
    let attr = session.fs.getattr(&session.cx, entry.node, None).wait().expect("there");
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
    let session = attach(&cache);
    let unlink = || session.fs.unlink(&session.cx, NodeId::ROOT, name("file")).wait();
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
                let _ = writer.fs.unlink(&writer.cx, NodeId::ROOT, name(&a)).wait();
            }
            3 => {
                let (a, b) = (name(&a), name(&b));
                let root = NodeId::ROOT;
                let _ = writer.fs.rename(&writer.cx, root, a, root, b, Default::default()).wait();
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
        let file = cached.session.open("file").expect("open");
        assert_eq!(cached.session.read(file, 0, 9000).expect("read"), pattern(5000, 1));
        cached.session.put("file", &pattern(7000, 2));
        assert_eq!(cached.session.read(file, 0, 9000).expect("read"), pattern(7000, 2), "{contract:?}");
    }
}
