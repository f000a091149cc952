//! Programs that watch files on a mount: events about removals by others.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tombolo_core::fs::RenameFlags;
use tombolo_sys::fanotify::{EventMask, Fanotify};
use tombolo_test_support::Session;

use crate::push::{pushed, soon, watched};

/// An inotify watch of a file.
struct Inotify(OwnedFd);

impl Inotify {
    fn of(path: &Path) -> Self {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("inotify");
        inotify::add_watch(&fd, path, WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF).expect("watched");
        Self(fd)
    }

    fn told(&self) -> ReadFlags {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.0, &mut buffer);
        let mut told = ReadFlags::empty();
        while let Ok(event) = events.next() {
            told |= event.events();
        }
        told
    }
}

/// Creates a file and looks it up after the notice about its name, which drops the name and pending events.
fn created(mount: &Path, create: impl Fn(&str), name: &str) {
    let later = format!("after {}", name.trim_end_matches('/'));
    assert!(!mount.join(&later).exists());
    create(name);
    create(&later);
    soon("create", || mount.join(&later).exists());
    assert!(mount.join(name).exists());
}

/// Checks events; `remove` removes names in another client's way.
fn watchers_are_told(mount: &Path, create: impl Fn(&str), remove: impl Fn(&str)) {
    let create = |name: &str| created(mount, &create, name);
    let watch = |name: &str| Inotify::of(&mount.join(name));
    let is_told = |watcher: &Inotify| watcher.told().contains(ReadFlags::DELETE_SELF);
    create("file");
    let watcher = watch("file");
    assert_eq!(watcher.told(), ReadFlags::empty());
    remove("file");
    soon("inotify: a file that is gone", || is_told(&watcher));
    assert!(!mount.join("file").exists());
    // An open file without a name exists until it is closed.
    create("open");
    let watcher = watch("open");
    let open = fs::File::open(mount.join("open")).expect("opened");
    remove("open");
    soon("a name that is gone", || !mount.join("open").exists());
    soon("its file", || rustix::fs::fstat(&open).expect("known").st_nlink == 0);
    assert_eq!(watcher.told(), ReadFlags::empty());
    drop(open);
    soon("inotify: a file that was closed", || is_told(&watcher));
    create("dir/");
    let watcher = watch("dir");
    remove("dir/");
    soon("inotify: a directory that is gone", || is_told(&watcher));
    // A file with two names exists until both are gone.
    create("one");
    let watcher = watch("one");
    fs::hard_link(mount.join("one"), mount.join("two")).expect("linked");
    remove("one");
    soon("the first name", || !mount.join("one").exists());
    assert!(!is_told(&watcher));
    remove("two");
    soon("inotify: the last name", || is_told(&watcher));
    create("marked");
    let Ok(fanotify) = Fanotify::new() else { tombolo_skip::skip!("no CAP_SYS_ADMIN") };
    let root = fs::File::open(mount).expect("opened");
    fanotify.add_file(root.as_fd(), c"marked", EventMask::DELETE_SELF).expect("a mark");
    remove("marked");
    let mut buffer = Vec::new();
    soon("fanotify: a file that is gone", || {
        let mut deeds = EventMask::empty();
        fanotify.read(&mut buffer, |event| deeds |= event.deeds).expect("read");
        deeds.contains(EventMask::DELETE_SELF)
    });
}

#[test]
fn inotify_reports_removal_by_another_client() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let export = watched(dir.path());
    let (mounted, other) = (pushed(&export), Session::attach(&export));
    let create = |name: &str| match name.strip_suffix('/') {
        Some(name) => other.mkdir(name).map(drop).expect("made"),
        None => other.put(name, b"data"),
    };
    let remove = |name: &str| match name.strip_suffix('/') {
        Some(name) => other.rmdir(name).map(drop).expect("removed"),
        None => other.unlink(name).map(drop).expect("removed"),
    };
    watchers_are_told(mounted.path(), create, remove);
    // Also when a file is replaced.
    created(mounted.path(), create, "old");
    other.put("new", b"new");
    let watcher = Inotify::of(&mounted.at("old"));
    other.rename("new", "old", RenameFlags::empty()).expect("renamed");
    soon("inotify: a file that is replaced", || watcher.told().contains(ReadFlags::DELETE_SELF));
    soon("the file in its place", || fs::read(mounted.at("old")).is_ok_and(|data| data == b"new"));
}

#[test]
fn inotify_reports_removal_by_the_host() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mounted = pushed(&watched(dir.path()));
    let host = |script: &str, name: &str| {
        let done = Command::new("sh").args(["-ec", script, "-", name]).current_dir(dir.path()).status();
        assert!(done.expect("a shell").success());
    };
    let create = |name: &str| host("case $1 in */) mkdir \"$1\" ;; *) echo data > \"$1\" ;; esac", name);
    let remove = |name: &str| host("rm -d \"${1%/}\"", name);
    watchers_are_told(mounted.path(), create, remove);
}
