//! Rules that select options by file names.

use std::path::Path;

use tombolo_core::Error;
use tombolo_core::fs::{NodeId, OpenFlags};
use tombolo_layer_cache::{Contract, Options, Policy, Rule};
use tombolo_test_support::{Session, until};

use crate::world::{Cached, LONG, Origin, grow_old, pattern};

fn rule(pattern: &str, options: Options) -> Rule {
    Rule { pattern: pattern.parse().expect("a pattern"), options }
}

fn cached(origin: &Origin, dir: &Path, default: Options, rules: Vec<Rule>) -> Cached {
    origin.cached_with(dir, Policy { default, rules })
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
        if life == 0 {
            let paths = ["a.iso", "fixed/c", "b"];
            nodes = paths.map(|path| cached.lookup(path).expect("there").node).to_vec();
            nodes.iter().for_each(|node| opens(&cached, *node));
        }
        for (index, node) in nodes.iter().enumerate() {
            let before = origin.asked("open");
            (0..3).for_each(|_| opens(&cached, *node));
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
    cached.put("b", b"2");
    let node = cached.lookup("a.iso").expect("there").node;
    assert!(matches!(cached.open(node, OpenFlags::WRITE), Err(Error::ReadOnly)));
    assert!(matches!(cached.setattr(node, Default::default()), Err(Error::ReadOnly)));
    for (from, to) in [("a.iso", "c"), ("b", "a.iso")] {
        assert!(matches!(cached.rename(from, to, Default::default()), Err(Error::ReadOnly)), "{from}");
    }
    for (from, to) in [("a.iso", "c"), ("b", "c.iso")] {
        assert!(matches!(cached.link(from, to), Err(Error::ReadOnly)), "{from}");
    }
    assert!(matches!(cached.unlink("a.iso"), Err(Error::ReadOnly)));
    cached.unlink("b").expect("that one may");
    assert_eq!(cached.contents("a.iso"), b"1");
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
        let file = cached.reader(text);
        assert_eq!(cached.read(file, 8192, 4096).expect("read"), pattern(size, 7)[8192..12288]);
        cached.cache.counts().fetched_bytes - before
    };
    assert_eq!(fetched("small.db"), 4096);
    assert_eq!(fetched("other"), 64 << 10);
    let before = cached.cache.counts().fetched_bytes;
    fetched("whole.iso");
    until("the rest has come", || cached.cache.counts().fetched_bytes - before >= size as u64);
}

/// Restarts a cache whose names in the root are outdated then, and returns the new one.
fn restarted(origin: &Origin, dir: &Path, before: Cached, rules: Vec<Rule>) -> Cached {
    before.cache.flush();
    drop(before);
    origin.direct.put("another", b"");
    let again = cached(origin, dir, long(), rules);
    again.attr(NodeId::ROOT);
    again
}

/// Returns options that revalidate nothing for the duration of a test.
fn long() -> Options {
    Options { contract: Contract::Refresh(LONG), ..Options::default() }
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
    let node = before.lookup("a.log").expect("there").node;
    let cached = restarted(&origin, dir.path(), before, rules());
    let asked = origin.asked("open");
    (0..3).for_each(|_| opens(&cached, node));
    assert_eq!(origin.asked("open") - asked, 3, "an open does not see what was closed before it");
    let set = || cached.setattr(node, Default::default());
    assert!(matches!(set(), Err(Error::ReadOnly)));
    assert_eq!(cached.lookup("a.log").expect("there").node, node);
    set().expect("it is writable by its name");
}

#[test]
fn file_of_unknown_path_has_the_strictest_options() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.dir("live");
    origin.direct.put("live/a", b"");
    let rules = || vec![rule("live/*", Options::default())];
    let before = cached(&origin, dir.path(), long(), rules());
    let live = before.lookup("live").expect("there").node;
    let cached = restarted(&origin, dir.path(), before, rules());
    assert!(cached.names(live).contains(&"a".to_owned()));
    let node = cached.lookup((live, "a")).expect("there").node;
    let asked = origin.asked("open");
    (0..3).for_each(|_| opens(&cached, node));
    assert_eq!(origin.asked("open") - asked, 3, "an open does not see what was closed before it");
}
