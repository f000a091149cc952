//! Several processes and threads on one tree.

use std::fs;

use super::cases;
use crate::posix::World;
use crate::report::Verdict;

cases! { "processes":
    appends_do_not_overwrite_each_other,
    a_replacing_rename_never_hides_a_name,
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
