//! Copies that fail or are stopped at every step, and are then resumed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Watch, add, attach, copy, copy_well, faulty, local, memory, noise, see};
use libtombolo::copy::{Copier, Options};
use tempfile::TempDir;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_core::Error;
use tombolo_core::fs::Export;
use tombolo_core::fs::Op;
use tombolo_layer_basic::delay;
use tombolo_layer_basic::fault::{Rule, What, When};

const PIECE: usize = 1 << 20;

fn resuming() -> Options {
    Options { recursive: true, preserve: true, resume: true, ..Options::default() }
}

fn plant(top: &Path) {
    fs::create_dir_all(top.join("tree/dir")).unwrap();
    fs::write(top.join("tree/large"), noise(5 * PIECE + 77, 1)).unwrap();
    for number in 0..6 {
        fs::write(top.join(format!("tree/dir/{number}")), noise(1000 * number, number as u64)).unwrap();
    }
    std::os::unix::fs::symlink("large", top.join("tree/link")).unwrap();
    fs::hard_link(top.join("tree/dir/5"), top.join("tree/dir/again")).unwrap();
}

/// Returns the export with a failure at one call of one operation.
fn failing(export: &Arc<Memory>, op: Op, nth: u64, error: fn() -> Error) -> Arc<dyn Export> {
    let rule = Rule { op: Some(op), when: When::Nth(nth), what: What::Fail(error) };
    faulty(export.clone(), vec![rule])
}

/// Any failure at the target is reported and leaves no partial file under its final name, and a resumed copy
/// completes it.
#[test]
fn resuming_repairs_failure_at_any_target_step() {
    let from = TempDir::new().unwrap();
    plant(from.path());
    let source = local(from.path());
    let wanted = see(&source, "tree", true);
    let ops = [
        Op::Create,
        Op::Write,
        Op::Flush,
        Op::Setattr,
        Op::Rename,
        Op::Mkdir,
        Op::Symlink,
        Op::Link,
        Op::Lookup,
    ];
    let mut failures = 0;
    for op in ops {
        for nth in 1..=8 {
            let export = Arc::new(memory());
            let broken = attach(&*failing(&export, op, nth, || Error::io("planned")), "memory");
            let (tally, watch) = copy(&source, "tree", &broken, "copy", resuming());
            assert_eq!(tally.failed as usize, watch.failures.lock().unwrap().len());
            let whole = attach(&*export, "memory");
            if whole_tree_is_there(&whole) {
                let seen = see(&whole, "copy", false);
                for (path, entry) in &seen {
                    let is_part = path.ends_with(".tombolo-part");
                    assert!(
                        is_part || entry.content == wanted[path].content,
                        "{op:?} {nth}: {path} is incomplete"
                    );
                }
                let is_whole = see(&whole, "copy", true) == wanted;
                assert!(is_whole || tally.failed > 0, "{op:?} {nth}: the copy differs without a failure");
            }
            failures += u64::from(tally.failed > 0);
            copy_well_into(&source, &whole);
            assert_eq!(see(&whole, "copy", true), wanted, "{op:?} {nth}");
        }
    }
    assert!(failures > 20, "only {failures} copies failed: the plan misses");
}

fn whole_tree_is_there(tree: &libtombolo::Tree) -> bool {
    libtombolo::block_on(tree.find(b"copy", libtombolo::Last::Keep)).is_ok()
}

#[track_caller]
fn copy_well_into(source: &libtombolo::Tree, whole: &libtombolo::Tree) {
    if !whole_tree_is_there(whole) {
        copy_well(source, "tree", whole, "copy", resuming());
        return;
    }
    let copier = Copier::start(resuming(), Arc::<Watch>::default()).unwrap();
    let from = libtombolo::copy::From { node: crate::common::find(source, "tree"), path: b"tree".to_vec() };
    copier.add_contents(from, crate::common::find(whole, "copy"), b"copy".to_vec());
    assert_eq!(copier.finish().failed, 0);
    // The top existed before: its own attributes are its owner's.
    let attr = libtombolo::block_on(crate::common::find(source, "tree").attr()).unwrap();
    let set = tombolo_core::fs::SetAttr {
        mtime: Some(tombolo_core::fs::SetTime::At(attr.mtime)),
        mode: Some(attr.mode),
        ..Default::default()
    };
    crate::common::find(whole, "copy").set_attr(&set).wait().unwrap();
}

/// Failing reads lose nothing that was read before.
#[test]
fn failing_source_leaves_a_resumable_part() {
    let export = Arc::new(memory());
    let origin = attach(&*export, "memory");
    let seed = TempDir::new().unwrap();
    fs::write(seed.path().join("large"), noise(20 * PIECE, 3)).unwrap();
    copy_well(&local(seed.path()), "large", &origin, "large", resuming());
    let to = TempDir::new().unwrap();
    let target = local(to.path());
    let broken = attach(&*failing(&export, Op::Read, 13, || Error::io("planned")), "memory");
    let one_piece = Options { window_bytes: PIECE, threads: 1, ..resuming() };
    let (tally, watch) = copy(&broken, "large", &target, "copy", one_piece);
    assert_eq!((tally.failed, tally.parts_kept, watch.kept.lock().unwrap()[0]), (1, 1, 12 * PIECE as u64));
    assert!(!to.path().join("copy").exists());
    // Not of this version of the source: starts over.
    let tally = copy_well(&origin, "large", &target, "copy", resuming());
    assert_eq!((tally.files, tally.written_bytes), (1, 8 * PIECE as u64));
    assert!(fs::read(to.path().join("copy")).unwrap() == noise(20 * PIECE, 3));
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
    assert_eq!(copy_well(&origin, "large", &target, "copy", resuming()).skipped, 1);
}

#[test]
fn part_of_another_source_version_starts_over() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (source, target) = (local(from.path()), local(to.path()));
    fs::write(from.path().join("large"), noise(6 * PIECE, 3)).unwrap();
    stopped_in_the_middle(&source, to.path());
    let part = to.path().join(".large.tombolo-part");
    assert!(part.exists());
    fs::write(from.path().join("large"), noise(6 * PIECE, 4)).unwrap();
    let tally = copy_well(&source, "large", &target, "large", resuming());
    assert_eq!(tally.written_bytes, 6 * PIECE as u64);
    assert!(fs::read(to.path().join("large")).unwrap() == noise(6 * PIECE, 4));
    assert!(!part.exists());
}

/// Stops a copy once some of its data have arrived.
fn stopped_in_the_middle(source: &libtombolo::Tree, target: &Path) {
    let export = LocalDir::open(target, DirOptions::default()).unwrap();
    let slow = attach(&delay::over(Arc::new(export), Duration::from_millis(20)).unwrap(), "local");
    let options = Options { window_bytes: PIECE, threads: 1, ..resuming() };
    let copier = Copier::start(options, Arc::<Watch>::default()).unwrap();
    add(&copier, source, "large", &slow, "large");
    while copier.tally().written_bytes < 3 * PIECE as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    copier.stop();
    let tally = copier.finish();
    assert_eq!((tally.files, tally.failed, tally.parts_kept), (0, 0, 1), "{tally:?}");
}
