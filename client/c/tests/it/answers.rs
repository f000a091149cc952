//! Answers equal those of local system calls.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use tombolo::{Stat, Time, tombolo_access, tombolo_list, tombolo_lstat, tombolo_read};
use tombolo_test_support::until;

use crate::common::{Opened, Served, c};

const PATHS: [&str; 12] = [
    ".",
    "a",
    "a/b/file",
    "a/link",
    "a/link/",
    "a/b/../link",
    "away",
    "loop",
    "empty",
    "none",
    "a/b/file/x",
    "a/none/x",
];

/// Returns statx(2) of the local file at a path of the tree.
fn statx(served: &Served, path: &str, flags: c_int) -> Result<Stat, c_int> {
    let mut out = MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    // SAFETY: a string, and memory for the result.
    let result =
        unsafe { libc::statx(libc::AT_FDCWD, served.local(path).as_ptr(), flags, mask, out.as_mut_ptr()) };
    if result != 0 {
        return Err(-std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    // SAFETY: all-zero bytes are valid attributes.
    let stat = unsafe { out.assume_init() };
    let time = |time: libc::statx_timestamp| Time { sec: time.tv_sec, nsec: time.tv_nsec, reserved: 0 };
    Ok(Stat {
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        ino: stat.stx_ino,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        blksize: stat.stx_blksize,
        rdev_major: stat.stx_rdev_major,
        rdev_minor: stat.stx_rdev_minor,
        mask: u32::from(stat.stx_mask & libc::STATX_BTIME != 0),
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: time(stat.stx_btime),
        ..Stat::default()
    })
}

/// Clears fields without a counterpart in statx(2).
fn common(stat: Result<Stat, c_int>) -> Result<Stat, c_int> {
    stat.map(|stat| Stat { dev: 0, generation: 0, ..stat })
}

#[test]
fn attributes_equal_statx_fetched_and_cached() {
    let served = Served::new();
    let tree = served.open();
    for path in PATHS {
        for _ in 0..2 {
            assert_eq!(common(tree.stat(path)), statx(&served, path, 0), "{path}");
            let here = statx(&served, path, libc::AT_SYMLINK_NOFOLLOW);
            assert_eq!(common(tree.lstat(path)), here, "{path}, the link");
        }
    }
    assert_eq!(tree.stat("/a/b/file"), tree.stat("a/b/file"));
    assert_eq!(tree.stat("/").unwrap().ino, std::fs::metadata(served.dir.path()).unwrap().ino());
}

#[test]
fn cached_answers_are_counted_and_host_changes_noticed() {
    let served = Served::new();
    let tree = served.open();
    tree.stat("a/b/file").unwrap();
    let cold = tree.counts();
    assert_eq!((cold.from_memory, cold.asked), (0, 1), "{cold:?}");
    assert!(cold.requests > 0);
    tree.stat("a/b/file").unwrap();
    let warm = tree.counts();
    if warm.asked != 1 {
        tombolo_skip::skip!("this user or file system cannot watch the host's changes");
    }
    assert_eq!((warm.from_memory, warm.requests), (1, cold.requests));
    for size in 1..20 {
        host(&served, &format!("head -c {size} /dev/zero >a/b/file"));
        soon("the size", || tree.stat("a/link").unwrap().size == size);
        soon("the content", || tree.read("a/b/file", 0).unwrap().0 == size as usize);
    }
    host(&served, "mv a/b/file a/b/other");
    soon("the removal", || tree.stat("a/b/file") == Err(-libc::ENOENT));
    soon("the listing", || tree.list("a/b").unwrap()[0].0 == "other");
    host(&served, "echo again >a/b/file");
    soon("the file", || tree.stat("a/b/file").is_ok());
}

/// Changes the directory from another process: the server knows its own changes anyway.
fn host(served: &Served, what: &str) {
    let status = Command::new("sh").current_dir(&served.dir).args(["-c", what]).status();
    assert!(status.expect("a shell").success());
}

/// Waits for a host change to be noticed: the kernel notifies the server shortly after it.
#[track_caller]
fn soon(what: &str, mut is_seen: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !is_seen() {
        assert!(std::time::Instant::now() < until, "{what} is not noticed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn read_returns_the_file_size_for_short_buffers() {
    let served = Served::new();
    let tree = served.open();
    for _ in 0..3 {
        assert_eq!(tree.read("a/link", 7), Ok((7, b"content".to_vec())));
        assert_eq!(tree.read("a/link", 3), Ok((7, b"con".to_vec())));
        assert_eq!(tree.read("a/link", 9), Ok((7, b"content\xee\xee".to_vec())));
        assert_eq!(tree.read("empty", 1), Ok((0, b"\xee".to_vec())));
    }
    // SAFETY: an open tree and a string; no bytes are requested.
    let size = unsafe { tombolo_read(tree.0, c("a/link").as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(size, 7);
    let largest = 262_144;
    std::fs::write(served.dir.path().join("largest"), vec![7; largest]).unwrap();
    std::fs::write(served.dir.path().join("larger"), vec![7; largest + 1]).unwrap();
    assert_eq!(tree.read("largest", largest), Ok((largest, vec![7; largest])));
    assert_eq!(tree.read("larger", largest), Err(-libc::EFBIG));
}

#[test]
fn targets_are_those_of_readlink() {
    let served = Served::new();
    let tree = served.open();
    for _ in 0..2 {
        assert_eq!(tree.read_link("a/link", 100).as_deref(), Ok(&b"b/file"[..]));
        assert_eq!(tree.read_link("a/link", 3).as_deref(), Ok(&b"b/f"[..]));
    }
}

#[test]
fn listings_have_all_entries_and_end_on_request() {
    let served = Served::new();
    let tree = served.open();
    let mut here: Vec<(String, c_uint, u64)> = std::fs::read_dir(served.dir.path())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            (entry.file_name().into_string().unwrap(), meta.mode() >> 12, meta.ino())
        })
        .collect();
    here.sort();
    assert_eq!(here.len(), 4);
    for _ in 0..2 {
        assert_eq!(tree.list("."), Ok(here.clone()));
        assert_eq!(tree.list("a/b/.."), tree.list("a"));
    }

    unsafe extern "C" fn second(context: *mut c_void, _: *const c_char, _: c_uint, _: u64) -> c_int {
        // SAFETY: the counter declared below, which nothing else refers to meanwhile.
        let calls = unsafe { &mut *context.cast::<c_int>() };
        *calls += 1;
        if *calls == 2 { 77 } else { 0 }
    }
    let mut calls: c_int = 0;
    // SAFETY: an open tree, a string, and a function that takes the counter.
    let result = unsafe { tombolo_list(tree.0, c("/").as_ptr(), Some(second), (&raw mut calls).cast()) };
    assert_eq!((result, calls), (77, 2));
}

#[test]
fn access_is_what_faccessat_says() {
    let served = Served::new();
    let tree = served.open();
    for path in PATHS {
        for mode in 0..8 {
            // SAFETY: a string.
            let here = unsafe {
                libc::faccessat(libc::AT_FDCWD, served.local(path).as_ptr(), mode, libc::AT_EACCESS)
            };
            let here = if here == 0 { 0 } else { -std::io::Error::last_os_error().raw_os_error().unwrap() };
            for _ in 0..2 {
                // SAFETY: an open tree, and a string.
                let there = unsafe { tombolo_access(tree.0, c(path).as_ptr(), mode) };
                assert_eq!(there, here, "{path}, {mode}");
            }
        }
    }
}

#[test]
fn threads_ask_one_tree_at_once() {
    let served = Served::new();
    let tree = served.open();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert_eq!(tree.stat("a/b/file").unwrap().size, 7);
                    assert_eq!(tree.lstat("none"), Err(-libc::ENOENT));
                    assert_eq!(tree.read("a/link", 7).unwrap().1, b"content");
                    assert_eq!(tree.list("a").unwrap().len(), 2);
                }
            });
        }
    });
}

#[test]
fn cached_attributes_allocate_nothing() {
    let served = Served::new();
    let tree = served.open();
    let (path, mut out) = (c("a/b/file"), Stat::default());
    // SAFETY: an open tree, a string, and memory for attributes.
    let mut ask = || assert_eq!(unsafe { tombolo_lstat(tree.0, path.as_ptr(), &mut out) }, 0);
    ask();
    ask();
    let before = tombolo_allocations::of_this_thread();
    ask();
    let allocated = tombolo_allocations::of_this_thread() - before;
    let counts = tree.counts();
    if counts.from_memory != 2 {
        tombolo_skip::skip!("this user or file system cannot watch the host's changes");
    }
    assert_eq!(allocated, 0);
}

/// Compares answers with the file after each change, over memory with and without space for a window.
#[test]
fn answers_over_memory_ask_only_after_changes() {
    let served = Served::new();
    let tree = served.open();
    (0..3).for_each(|_| assert!(tree.stat("a/b/file").is_ok()));
    if tree.counts().from_memory == 0 {
        tombolo_skip::skip!("this user or file system cannot watch the host's changes");
    }
    for (bytes, is_mirrored) in [(16 << 20, true), (4 << 20, false)] {
        let served = Served::new();
        let (listener, place) = served.over_memory(bytes);
        let tree = Opened::at(&place, c"src").expect("a tree");
        let path = served.dir.path().join("a/b/file");
        let truncate = |size: u64| {
            let status = Command::new("truncate").arg(format!("-s{size}")).arg(&path).status();
            assert!(status.expect("truncate(1)").success());
        };
        for size in [1, 20, 300] {
            truncate(size);
            // The kernel reports the change of another process within some milliseconds.
            until("the new size", || tree.stat("a/b/file").is_ok_and(|stat| stat.size == size));
            let asks = || {
                let before = tree.counts().asked;
                assert_eq!(tree.stat("a/b/file").map(|stat| stat.size), Ok(size));
                tree.counts().asked - before
            };
            match is_mirrored {
                true => until("an answer from memory", || asks() == 0),
                false => assert_eq!([asks(), asks(), asks()], [1; 3]),
            }
        }
        // Nothing is counted any more, so the answer in memory is not used.
        drop(listener);
        let asked = tree.counts().asked;
        truncate(4);
        let (_listener, _) = served.over_memory(bytes);
        assert_eq!(tree.stat("a/b/file").map(|stat| stat.size), Ok(4));
        assert_eq!(tree.counts().asked, asked + 1);
    }
}
