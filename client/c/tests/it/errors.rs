//! Error numbers of invalid calls and refused access.

use std::ffi::CStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::ptr;

use tombolo::{
    Stat, tombolo_access, tombolo_close, tombolo_counts, tombolo_list, tombolo_lstat, tombolo_open,
    tombolo_read, tombolo_readlink, tombolo_stat, tombolo_stat_async, tombolo_version,
};

use crate::common::{Opened, Served, c};

#[test]
fn paths_that_lead_nowhere() {
    let served = Served::new();
    let tree = served.open();
    let long = "x".repeat(256);
    let longer = "x/".repeat(2048);
    let cases = [
        ("", libc::ENOENT),
        ("none", libc::ENOENT),
        ("away", libc::ENOENT),
        ("a/b/file/x", libc::ENOTDIR),
        ("a/b/file/", libc::ENOTDIR),
        ("loop", libc::ELOOP),
        (&*long, libc::ENAMETOOLONG),
        (&*longer, libc::ENAMETOOLONG),
    ];
    for (path, errno) in cases {
        for _ in 0..2 {
            assert_eq!(tree.stat(path), Err(-errno), "{path}");
            assert_eq!(tree.read(path, 1), Err(-errno), "{path}");
            assert_eq!(tree.list(path), Err(-errno), "{path}");
        }
    }
    assert_eq!(tree.read("a", 1), Err(-libc::EISDIR));
    assert_eq!(tree.list("empty"), Err(-libc::ENOTDIR));
    assert_eq!(tree.read_link("empty", 9), Err(-libc::EINVAL));
    assert_eq!(tree.read_link("a/link", 0), Err(-libc::EINVAL));
}

#[test]
fn trees_that_are_not_there() {
    let served = Served::new();
    let open = |socket: &CStr, name: &CStr| Opened::at(socket, name).map(drop);
    assert_eq!(open(&served.socket(), c"src"), Ok(()));
    assert_eq!(open(&served.socket(), c"other"), Err(-libc::ENOENT));
    assert_eq!(open(&served.local("none"), c"src"), Err(-libc::ECONNREFUSED));
    assert_eq!(open(&served.local("empty"), c"src"), Err(-libc::ECONNREFUSED));
    assert_eq!(open(&served.local("a/b"), &c("x".repeat(5000))), Err(-libc::ENAMETOOLONG));
    assert_eq!(open(&c("x".repeat(5000)), c"src"), Err(-libc::ENAMETOOLONG));
}

#[test]
fn memory_without_a_free_server_is_refused() {
    let served = Served::new();
    let open = |place: &CStr, name: &CStr| Opened::at(place, name).map(drop);
    let (listener, place) = served.over_memory(8 << 20);
    assert_eq!(open(&place, c"other"), Err(-libc::ENOENT));
    let first = Opened::at(&place, c"src").expect("a tree");
    assert_eq!(open(&place, c"src"), Err(-libc::EBUSY), "one client at a time");
    drop(first);
    assert_eq!(open(&place, c"src"), Ok(()));
    drop(listener);
    assert_eq!(open(c"shm+file:/none", c"src"), Err(-libc::ENOENT));
    std::fs::write(served.dir.path().join("blank"), [0; 12288]).unwrap();
    let blank = c(format!("shm+file:{}", served.dir.path().join("blank").display()));
    assert_eq!(open(&blank, c"src"), Err(-libc::ECONNREFUSED));
    assert_eq!(open(c"shm+pci:none", c"src"), Err(-libc::ENODEV));
    for place in [c"shm+mmapper:/src", c"shm+mmapper", c"shm+pci:/src", c"shm+fil:x"] {
        assert_eq!(open(place, c"src"), Err(-libc::EINVAL), "{place:?}");
    }
}

#[test]
fn null_pointers_are_invalid_and_nothing_happens() {
    let served = Served::new();
    let tree = served.open();
    let (t, path, none) = (tree.0, c"a/b/file".as_ptr(), ptr::null_mut());
    let mut out = Stat::default();
    let mut opened = ptr::null_mut();
    let socket = served.socket();
    /// Expects `-EINVAL` from each call.
    macro_rules! invalid {
        ($($call:expr;)+) => {$(
            // SAFETY: null pointers are allowed everywhere, and all others point to valid arguments.
            assert_eq!(unsafe { $call } as i32, -libc::EINVAL, stringify!($call));
        )+};
    }
    invalid! {
        tombolo_open(ptr::null(), c"src".as_ptr(), &mut opened);
        tombolo_open(socket.as_ptr(), ptr::null(), &mut opened);
        tombolo_open(socket.as_ptr(), c"src".as_ptr(), ptr::null_mut());
        tombolo_stat(none, path, &mut out);
        tombolo_stat(t, ptr::null(), &mut out);
        tombolo_stat(t, path, ptr::null_mut());
        tombolo_lstat(t, path, ptr::null_mut());
        tombolo_access(none, path, 0);
        tombolo_access(t, ptr::null(), 0);
        tombolo_access(t, path, 8);
        tombolo_access(t, path, -1);
        tombolo_read(t, path, ptr::null_mut(), 1);
        tombolo_read(none, path, ptr::null_mut(), 0);
        tombolo_readlink(t, path, ptr::null_mut(), 9);
        tombolo_list(t, path, None, ptr::null_mut());
        tombolo_stat_async(t, path, 0, None, ptr::null_mut());
        tombolo_counts(t, ptr::null_mut());
    }
    assert!(opened.is_null());
    assert_eq!(out, Stat::default());
    // SAFETY: null is allowed.
    unsafe { tombolo_close(ptr::null_mut()) };
    // SAFETY: a static string.
    let version = unsafe { CStr::from_ptr(tombolo_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_tree_is_its_users() {
    // SAFETY: it has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        tombolo_skip::skip!("only root can be another user");
    }
    let served = Served::new();
    std::fs::set_permissions(served.dir.path().join("a/b"), Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(served.dir.path().join("empty"), Permissions::from_mode(0o600)).unwrap();
    for bits in 0..8 {
        let file = served.dir.path().join(format!("others-{bits}"));
        std::fs::write(&file, b"").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600 | bits)).unwrap();
    }
    let socket = served.socket();
    // Only for this thread.
    let other = std::thread::spawn(move || {
        // SAFETY: its arguments are numbers.
        unsafe { libc::setfsgid(65534) };
        // SAFETY: its arguments are numbers.
        unsafe { libc::setfsuid(65534) };
        Opened::at(&socket, c"src").expect("a tree")
    });
    let tree = other.join().unwrap();
    for _ in 0..2 {
        assert!(tree.stat("empty").is_ok());
        assert_eq!(tree.stat("a/b/file"), Err(-libc::EACCES));
        assert_eq!(tree.read("empty", 1), Err(-libc::EACCES));
        assert_eq!(tree.list("a/b"), Err(-libc::EACCES));
        // SAFETY: an open tree, and a string.
        assert_eq!(unsafe { tombolo_access(tree.0, c"empty".as_ptr(), libc::R_OK) }, -libc::EACCES);
        // SAFETY: an open tree, and a string.
        assert_eq!(unsafe { tombolo_access(tree.0, c"empty".as_ptr(), libc::F_OK) }, 0);
    }
    for (bits, mode) in (0..8).flat_map(|bits| (0..8).map(move |mode| (bits, mode))) {
        let path = c(format!("others-{bits}"));
        let expected = if mode & !bits == 0 { 0 } else { -libc::EACCES };
        // SAFETY: an open tree, and a string.
        let result = unsafe { tombolo_access(tree.0, path.as_ptr(), mode) };
        assert_eq!(result, expected, "{bits:o}, {mode:o}");
    }
    assert!(served.open().stat("a/b/file").is_ok());
}
