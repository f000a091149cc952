//! Number of requests to the origin.

use tombolo_core::fs::{FileType, RenameFlags};
use tombolo_test_support::Session;

use crate::restart::pattern;
use crate::world::Origin;

const DIRS: u64 = 10;
const FILES: u64 = 10;

fn remove_below(session: &Session, path: &str) {
    for entry in session.names(path) {
        let below = format!("{path}/{entry}");
        match session.attr(&below).file_type {
            FileType::Directory => remove_below(session, &below),
            _ => {
                session.unlink(&below).expect("removed");
            }
        }
    }
    session.rmdir(path).expect("removed");
}

#[test]
fn sent_file_is_removed_without_a_lookup() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    proxy.mkdir("work").expect("made");
    for dir in 0..DIRS {
        proxy.mkdir(&format!("work/{dir}")).expect("made");
        (0..FILES).for_each(|file| proxy.put(&format!("work/{dir}/{file}"), b"some bytes"));
    }
    proxy.write_back.flush().expect("it arrives");
    let asked = |operations: &[&str]| operations.iter().map(|operation| origin.asked(operation)).sum::<u64>();
    let (names, attributes) = (["lookup", "readdir", "access"], ["getattr"]);
    let before = (asked(&names), asked(&attributes));
    remove_below(&proxy, "work");
    let (of_names, of_attributes) = (asked(&names) - before.0, asked(&attributes) - before.1);
    // The root was not created here, so its state must be fetched.
    assert!(of_names <= 3 && of_attributes <= 3, "{of_names} of names, {of_attributes} of attributes");
    let before = (origin.asked("unlink"), asked(&attributes));
    proxy.write_back.flush().expect("it arrives");
    assert_eq!(origin.asked("unlink") - before.0, DIRS * FILES);
    let of_attributes = asked(&attributes) - before.1;
    assert!(of_attributes < 3 * DIRS * FILES / 2, "{of_attributes}: what is gone is not looked at");
}

#[test]
fn sent_data_are_still_read_locally() {
    let origin = Origin::new();
    origin.direct.put("changed", &pattern(3 << 20, 1));
    let proxy = origin.proxy();
    let mut changed = pattern(3 << 20, 1);
    let file = proxy.writer("changed");
    changed[1_000_000..2_500_000].copy_from_slice(&pattern(1_500_000, 2));
    proxy.write(file, 1_000_000, &changed[1_000_000..2_500_000]).expect("written");
    proxy.release(file);
    let made = [("empty", 0), ("small", 10), ("large", (2 << 20) + 77)];
    made.iter().for_each(|(name, len)| proxy.put(name, &pattern(*len, 3)));
    proxy.write_back.flush().expect("it arrives");
    for _ in 0..2 {
        let opens = origin.asked("open");
        for (name, len) in made {
            assert!(origin.direct.contents(name) == pattern(len, 3), "{name} is there");
            assert!(proxy.get(name).expect("its maker") == pattern(len, 3), "{name}");
        }
        assert_eq!(
            (origin.asked("read"), origin.asked("open")),
            (0, opens),
            "nor is its maker's right asked for"
        );
        proxy.rename("small", "moved", RenameFlags::empty()).expect("renamed");
        proxy.rename("moved", "small", RenameFlags::empty()).expect("renamed");
        proxy.write_back.flush().expect("it arrives");
    }
    assert!(proxy.contents("changed") == changed);
    let read_bytes = proxy.cache.counts().fetched_bytes;
    assert!(
        read_bytes <= (3 << 20) - 1_500_000 + (256 << 10),
        "{read_bytes} of 3 MiB: what was written is here"
    );
    proxy.put("small", b"other bytes");
    proxy.write_back.flush().expect("it arrives");
    assert_eq!(proxy.contents("small"), b"other bytes");
    assert_eq!(proxy.cache.counts().fetched_bytes, read_bytes);
}
