//! Listing directories.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Dir, FileType};

use super::cases;
use crate::is_long_run;
use crate::posix::World;
use crate::report::Verdict;

cases! { "listing":
    numbers_and_types_agree_with_stat,
    thousands_of_names_are_listed_once,
    remaining_names_are_listed_once_under_removal,
    a_listing_goes_on_from_any_position,
    a_listing_starts_anew_after_rewind,
}

fn open(w: &World) -> Dir {
    Dir::new(OwnedFd::from(File::open(&w.dir).expect("open"))).expect("a directory")
}

/// Reads the remaining entries: name, number, type, and cookie.
fn rest(dir: &mut Dir) -> Vec<(String, u64, FileType, i64)> {
    let mut entries = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push((name, entry.ino(), entry.file_type(), entry.offset()));
    }
    entries
}

fn fill(w: &World, count: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|index| format!("entry-{index:05}")).collect();
    names.iter().for_each(|name| drop(File::create(w.path(name)).expect("create")));
    names
}

fn numbers_and_types_agree_with_stat(w: &World) {
    w.file_with("file", b"");
    w.mkdir("dir");
    std::os::unix::fs::symlink("target", w.path("link")).expect("symlink");
    let entries = rest(&mut open(w));
    let mut names: Vec<_> = entries.iter().map(|entry| entry.0.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, [".", "..", "dir", "file", "link"]);
    for (name, ino, file_type, _) in &entries {
        let stat = fs::symlink_metadata(w.path(name)).expect("lstat");
        let same = FileType::from_raw_mode(stat.mode()) == *file_type;
        assert!(*file_type == FileType::Unknown || same, "the type of {name}");
        assert!(name == ".." || stat.ino() == *ino, "the number of {name}");
    }
}

fn thousands_of_names_are_listed_once(w: &World) {
    let names = fill(w, if is_long_run() { 10_000 } else { 2_000 });
    assert_eq!(w.names(), names);
}

fn remaining_names_are_listed_once_under_removal(w: &World) -> Verdict {
    let names = fill(w, if is_long_run() { 2_000 } else { 500 });
    let mut dir = open(w);
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut read = 0;
    while let Some(entry) = dir.read() {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        *counts.entry(name).or_default() += 1;
        // Removes every fourth name, a few at a time, independent of the listing's position, but never the
        // oldest: if that is the next one to be read, Linux 6.18 lists a tmpfs from its beginning.
        if read % 50 == 0 {
            for gone in names.iter().skip(1 + read * 4 / 5).step_by(4).take(10) {
                let _ = fs::remove_file(w.path(gone));
            }
            File::create(w.path(&format!("late-{read}"))).expect("create");
        }
        read += 1;
    }
    for name in &names {
        let times = counts.get(name).copied().unwrap_or(0);
        let stays = w.path(name).exists();
        assert!(times == 1 || (!stays && times == 0), "{name} was listed {times} times");
    }
    Ok(())
}

fn a_listing_goes_on_from_any_position(w: &World) {
    fill(w, 300);
    let mut dir = open(w);
    let all = rest(&mut dir);
    for index in [0, 1, 50, 200, 300] {
        dir.seek(all[index].3).expect("seekdir");
        let again: Vec<_> = rest(&mut dir).into_iter().map(|entry| entry.0).collect();
        let expected: Vec<_> = all[index + 1..].iter().map(|entry| entry.0.clone()).collect();
        assert_eq!(again, expected, "from entry {index}");
    }
}

fn a_listing_starts_anew_after_rewind(w: &World) {
    fill(w, 5);
    let mut dir = open(w);
    assert_eq!(rest(&mut dir).len(), 7);
    fs::remove_file(w.path("entry-00002")).expect("unlink");
    File::create(w.path("late")).expect("create");
    dir.rewind();
    let names: Vec<_> = rest(&mut dir).into_iter().map(|entry| entry.0).collect();
    assert!(names.contains(&"late".to_owned()) && !names.contains(&"entry-00002".to_owned()), "{names:?}");
}
