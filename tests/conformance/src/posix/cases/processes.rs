//! Several processes and threads on one tree.

use std::fs::{self, File, OpenOptions};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cases;
use crate::posix::World;
use crate::report::Verdict;

cases! { "processes":
    appends_do_not_overwrite_each_other,
    one_of_many_creators_wins,
    a_replacing_rename_never_hides_a_name,
    many_threads_make_and_remove,
    a_forked_writer_is_seen,
}

fn appends_do_not_overwrite_each_other(w: &World) -> Verdict {
    const RECORDS: usize = 200;
    const RECORD: usize = 100;
    let path = w.file_with("log", b"").to_string_lossy().into_owned();
    let (records, record) = (RECORDS.to_string(), RECORD.to_string());
    let writers: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .map(|byte| w.background(&["append", &path, byte, &records, &record]))
        .collect();
    writers.into_iter().for_each(|writer| drop(writer.finish()));
    let log = fs::read(&path).expect("read");
    assert_eq!(log.len(), 4 * RECORDS * RECORD, "records were lost");
    assert!(
        log.chunks(RECORD).all(|record| record.iter().all(|byte| *byte == record[0])),
        "a record was torn"
    );
    Ok(())
}

fn one_of_many_creators_wins(w: &World) -> Verdict {
    for round in 0..20 {
        let wins = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let path = w.path(&format!("file-{round}"));
                    if OpenOptions::new().write(true).create_new(true).open(path).is_ok() {
                        wins.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(wins.into_inner(), 1);
    }
    Ok(())
}

fn a_replacing_rename_never_hides_a_name(w: &World) -> Verdict {
    let target = w.file_with("target", b"whole");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..200 {
                let new = w.file_with(&format!("new-{round}"), b"whole");
                fs::rename(new, &target).expect("rename");
            }
        });
        while !writer.is_finished() {
            assert_eq!(fs::read(&target).expect("a name that always exists"), b"whole");
        }
    });
    Ok(())
}

fn many_threads_make_and_remove(w: &World) -> Verdict {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..100 {
                    let path = w.path(&format!("{thread}-{round}"));
                    fs::write(&path, format!("{thread} {round}")).expect("write");
                    assert_eq!(fs::read_to_string(&path).expect("read"), format!("{thread} {round}"));
                    fs::rename(&path, path.with_extension("moved")).expect("rename");
                    fs::remove_file(path.with_extension("moved")).expect("unlink");
                }
            });
        }
    });
    assert!(w.names().is_empty(), "{:?}", w.names());
    Ok(())
}

fn a_forked_writer_is_seen(w: &World) -> Verdict {
    let path = w.file_with("file", b"");
    let file = File::open(&path).expect("open");
    for round in 1..=10_u64 {
        w.helper(&["append", &path.to_string_lossy(), "x", "1", "10"]);
        assert_eq!(file.metadata().expect("fstat").len(), round * 10);
        assert_eq!(fs::metadata(&path).expect("stat").len(), round * 10);
    }
    assert_eq!(fs::read(&path).expect("read"), [b'x'; 100]);
    Ok(())
}
