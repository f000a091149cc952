//! Uncounted changes, and changes by other processes of the host.

use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtombolo::{CacheOptions, Last};
use tempfile::TempDir;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::fs::Export;

use super::let_the_clock_go_on;
use super::world::{ByPath, FILE, USER, World, cached, plainly, plant};
use crate::common::{attach, memory};

#[test]
fn without_versions_every_query_sends_a_request() {
    let dir = TempDir::new().unwrap();
    let unwatched: Arc<dyn Export> =
        Arc::new(LocalDir::open(dir.path(), DirOptions::default()).expect("serve"));
    let exports: [(&str, Arc<dyn Export>, bool); 2] =
        [("no versions", Arc::new(memory()), false), ("an unwatched host", unwatched, true)];
    for (title, export, counts) in exports {
        let other = attach(&*export, title);
        plant(&other);
        let (spy, cached) = cached(&*export, USER, CacheOptions::default(), counts);
        for round in 0..4 {
            let ask = |ask: &dyn Fn()| {
                let before = spy.requests();
                ask();
                assert!(spy.requests() > before, "{title}, round {round}: a query sent no request");
            };
            ask(&|| {
                let plain = plainly(&other, FILE, Last::Follow).ok();
                assert_eq!(cached.stat(FILE).wait().ok(), plain, "{title}");
            });
            ask(&|| assert!(!cached.exists(b"top/none").wait().unwrap()));
            ask(&|| assert_eq!(cached.read(FILE).wait().unwrap().unwrap().len(), 5 + round));
            ask(&|| assert_eq!(cached.list(b"top").wait().unwrap().len(), 2));
            ask(&|| assert_eq!(&*cached.read_link(b"top/a/b/link").wait().unwrap(), b"c/file"));
            other.write("top/a/b/c/file", &vec![b'x'; 6 + round]);
        }
        assert!(cached.is_empty() && cached.counts().from_memory == 0);
        assert_eq!(cached.content_bytes(), 0);
        assert_eq!(spy.look_ups().0, 0, "{title}: uncached nodes are released");
    }
}

/// A shell command, with its name.
const CHANGES: &[(&str, &str)] = &[
    ("a write", "echo much longer than it was > top/a/b/c/file"),
    ("chmod", "chmod 611 top/a/b/c/file"),
    ("a name", "echo here > top/a/absent"),
    ("a target", "ln -sfn none top/a/b/link"),
    ("unlink", "rm top/a/absent"),
    ("rename over", "echo something else > top/spare/file; mv top/spare/file top/a/b/c/file"),
    ("rename of an ancestor", "mv top/a top/moved"),
];

#[test]
fn host_changes_are_noticed_soon() {
    let Some(world) = World::local_dir() else { return };
    plant(&world.other);
    let dir = world.dir.as_ref().expect("a directory").path();
    let paths: [&[u8]; 4] = [FILE, b"top/a/absent", b"top/a/b/link", b"top/moved/b/c/file"];
    let see = || paths.map(|path| (world.cached.stat(path).wait().ok(), world.cached.read(path).wait().ok()));
    for (what, change) in CHANGES {
        let_the_clock_go_on();
        (0..3).for_each(|_| drop(see()));
        let before = world.spy.requests();
        drop(see());
        assert_eq!(world.spy.requests(), before, "warm before {what}");
        let status = Command::new("sh").args(["-ec", change]).current_dir(dir).status().expect("a shell");
        assert!(status.success(), "{change}");
        let deadline = Instant::now() + Duration::from_secs(10);
        let is_told = || {
            paths.iter().all(|path| {
                let plain = plainly(&world.other, path, Last::Follow).ok();
                let told = world.cached.stat(path).wait().ok();
                let size = world.cached.read(path).wait().ok().flatten().map(|bytes| bytes.len() as u64);
                told == plain && size == plain.map(|attr| attr.size)
            })
        };
        while !is_told() {
            assert!(Instant::now() < deadline, "{what} is not noticed");
            sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn volatile_file_is_requested_each_time() {
    let dir = TempDir::new().unwrap();
    let ask = vec!["*.db".parse().expect("a pattern")];
    let export = LocalDir::open(dir.path(), DirOptions { watch_host: true, ask, ..DirOptions::default() });
    let export = export.expect("serve");
    attach(&export, "other").write("a.db", b"before");
    let (spy, cached) = cached(&export, USER, CacheOptions::default(), true);
    for _ in 0..3 {
        let before = spy.requests();
        assert_eq!(cached.stat(b"a.db").wait().expect("there").size, 6);
        let asked = spy.requests();
        assert_eq!(cached.read(b"a.db").wait().expect("there").as_deref(), Some(&b"before"[..]));
        assert!(before < asked && asked < spy.requests());
    }
    assert_eq!(cached.content_bytes(), 0);
}
