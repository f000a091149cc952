//! Rules that select options by file names.

use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::{NodeId, OpenFlags};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options, Policy, Rule};
use tombolo_test_support::{Session, until};

use crate::world::{Cached, Origin, grow_old, pattern};

fn rule(pattern: &str, options: Options) -> Rule {
    Rule { pattern: pattern.parse().expect("a pattern"), options }
}

fn cached(origin: &Origin, dir: &std::path::Path, default: Options, rules: Vec<Rule>) -> Cached {
    origin.cached_by(dir, Policy { default, rules }, StoreOptions::default())
}

fn opens(session: &Session, node: NodeId) {
    session.release(session.reader(node));
}

#[test]
fn each_file_has_the_contract_of_its_name() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.dir("fixed");
    for path in ["a.iso", "b", "fixed/c"] {
        origin.direct.mknod(path);
    }
    // Recent data are not reused in another life.
    grow_old();
    let immutable = Options { contract: Contract::Immutable, ..Options::default() };
    // Found by name, and after a restart by number alone.
    let mut nodes = Vec::new();
    for life in 0..2 {
        let rules = vec![rule("*.iso", immutable), rule("fixed/*", immutable)];
        let cached = cached(&origin, dir.path(), Options::default(), rules);
        let session = &cached.session;
        if life == 0 {
            let dir = session.lookup("fixed").expect("there").node;
            let below = session.lookup((dir, "c")).expect("there").node;
            nodes = vec![
                session.lookup("a.iso").expect("there").node,
                below,
                session.lookup("b").expect("there").node,
            ];
            nodes.iter().for_each(|node| opens(session, *node));
        }
        for (index, node) in nodes.iter().enumerate() {
            let before = origin.asked("open");
            (0..3).for_each(|_| opens(session, *node));
            let asked = origin.asked("open") - before;
            assert_eq!(asked, if index == 2 { 3 } else { 0 }, "life {life}, file {index}");
        }
        cached.cache.flush();
    }
}

#[test]
fn one_name_may_be_read_only_and_another_writable() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("a.iso", b"1");
    let read_only = Options { read_only: true, ..Options::default() };
    let cached = cached(&origin, dir.path(), Options::default(), vec![rule("*.iso", read_only)]);
    let session = &cached.session;
    session.put("b", b"2");
    let node = session.lookup("a.iso").expect("there").node;
    assert!(matches!(session.open(node, OpenFlags::WRITE), Err(Error::ReadOnly)));
    assert!(matches!(session.setattr(node, Default::default()), Err(Error::ReadOnly)));
    for (from, to) in [("a.iso", "c"), ("b", "a.iso")] {
        let renamed = session.rename(from, to, Default::default());
        assert!(matches!(renamed, Err(Error::ReadOnly)), "{from}");
    }
    for (from, to) in [("a.iso", "c"), ("b", "c.iso")] {
        assert!(matches!(session.link(from, to), Err(Error::ReadOnly)), "{from}");
    }
    assert!(matches!(session.unlink("a.iso"), Err(Error::ReadOnly)));
    session.unlink("b").expect("that one may");
    assert_eq!(session.get("a.iso").expect("read"), b"1");
}

#[test]
fn block_size_whole_files_and_read_ahead_follow_name() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let size = 4 << 20;
    ["small.db", "whole.iso", "other"].iter().for_each(|text| origin.direct.put(text, &pattern(size, 7)));
    let none = Options { contract: Contract::Exclusive, ahead_bytes_max: 0, ..Options::default() };
    let rules = vec![
        rule("*.db", Options { block_bytes: Some(4096), ..none }),
        rule("*.iso", Options { whole_files: true, ..none }),
    ];
    let cached = cached(&origin, dir.path(), none, rules);
    let fetched = |text: &str| {
        let before = cached.cache.counts().fetched_bytes;
        let file = cached.session.reader(text);
        assert_eq!(cached.session.read(file, 8192, 4096).expect("read"), pattern(size, 7)[8192..12288]);
        cached.cache.counts().fetched_bytes - before
    };
    assert_eq!(fetched("small.db"), 4096);
    assert_eq!(fetched("other"), 64 << 10);
    let before = cached.cache.counts().fetched_bytes;
    fetched("whole.iso");
    until("the rest has come", || cached.cache.counts().fetched_bytes - before >= size as u64);
}

/// Restarts a cache whose names in the root are outdated then, and returns the new one.
fn restarted(origin: &Origin, dir: &std::path::Path, before: Cached, rules: Vec<Rule>) -> Cached {
    before.cache.flush();
    drop(before);
    origin.direct.put("another", b"");
    let again = cached(origin, dir, long(), rules);
    again.session.attr(NodeId::ROOT);
    again
}

/// Returns options that revalidate nothing for the duration of a test.
fn long() -> Options {
    Options { contract: Contract::Refresh(Duration::from_secs(3600)), ..Options::default() }
}

#[test]
fn file_of_unknown_name_has_the_strictest_options() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("a.log", b"");
    let rules = || {
        let read_only = Options { read_only: true, ..long() };
        vec![rule("*.log", Options::default()), rule("*.iso", read_only)]
    };
    let before = cached(&origin, dir.path(), long(), rules());
    let node = before.session.lookup("a.log").expect("there").node;
    let Cached { cache: _cache, session } = restarted(&origin, dir.path(), before, rules());
    let asked = origin.asked("open");
    (0..3).for_each(|_| opens(&session, node));
    assert_eq!(origin.asked("open") - asked, 3, "an open does not see what was closed before it");
    let set = || session.setattr(node, Default::default());
    assert!(matches!(set(), Err(Error::ReadOnly)));
    assert_eq!(session.lookup("a.log").expect("there").node, node);
    set().expect("it is writable by its name");
}

#[test]
fn file_of_unknown_path_has_the_strictest_options() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.dir("live");
    origin.direct.put("live/a", b"");
    let rules = || vec![rule("live/*", Options::default())];
    let before = cached(&origin, dir.path(), long(), rules());
    let live = before.session.lookup("live").expect("there").node;
    let Cached { cache: _cache, session } = restarted(&origin, dir.path(), before, rules());
    assert!(session.names(live).contains(&"a".to_owned()));
    let node = session.lookup((live, "a")).expect("there").node;
    let asked = origin.asked("open");
    (0..3).for_each(|_| opens(&session, node));
    assert_eq!(origin.asked("open") - asked, 3, "an open does not see what was closed before it");
}
