//! Attributes before and after changes of a directory, during concurrent changes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tombolo_back_local_dir::Options;
use tombolo_core::fs::{Change, Create, Exclusive, File, NodeId, RenameFlags};
use tombolo_core::{Ctx, Want};
use tombolo_test_support::{Session, plain};

use crate::common::{ROOT, serve};

/// Size of a name in tmpfs directories, by which the number of changes between two stats is determined.
const NAME_BYTES: u64 = 20;

fn file(session: &Session, at: (NodeId, &str)) -> Change {
    let made = session.create(at, &Create { exclusive: Exclusive::Yes, ..plain() }).expect("created");
    session.release(File { node: made.entry.node, open: made.open });
    made.dir
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
    let world = world.with(Ctx { want: Want::CHANGE_ATTRS, ..world.cx.clone() });
    let dir = world.dir("dir");
    let told = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (world, told) = (&world, &told);
            scope.spawn(move || {
                for number in 0..400 {
                    let (one, other) = (format!("{thread}-{number}"), format!("{thread}-{number}-moved"));
                    let made = file(world, (dir, &one));
                    assert!(tells_itself_alone(made, 1), "{made:?}");
                    let moved = world.rename((dir, &one), (dir, &other), RenameFlags::empty());
                    let moved = moved.expect("renamed");
                    assert!(tells_itself_alone(moved.from_dir, 0), "{moved:?}");
                    assert!(tells_itself_alone(moved.to_dir, 0), "{moved:?}");
                    let gone = world.unlink((dir, &other)).expect("removed");
                    assert!(tells_itself_alone(gone, -1), "{gone:?}");
                    told.fetch_add(usize::from(made.before.is_some()), Ordering::Relaxed);
                }
            });
        }
        // A session that requests no attributes changes the directory too.
        scope.spawn(|| {
            let dir = silent.lookup("dir").expect("there").node;
            for number in 0..400 {
                let text = format!("silent-{number}");
                assert_eq!(file(&silent, (dir, &text)), Change::default());
                silent.unlink((dir, &text)).expect("removed");
            }
        });
    });
    assert!(told.into_inner() > 0, "mostly there is time to take turns");
}

#[test]
fn attributes_from_before_are_told_of_changes_in_turn() {
    let tree = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let world = serve(tree.path(), Options::default());
    let world = world.with(Ctx { want: Want::CHANGE_ATTRS, ..world.cx.clone() });
    let changes: Vec<_> = (0..50).map(|number| file(&world, (ROOT, &format!("file-{number}")))).collect();
    let before: BTreeSet<_> = changes.iter().map(|change| change.before.expect("told").size).collect();
    assert_eq!(before.len(), changes.len());
    assert!(changes.into_iter().all(|change| tells_itself_alone(change, 1)));
}
