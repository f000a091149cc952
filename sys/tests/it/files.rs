//! Tests of the wrappers on a real file system, one for each property that callers rely on.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tombolo_mem::{Region, Sink, Source};
use tombolo_sys::handle::FileHandle;
use tombolo_sys::lock::{LockKind, LockRange};
use tombolo_sys::open::{OpenFlags, OwnDescriptors, Resolve};
use tombolo_sys::rw::TransferFlags;
use tombolo_sys::stat::Moment;
use tombolo_sys::{Errno, change, dir, lock, namespace, open, rw, stat, xattr};

fn scratch() -> (tempfile::TempDir, std::os::fd::OwnedFd) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let fd = open::open_root(dir.path()).expect("open it");
    (dir, fd)
}

#[test]
fn beneath_walks_stay_inside_and_entries_follow_no_links() {
    let (dir, root) = scratch();
    fs::create_dir(dir.path().join("in")).unwrap();
    symlink("/etc", dir.path().join("out")).unwrap();
    symlink("..", dir.path().join("in/up")).unwrap();
    let place = OpenFlags::PATH;
    for path in [&b"out/passwd"[..], b"in/up/..", b"../x", b"/etc"] {
        let outcome = open::open_beneath(root.as_fd(), path, place, Resolve::empty());
        assert_eq!(outcome.err(), Some(Errno::XDEV), "{}", path.escape_ascii());
    }
    open::open_beneath(root.as_fd(), b"in/up/in", place, Resolve::empty()).expect("stays inside");
    assert_eq!(open::open_entry(root.as_fd(), b"out", OpenFlags::RDONLY, 0).err(), Some(Errno::LOOP));
    assert!(stat::stat_entry(root.as_fd(), b"out").unwrap().is_symlink());
    assert_eq!(open::open_entry(root.as_fd(), b"in/up", place, 0).err(), Some(Errno::INVAL));
    assert_eq!(stat::stat_entry(root.as_fd(), b"..").err(), Some(Errno::INVAL));
}

#[test]
fn walks_beneath_succeed_beside_renames() {
    let (dir, root) = scratch();
    fs::create_dir(dir.path().join("in")).unwrap();
    symlink("..", dir.path().join("in/up")).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
            fs::write(&one, "").unwrap();
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(&one, &other).and_then(|()| fs::rename(&other, &one)).unwrap();
            }
        });
        let walk = |_| open::open_beneath(root.as_fd(), b"in/up/in/up/in", OpenFlags::PATH, Resolve::empty());
        let failed = (0..20_000).map(walk).find_map(|opened| opened.err());
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(failed, None);
    });
}

#[test]
fn scattered_memory_round_trips_through_a_file() {
    let (_dir, root) = scratch();
    let fd = open::open_entry(root.as_fd(), b"f", OpenFlags::RDWR | OpenFlags::CREATE, 0o600).unwrap();
    let region = Region::heap(64);
    let mut from = Source::new();
    for (offset, text) in [(0, b"tom"), (10, b"bol"), (20, b"o!!")] {
        Sink::from(&region).write_at(offset, text);
        from.push(&region, offset, 3).unwrap();
    }
    assert_eq!(rw::write(fd.as_fd(), &from, 5, TransferFlags::empty()), Ok(9));
    let mut into = Sink::new();
    into.push(&region, 30, 4).unwrap();
    into.push(&region, 40, 20).unwrap();
    assert_eq!(rw::read(fd.as_fd(), &into, 5, TransferFlags::NOWAIT), Ok(9));
    let mut text = [0; 9];
    let mut back = Source::new();
    back.push(&region, 30, 4).unwrap();
    back.push(&region, 40, 5).unwrap();
    back.read_at(0, &mut text);
    assert_eq!(&text, b"tombolo!!");
    assert_eq!(rw::read(fd.as_fd(), &into, u64::MAX, TransferFlags::empty()), Err(Errno::INVAL));
}

#[test]
fn directory_listing_resumes_at_a_cookie() {
    let (dir, root) = scratch();
    for n in 0..500 {
        fs::write(dir.path().join(format!("entry-{n:04}")), b"").unwrap();
    }
    let own = OwnDescriptors::open().unwrap();
    let open = own.reopen_directory(root.as_fd()).unwrap();
    let mut listing = dir::Listing::with_size(4096);
    let mut all = Vec::new();
    while listing.fill(open.as_fd()).unwrap() {
        all.extend(listing.entries().map(|entry| (entry.name.to_vec(), entry.next)));
    }
    assert_eq!(all.len(), 502);
    dir::seek(open.as_fd(), all[250].1).unwrap();
    assert!(listing.fill(open.as_fd()).unwrap());
    assert_eq!(listing.entries().next().unwrap().name, all[251].0);
}

#[test]
fn a_place_can_be_changed_without_being_opened() {
    let (dir, root) = scratch();
    let path = dir.path().join("f");
    fs::write(&path, b"x").unwrap();
    symlink("nowhere", dir.path().join("l")).unwrap();
    let file = open::open_entry(root.as_fd(), b"f", OpenFlags::PATH, 0).unwrap();
    let link = open::open_entry(root.as_fd(), b"l", OpenFlags::PATH, 0).unwrap();

    change::permissions(file.as_fd(), 0o4711).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o4711);
    change::owner(file.as_fd(), Some(12), Some(34)).expect("this test needs root");
    change::owner(link.as_fd(), Some(56), None).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (12, 34, 0o711));
    assert_eq!(fs::symlink_metadata(dir.path().join("l")).unwrap().uid(), 56);
    let then = change::SetTime::To(Moment { seconds: -5, nanoseconds: 7 });
    change::times(link.as_fd(), change::SetTime::Keep, then).unwrap();
    assert_eq!(stat::stat(link.as_fd()).unwrap().modified, Moment { seconds: -5, nanoseconds: 7 });

    xattr::set(file.as_fd(), b"user.colour", b"sand", xattr::SetMode::Create).unwrap();
    assert_eq!(xattr::set(file.as_fd(), b"user.colour", b"", xattr::SetMode::Create), Err(Errno::EXIST));
    let mut value = [0; 8];
    assert_eq!(xattr::value(file.as_fd(), b"user.colour", &mut value), Ok(4));
    assert_eq!(xattr::value(file.as_fd(), b"user.colour", &mut [0; 2]), Err(Errno::RANGE));
    xattr::set(link.as_fd(), b"trusted.colour", b"sea", xattr::SetMode::Any).expect("on the link itself");
    assert_eq!(xattr::value(link.as_fd(), b"trusted.colour", &mut value), Ok(3));

    let mut buffer = [MaybeUninit::uninit(); 64];
    assert_eq!(namespace::link_target(link.as_fd(), &mut buffer), Ok(&b"nowhere"[..]));
    namespace::link(file.as_fd(), root.as_fd(), b"second").unwrap();
    assert_eq!(stat::stat(file.as_fd()).unwrap().links, 2);
}

#[test]
fn handle_survives_rename_and_is_stale_after_removal() {
    let (dir, root) = scratch();
    let path = dir.path().join("f");
    fs::write(&path, b"x").unwrap();
    let (handle, mount) = FileHandle::of_entry(root.as_fd(), b"f").unwrap();
    assert_eq!(mount, stat::stat(root.as_fd()).unwrap().mount);
    fs::rename(&path, dir.path().join("g")).unwrap();
    let own = OwnDescriptors::open().unwrap();
    let on = own.reopen_directory(root.as_fd()).unwrap();
    let found = handle.open(on.as_fd(), OpenFlags::PATH).expect("this test needs root");
    assert_eq!(FileHandle::of(found.as_fd()).unwrap().0, handle);
    assert_eq!(
        Path::new(std::str::from_utf8(&own.path(found.as_fd()).unwrap()).unwrap()),
        dir.path().join("g")
    );
    drop(found);
    fs::remove_file(dir.path().join("g")).unwrap();
    assert_eq!(handle.open(on.as_fd(), OpenFlags::PATH).err(), Some(Errno::STALE));
}

#[test]
fn two_openings_exclude_each_other_and_report_the_owner() {
    let (_dir, root) = scratch();
    let flags = OpenFlags::RDWR | OpenFlags::CREATE;
    let a = open::open_entry(root.as_fd(), b"f", flags, 0o600).unwrap();
    let b = open::open_entry(root.as_fd(), b"f", flags, 0o600).unwrap();
    let first = LockRange { start: 0, len: 10 };
    lock::try_lock(a.as_fd(), LockKind::Exclusive, first).unwrap();
    let rest = LockRange { start: 5, len: 0 };
    assert_eq!(lock::try_lock(b.as_fd(), LockKind::Shared, rest), Err(Errno::AGAIN));
    let conflict = lock::conflict(b.as_fd(), LockKind::Shared, rest).unwrap().unwrap();
    assert_eq!((conflict.kind, conflict.range), (LockKind::Exclusive, first));
    lock::unlock(a.as_fd(), LockRange { start: 5, len: 5 }).unwrap();
    lock::try_lock(b.as_fd(), LockKind::Exclusive, rest).unwrap();
    lock::try_flock(a.as_fd(), LockKind::Shared).unwrap();
    assert_eq!(lock::try_flock(b.as_fd(), LockKind::Exclusive), Err(Errno::AGAIN));
}
