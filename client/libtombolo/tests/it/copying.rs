//! A copied tree equals its source.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::common::{Watch, add, attach, copy, copy_well, faulty, local, memory, noise, see};
use libtombolo::copy::{Copier, Existing, Holes, Options, Step};
use proptest::prelude::*;
use tempfile::TempDir;
use tombolo_back_local_dir::LocalDir;
use tombolo_core::Error;
use tombolo_core::fs::Op;
use tombolo_layer_basic::fault::{Rule, What, When};

fn recursive() -> Options {
    Options { recursive: true, ..Options::default() }
}

fn preserving() -> Options {
    Options { preserve: true, ..recursive() }
}

/// Creates a tree with every kind of entry.
fn plant(top: &Path) {
    fs::create_dir_all(top.join("tree/deep/er")).unwrap();
    fs::create_dir(top.join("tree/empty")).unwrap();
    for (path, size) in [
        ("small", 10),
        ("none", 0),
        ("piece", 1 << 20),
        ("deep/more", (1 << 20) + 1),
        ("deep/er/large", 5_000_000),
    ] {
        fs::write(top.join("tree").join(path), noise(size, size as u64)).unwrap();
    }
    for number in 0..700 {
        fs::write(top.join(format!("tree/deep/{number}")), noise(number, number as u64)).unwrap();
    }
    fs::hard_link(top.join("tree/small"), top.join("tree/deep/again")).unwrap();
    symlink("../small", top.join("tree/deep/link")).unwrap();
    symlink("nowhere", top.join("tree/dangling")).unwrap();
    fs::set_permissions(top.join("tree/small"), PermissionsExt::from_mode(0o4751)).unwrap();
    fs::set_permissions(top.join("tree/deep/er"), PermissionsExt::from_mode(0o555)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for path in ["tree/small", "tree/deep", "tree/empty"] {
        fs::File::open(top.join(path)).unwrap().set_modified(old).unwrap();
    }
}

#[test]
fn copy_with_short_reads_is_complete_or_fails() {
    for (size, failing) in [(5_000, 0), (5_000_000, 0), (5_000, 2), (5_000_000, 7)] {
        let rule = |when, what| Rule { op: Some(Op::Read), when, what };
        let fails = rule(When::Nth(failing), What::Fail(|| Error::io("on purpose")));
        let rules = vec![fails, rule(When::Always, What::Short(size / 8))];
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::write(from.path().join("file"), noise(size, 3)).unwrap();
        let dir = LocalDir::open(from.path(), Default::default()).expect("serve");
        let source = attach(&*faulty(Arc::new(dir), rules), "local");
        let (tally, _) = copy(&source, "file", &local(to.path()), "copy", Options::default());
        assert_eq!(tally.failed > 0, failing > 0, "{size} {failing}: {tally:?}");
        let copied = fs::read(to.path().join("copy")).ok();
        assert_eq!(copied.is_some(), failing == 0, "{size} {failing}");
        assert!(copied.is_none_or(|copied| copied == noise(size, 3)));
    }
}

#[test]
fn tree_survives_a_round_trip_through_memory() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    plant(from.path());
    let (source, middle, target) = (local(from.path()), attach(&memory(), "memory"), local(to.path()));
    let tally = copy_well(&source, "tree", &middle, "copy", preserving());
    assert_eq!((tally.files, tally.directories, tally.others), (706, 4, 2));
    let original = see(&source, "tree", true);
    assert_eq!(original.len(), 706 + 4 + 2);
    assert_eq!(original["/small"].same_as, original["/deep/again"].same_as);
    assert_eq!(see(&middle, "copy", true), original);
    copy_well(&middle, "copy", &target, "back", preserving());
    assert_eq!(see(&target, "back", true), original);
}

#[test]
fn without_preserving_modes_are_masked_and_owners_the_users() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    plant(from.path());
    let (source, target) = (local(from.path()), local(to.path()));
    copy_well(&source, "tree", &target, "copy", recursive());
    assert_eq!(see(&target, "copy", false), see(&source, "tree", false));
    let mode = |path: &str| fs::metadata(to.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("copy/small"), 0o751 & !0o022);
    assert_eq!(mode("copy/deep/er"), 0o555, "a directory without write permission was filled all the same");
}

#[test]
fn holes_are_preserved_and_zeroes_become_holes_on_request() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let file = fs::File::create(from.path().join("holes")).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&noise(100_000, 7), 20 << 20).unwrap();
    fs::write(from.path().join("zeros"), vec![0; 8 << 20]).unwrap();
    let (source, target) = (local(from.path()), local(to.path()));
    let blocks = |name: &str| fs::metadata(to.path().join(name)).unwrap().blocks() * 512;
    let same = |from_name: &str, name: &str| {
        assert!(fs::read(to.path().join(name)).unwrap() == fs::read(from.path().join(from_name)).unwrap());
    };
    copy_well(&source, "holes", &target, "holes", Options::default());
    same("holes", "holes");
    assert!(blocks("holes") < 4 << 20, "{}", blocks("holes"));
    copy_well(&source, "zeros", &target, "filled", Options::default());
    assert!(blocks("filled") >= 8 << 20);
    let sparse = Options { holes: Holes::Make, ..Options::default() };
    copy_well(&source, "zeros", &target, "sparse", sparse);
    same("zeros", "sparse");
    assert_eq!(blocks("sparse"), 0);
    let full = Options { holes: Holes::Fill, ..Options::default() };
    copy_well(&source, "holes", &target, "full", full);
    same("holes", "full");
    assert!(blocks("full") >= 64 << 20);
}

#[test]
fn existing_files_are_replaced_atomically_or_left() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(from.path().join("file"), "new").unwrap();
    fs::write(from.path().join("large"), noise(3 << 20, 3)).unwrap();
    for name in ["file", "large"] {
        fs::write(to.path().join(name), "old").unwrap();
    }
    fs::create_dir(to.path().join("dir")).unwrap();
    let (source, target) = (local(from.path()), local(to.path()));
    let keep = Options { existing: Existing::Keep, ..Options::default() };
    assert_eq!(copy_well(&source, "file", &target, "file", keep).skipped, 1);
    assert_eq!(fs::read(to.path().join("file")).unwrap(), b"old");
    let held = fs::File::open(to.path().join("file")).unwrap();
    for name in ["file", "large"] {
        copy_well(&source, name, &target, name, Options::default());
        assert!(fs::read(to.path().join(name)).unwrap() == fs::read(from.path().join(name)).unwrap());
    }
    assert_eq!(held.metadata().unwrap().size(), 3, "a program that had it open keeps the old one");
    let (tally, watch) = copy(&source, "file", &target, "dir", Options::default());
    assert_eq!((tally.failed, watch.failures.lock().unwrap()[0].step), (1, Step::OtherKind));
    let left: Vec<_> = fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "no part remains: {left:?}");
}

#[test]
fn copy_onto_or_into_itself_is_refused() {
    let top = TempDir::new().unwrap();
    fs::create_dir_all(top.path().join("a/b")).unwrap();
    fs::write(top.path().join("a/file"), "x").unwrap();
    let (tree, inside) = (local(top.path()), local(&top.path().join("a")));
    let (_, watch) = copy(&tree, "a", &inside, "copy", recursive());
    let failures = watch.failures.lock().unwrap();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!((failures[0].step, failures[0].from.as_slice()), (Step::IntoItself, &b"a/copy"[..]));
    assert!(top.path().join("a/copy/file").exists() && !top.path().join("a/copy/copy").exists());
    let (_, watch) = copy(&tree, "a/file", &inside, "file", Options::default());
    assert_eq!(watch.failures.lock().unwrap()[0].step, Step::SameFile);
}

#[test]
fn two_sources_do_not_mix_in_one_target() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (dir, seed) in [("one", 1), ("two", 2)] {
        fs::create_dir(from.path().join(dir)).unwrap();
        fs::write(from.path().join(dir).join("file"), noise(6 << 20, seed)).unwrap();
    }
    let (source, target) = (local(from.path()), local(to.path()));
    let watch = Arc::<Watch>::default();
    let copier = Copier::start(recursive(), watch.clone()).unwrap();
    for dir in ["one/file", "two/file"] {
        add(&copier, &source, dir, &target, "file");
    }
    copier.finish();
    let copied = fs::read(to.path().join("file")).unwrap();
    assert!(copied == noise(6 << 20, 1) || copied == noise(6 << 20, 2));
    assert!(watch.failures.lock().unwrap().iter().all(|failure| failure.step == Step::Twice));
}

#[test]
fn directories_and_pipes_require_recursive() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::create_dir(from.path().join("dir")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(from.path().join("dir/pipe")).status().unwrap();
    assert!(made.success());
    let (source, target) = (local(from.path()), local(to.path()));
    for (what, step) in [("dir", Step::OmitDirectory), ("dir/pipe", Step::OmitSpecial)] {
        let (_, watch) = copy(&source, what, &target, "copy", Options::default());
        assert_eq!(watch.failures.lock().unwrap()[0].step, step);
    }
    let tally = copy_well(&source, "dir", &target, "copy", recursive());
    assert_eq!((tally.others, see(&target, "copy", false)), (1, see(&source, "dir", false)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any tree is copied exactly, with any bound on files and bytes in progress.
    #[test]
    fn any_tree_is_copied(
        entries in prop::collection::vec((prop::collection::vec(0_u8..4, 1..5), 0_usize..2_500_000, 0_u8..5), 0..30),
        jobs in 1_usize..5,
        window in 1_usize..4,
    ) {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let top = from.path().join("tree");
        fs::create_dir(&top).unwrap();
        for (path, size, kind) in entries {
            let names: Vec<_> = path.iter().map(|number| format!("{number}")).collect();
            let (name, dirs) = names.split_last().unwrap();
            let dir = top.join(dirs.join("/"));
            // Nothing is created where a file conflicts with a directory, or the reverse.
            if fs::create_dir_all(&dir).is_err() || dir.join(name).exists() {
                continue;
            }
            let size = if kind == 4 { size } else { size / 1000 };
            let planted = match kind {
                0 => fs::create_dir(dir.join(name)),
                1 => symlink("../0", dir.join(name)),
                _ => fs::write(dir.join(name), noise(size, size as u64)),
            };
            prop_assume!(planted.is_ok() || kind == 1);
        }
        let options = Options { jobs, window_bytes: window << 20, ..preserving() };
        let (source, middle, target) = (local(from.path()), attach(&memory(), "memory"), local(to.path()));
        copy_well(&source, "tree", &middle, "copy", options);
        copy_well(&middle, "copy", &target, "back", options);
        let original = see(&source, "tree", true);
        prop_assert_eq!(&see(&middle, "copy", true), &original);
        prop_assert_eq!(&see(&target, "back", true), &original);
    }
}
