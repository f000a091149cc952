//! Attributes before and after changes of a directory, during concurrent changes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tombolo_back_local_dir::Options;
use tombolo_core::fs::{Change, Create, Exclusive, NodeId, OpenFlags, RenameFlags};
use tombolo_core::{Ctx, Want};

use crate::common::{ROOT, World, mode, name, serve};

/// Size of a name in tmpfs directories, by which the number of changes between two stats is determined.
const NAME_BYTES: u64 = 20;

fn file(world: &World, cx: &Ctx, dir: NodeId, text: &str) -> Change {
    let how = Create { mode: mode(0o644), flags: OpenFlags::READ, exclusive: Exclusive::Yes };
    let created = world.fs.create(cx, dir, name(text), &how).wait().expect("created");
    world.fs.release(cx, tombolo_core::fs::File { node: created.entry.node, open: created.open });
    created.dir
}

/// Returns `true` if the attributes before, if given, differ from those after by this number of names.
fn tells_itself_alone(change: Change, names: i64) -> bool {
    let (before, after) = (change.before, change.after.expect("asked for"));
    before.is_none_or(|before| before.size.wrapping_add_signed(names * NAME_BYTES as i64) == after.size)
}

#[test]
fn attributes_around_concurrent_changes_tell_of_one() {
    let tree = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let world = serve(tree.path(), Options::default());
    let silent = world.another();
    let cx = Ctx { want: Want::CHANGE_ATTRS, ..world.cx.clone() };
    let dir = world.fs.mkdir(&cx, ROOT, name("dir"), mode(0o755)).wait().expect("made").entry.node;
    let told = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (world, cx, told) = (&world, &cx, &told);
            scope.spawn(move || {
                for number in 0..400 {
                    let (one, other) = (format!("{thread}-{number}"), format!("{thread}-{number}-moved"));
                    let made = file(world, cx, dir, &one);
                    assert!(tells_itself_alone(made, 1), "{made:?}");
                    let moved = world.fs.rename(cx, dir, name(&one), dir, name(&other), RenameFlags::empty());
                    let moved = moved.wait().expect("renamed");
                    assert!(tells_itself_alone(moved.from_dir, 0), "{moved:?}");
                    assert!(tells_itself_alone(moved.to_dir, 0), "{moved:?}");
                    let gone = world.fs.unlink(cx, dir, name(&other)).wait().expect("removed");
                    assert!(tells_itself_alone(gone, -1), "{gone:?}");
                    told.fetch_add(usize::from(made.before.is_some()), Ordering::Relaxed);
                }
            });
        }
        // A session that requests no attributes changes the directory too.
        scope.spawn(|| {
            let dir = silent.lookup(ROOT, "dir").expect("there").node;
            for number in 0..400 {
                let text = format!("silent-{number}");
                assert_eq!(file(&silent, &silent.cx, dir, &text), Change::default());
                silent.fs.unlink(&silent.cx, dir, name(&text)).wait().expect("removed");
            }
        });
    });
    assert!(told.into_inner() > 0, "mostly there is time to take turns");
}

#[test]
fn attributes_from_before_are_told_of_changes_in_turn() {
    let tree = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let world = serve(tree.path(), Options::default());
    let cx = Ctx { want: Want::CHANGE_ATTRS, ..world.cx.clone() };
    let changes: Vec<_> = (0..50).map(|number| file(&world, &cx, ROOT, &format!("file-{number}"))).collect();
    let before: BTreeSet<_> = changes.iter().map(|change| change.before.expect("told").size).collect();
    assert_eq!(before.len(), changes.len());
    assert!(changes.into_iter().all(|change| tells_itself_alone(change, 1)));
}
