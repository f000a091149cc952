//! Concurrent operations.

use std::sync::atomic::{AtomicUsize, Ordering};

use tombolo_core::Error;
use tombolo_core::fs::{Create, Exclusive, File, OpenFlags, RenameFlags};
use tombolo_test_support::plain;

use super::cases;
use crate::is_long_run;
use crate::waist::world::supported;
use crate::waist::{Verdict, World};

cases! { "races":
    one_of_many_creators_wins,
    appends_do_not_overwrite_each_other needs APPENDS,
    an_exchange_never_hides_a_name,
    a_replacing_rename_never_hides_a_name,
    look_ups_and_forgets_keep_count needs FORGETS,
    a_raised_interrupt_still_gets_an_answer,
}

const THREADS: usize = 4;

/// Returns the number of rounds of a race: the gate runs each race over some 60 file systems.
fn rounds(of_long_run: usize) -> usize {
    if is_long_run() { of_long_run } else { of_long_run / 2 }
}

fn one_of_many_creators_wins(w: &World) -> Verdict {
    for round in 0..20 {
        let wins = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let how = Create { exclusive: Exclusive::Yes, ..plain() };
                    match w.create(&format!("file-{round}"), &how) {
                        Ok(created) => {
                            w.release(File { node: created.entry.node, open: created.open });
                            wins.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Exists) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                });
            }
        });
        assert_eq!(wins.into_inner(), 1);
    }
    Ok(())
}

fn appends_do_not_overwrite_each_other(w: &World) -> Verdict {
    const ROUNDS: usize = 50;
    const RECORD: usize = 100;
    let node = w.file_with("log", b"");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                // Each thread in a session of its own, sharing only the file.
                let w = w.other_session();
                let node = w.lookup("log").expect("lookup").node;
                let file = w.open(node, OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
                for _ in 0..ROUNDS {
                    let record = [b'a' + thread as u8; RECORD];
                    let written = w.write_as(file, &Default::default(), &record).expect("write");
                    assert_eq!(written.count, RECORD, "a record in one piece");
                }
                w.release(file);
            });
        }
    });
    let log = w.contents(node);
    assert_eq!(log.len(), THREADS * ROUNDS * RECORD, "records were lost");
    for record in log.chunks(RECORD) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a record was torn");
    }
    Ok(())
}

/// Looks up `names` while `change` runs; every look-up must succeed.
fn never_hidden(w: &World, names: &[&str], change: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| (0..rounds(200)).for_each(&change));
        while !changer.is_finished() {
            for text in names {
                let found = w.lookup(text).expect("a name that always exists");
                w.forget(found.node);
            }
        }
    });
}

fn an_exchange_never_hides_a_name(w: &World) -> Verdict {
    let (a, b) = (w.file_with("a", b""), w.file_with("b", b""));
    supported(w.rename("a", "b", RenameFlags::EXCHANGE))?;
    never_hidden(w, &["a", "b"], |_| w.rename("a", "b", RenameFlags::EXCHANGE).map(drop).expect("exchange"));
    assert_eq!(w.names(w.dir), ["a", "b"]);
    assert_eq!((w.attr(a).nlink, w.attr(b).nlink), (1, 1));
    Ok(())
}

fn a_replacing_rename_never_hides_a_name(w: &World) -> Verdict {
    w.file_with("target", b"");
    never_hidden(w, &["target"], |round| {
        let text = format!("new-{round}");
        w.file_with(&text, b"");
        w.rename(&text, "target", RenameFlags::empty()).expect("rename");
    });
    assert_eq!(w.names(w.dir), ["target"]);
    Ok(())
}

fn look_ups_and_forgets_keep_count(w: &World) -> Verdict {
    let node = w.file_with("file", b"counted");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..rounds(500) {
                    let found = w.lookup("file").expect("lookup");
                    assert_eq!(found.node, node);
                    w.forget(found.node);
                }
            });
        }
    });
    assert_eq!(w.contents(node), b"counted", "the look-up from before is left");
    w.forget(node);
    assert!(matches!(w.fs.getattr(&w.cx, node, None).wait(), Err(Error::Stale)));
    Ok(())
}

fn a_raised_interrupt_still_gets_an_answer(w: &World) -> Verdict {
    let node = w.file_with("file", b"data");
    let (interrupted, interrupt) = w.interruptible();
    interrupt.raise();
    match interrupted.lookup((w.dir, "file")) {
        Ok(found) => assert_eq!(found.node, node),
        Err(Error::Interrupted) => {}
        Err(error) => panic!("{error:?}"),
    }
    match interrupted.mkdir((w.dir, "dir")) {
        Ok(_) => assert!(w.exists("dir"), "what was answered as done is done"),
        Err(Error::Interrupted) => assert!(!w.exists("dir"), "what was answered as interrupted is not done"),
        Err(error) => panic!("{error:?}"),
    }
    Ok(())
}
