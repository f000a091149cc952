//! Construction of images from calls.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::UNIX_EPOCH;

use tombolo_crash_images::{each_image, mark, record, recorded};

/// Replaces one file as a whole, and writes another in place.
fn work(dir: &Path) {
    for version in 1..=3_u8 {
        let mut fresh = File::create(dir.join("new")).expect("create");
        fresh.write_all(&[version; 3000]).expect("write");
        fresh.write_all(&[version; 3000]).expect("write");
        fresh.sync_all().expect("sync");
        fs::rename(dir.join("new"), dir.join("replaced")).expect("rename");
        File::open(dir).and_then(|dir| dir.sync_all()).expect("sync");
        mark(&version.to_string());
    }
    fs::create_dir(dir.join("sub")).expect("mkdir");
    let file = File::create(dir.join("sub/file")).expect("create");
    file.write_all_at(&[1; 9000], 100).expect("write");
    file.sync_data().expect("sync");
    File::open(dir.join("sub")).and_then(|sub| sub.sync_all()).expect("sync");
    File::open(dir).and_then(|dir| dir.sync_all()).expect("sync");
    mark("written");
    for version in 2..=6 {
        file.write_all_at(&[version; 9000], 100).expect("write");
    }
    file.set_len(5000).expect("truncate");
    fs::remove_file(dir.join("replaced")).expect("unlink");
}

#[test]
fn images_contain_synced_data_and_any_other_subset() {
    if let Some(dir) = recorded() {
        return work(&dir);
    }
    let area = tempfile::tempdir().expect("a directory");
    let log = record(&area.path().join("dir"));
    let seen = Mutex::new(BTreeSet::new());
    each_image(&log, |dir, _, marks| {
        let see = |what: &'static str| {
            seen.lock().expect("no panic").insert(what);
        };
        let replaced = fs::read(dir.join("replaced")).ok();
        let promised = marks.iter().filter_map(|mark| mark.parse::<u8>().ok()).max().unwrap_or(0);
        match &replaced {
            Some(bytes) => {
                assert!(
                    bytes.len() == 6000 && bytes.iter().all(|byte| *byte == bytes[0]),
                    "a mix of versions"
                );
                assert!((promised..=3).contains(&bytes[0]), "{} after {promised}", bytes[0]);
                see(if bytes[0] > promised { "newer than promised" } else { "as promised" });
            }
            None => assert!(promised == 0 || marks.contains(&"written"), "it existed"),
        }
        let Ok(bytes) = fs::read(dir.join("sub/file")) else {
            assert!(!marks.contains(&"written"));
            return see("not there");
        };
        if !marks.contains(&"written") {
            see(if bytes.len() == 9100 { "there early" } else { "empty" });
            return;
        }
        assert!(bytes.len() == 9100 || bytes.len() == 5000, "{}", bytes.len());
        assert!(bytes[..100] == [0; 100] && bytes[100..].iter().all(|byte| (1..=6).contains(byte)));
        let changes = bytes[100..].windows(2).filter(|pair| pair[0] != pair[1]).count();
        see(match (bytes[100], changes) {
            (1, 0) => "old",
            (_, 0) => "new",
            _ => "torn",
        });
        see(if replaced.is_some() { "name still there" } else { "name gone" });
    });
    let wanted = [
        "newer than promised",
        "as promised",
        "not there",
        "there early",
        "empty",
        "old",
        "new",
        "torn",
        "name still there",
        "name gone",
    ];
    let seen = seen.into_inner().expect("no panic");
    let missing: Vec<_> = wanted.iter().filter(|wanted| !seen.contains(**wanted)).collect();
    assert!(missing.is_empty(), "no image has {missing:?}");
}

#[test]
fn images_contain_links_foreign_writes_and_synced_times() {
    let time_of = |file: &Path| {
        let time = fs::metadata(file).and_then(|file| file.modified()).expect("a time");
        time.duration_since(UNIX_EPOCH).expect("after 1970").as_nanos().to_string()
    };
    if let Some(dir) = recorded() {
        let (one, other) = (dir.join("one"), dir.join("other"));
        fs::write(&one, "first ").expect("write");
        File::open(&one).and_then(|file| file.sync_all()).expect("sync");
        fs::hard_link(&one, &other).expect("link");
        File::open(&dir).and_then(|dir| dir.sync_all()).expect("sync");
        mark(&time_of(&one));
        let append = format!("sleep 0.02; echo second >> {}", one.display());
        assert!(Command::new("sh").args(["-c", &append]).status().expect("sh(1)").success());
        File::open(&other).and_then(|file| file.sync_data()).expect("sync");
        return mark(&time_of(&other));
    }
    let area = tempfile::tempdir().expect("a directory");
    let log = record(&area.path().join("dir"));
    let seen = Mutex::new(BTreeSet::new());
    let all: Vec<String> = log.all_marks().into_iter().map(str::to_owned).collect();
    each_image(&log, |dir, _, marks| {
        if marks.is_empty() {
            return;
        }
        let [one, other] = ["one", "other"].map(|name| dir.join(name));
        let inodes = [&one, &other].map(|file| fs::metadata(file).expect("there").ino());
        assert_eq!(inodes[0], inodes[1], "two names of one file");
        let text = fs::read_to_string(&one).expect("read");
        assert!(marks.len() < 2 || text == "first second\n", "{text}");
        let place = all.iter().position(|time| *time == time_of(&one)).expect("one of its times");
        seen.lock().expect("no panic").insert((marks.len(), place));
    });
    // Only data were synced: the time may be the old one.
    let seen = seen.into_inner().expect("no panic");
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(1, 0), (1, 1), (2, 0), (2, 1)]);
}

#[test]
fn recorder_fails_on_an_unknown_call() {
    if let Some(dir) = recorded() {
        fs::write(dir.join("file"), "bytes").expect("write");
        std::os::unix::fs::symlink("file", dir.join("link")).expect("a link");
        return;
    }
    let area = tempfile::tempdir().expect("a directory");
    let recorded = std::panic::catch_unwind(|| record(&area.path().join("dir")));
    let error = recorded.expect_err("an unknown call");
    let error = error.downcast_ref::<String>().expect("text");
    assert!(error.contains("symlink"), "{error}");
}
