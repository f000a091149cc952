//! Operations that wait: for locks of the host, cold data, slow work.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Mounted, ROOT, World, record, run, serve, served};
use tombolo_back_local_dir::Options;
use tombolo_core::fs::{File, LockKind, LockOwner, OpenFlags, SyncScope};
use tombolo_core::{Answer, Ctx, Error, Interrupt};
use tombolo_mem::{Region, Sink};
use tombolo_sys::lock;
use tombolo_test_support::name;

const ALL: lock::LockRange = lock::LockRange { start: 0, len: 0 };

fn writable(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn locks_exclude_host_and_other_sessions() {
    let (dir, one) = served();
    let two = one.another();
    let a = one.file("file");
    let b = two.writer("file");
    let host = writable(&dir.path().join("file"));
    let host_range = lock::LockRange { start: 100, len: 10 };
    lock::try_lock(host.as_fd(), lock::LockKind::Exclusive, host_range).unwrap();

    let locks = |world: &World, file, lock, wait| world.locks().lock(&world.cx, file, &lock, wait).wait();
    assert!(matches!(locks(&one, a, record(LockKind::Read, 105, 105, 1), false), Err(Error::WouldBlock)));
    locks(&one, a, record(LockKind::Write, 0, 9, 1), false).unwrap();
    assert!(matches!(locks(&two, b, record(LockKind::Write, 9, 9, 1), false), Err(Error::WouldBlock)));
    locks(&two, b, record(LockKind::Write, 10, 19, 1), false).unwrap();
    let refused = lock::try_lock(host.as_fd(), lock::LockKind::Shared, ALL);
    assert_eq!(refused, Err(tombolo_sys::Errno::AGAIN));
    // Closing any descriptor drops the owner's locks.
    one.fs.flush(&one.cx, a, LockOwner(1)).wait().unwrap();
    lock::try_lock(host.as_fd(), lock::LockKind::Shared, lock::LockRange { start: 0, len: 10 }).unwrap();
}

/// Checks this because no flush or further release would release the lock.
#[test]
fn lock_is_not_granted_through_ended_opening() {
    let (dir, world) = served();
    let open = world.file("file");
    let host = writable(&dir.path().join("file"));
    lock::try_lock(host.as_fd(), lock::LockKind::Exclusive, ALL).unwrap();
    let locks = world.locks();
    let waits = locks.lock(&world.cx, open, &record(LockKind::Write, 0, 9, 1), true);
    assert!(!waits.is_done());
    world.release(open);
    lock::unlock(host.as_fd(), ALL).unwrap();
    assert!(matches!(waits.wait(), Err(Error::BadOpen)));
    assert_eq!(lock::try_lock(host.as_fd(), lock::LockKind::Exclusive, ALL), Ok(()));
}

#[test]
fn waiters_for_host_lock_share_one_thread() {
    let (dir, world) = served();
    let open = world.file("file");
    let host = writable(&dir.path().join("file"));
    lock::try_lock(host.as_fd(), lock::LockKind::Exclusive, ALL).unwrap();
    let locks = world.locks();
    let ask = |cx: &Ctx, owner| locks.lock(cx, open, &record(LockKind::Read, 0, u64::MAX, owner), true);
    let before = threads();
    let waiting: Vec<_> = (1..=100).map(|owner| ask(&world.cx, owner)).collect();
    assert!(waiting.iter().all(|answer| !answer.is_done()));
    // Other tests of this process start threads too; one per waiter would be a hundred.
    assert!(threads() < before + 60, "{} threads", threads() - before);

    // Other work continues, and an interrupted wait returns an error.
    world.fs.fsync(&world.cx, open, SyncScope::All).wait().unwrap();
    let impatient = Ctx { interrupt: Interrupt::new(), ..world.cx.clone() };
    let answer = ask(&impatient, 999);
    impatient.interrupt.raise();
    assert!(matches!(answer.wait(), Err(Error::Interrupted)));

    lock::unlock(host.as_fd(), ALL).unwrap();
    let start = Instant::now();
    waiting.into_iter().for_each(|answer| answer.wait().unwrap());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(lock::try_lock(host.as_fd(), lock::LockKind::Exclusive, ALL), Err(tombolo_sys::Errno::AGAIN));
}

#[test]
fn cached_data_is_read_inline_and_cold_data_later() {
    let (dir, world) = served();
    fs::write(dir.path().join("file"), vec![7; 8 << 20]).unwrap();
    let entry = world.lookup("file").unwrap();
    let open = world.reader(entry.node);
    assert!(world.fs.getattr(&world.cx, entry.node, None).is_done());
    let region = Region::heap(1 << 20);
    let read = |offset| world.fs.read(&world.cx, open, offset, Sink::from(&region));
    let warm = read(0);
    assert!(warm.is_done());
    assert_eq!(warm.wait().unwrap().count, 1 << 20);
    let end = read(8 << 20);
    assert!(end.is_done() && end.wait().unwrap().eof);

    let cold = pending_when_cold(&dir.path().join("file"), || read(4 << 20));
    assert_eq!(cold.wait().unwrap().count, 1 << 20);
    assert!(!world.fs.fsync(&world.cx, open, SyncScope::Data).is_done());
}

/// Returns the answer to a request for uncached data, which must be pending: a read from the disk would have
/// blocked the thread.
fn pending_when_cold<T: Send + 'static>(path: &Path, ask: impl Fn() -> Answer<T>) -> Answer<T> {
    let drop_cache = format!("sync {0} && dd if={0} iflag=nocache count=0", path.display());
    // The kernel may keep pages that it was asked to drop, and checking for cached data triggers readahead,
    // which a fast disk may complete before the check. But not every time.
    let pending = (0..50).find_map(|_| {
        assert!(Command::new("sh").args(["-c", &drop_cache]).output().unwrap().status.success());
        Some(ask()).filter(|answer| !answer.is_done())
    });
    pending.expect("a pending answer")
}

/// Two files of a directory, and a copy of the first one's beginning to the second.
struct Copy {
    world: World,
    from: File,
    to: File,
}

impl Copy {
    fn of(dir: &Path, bytes: usize, flags: OpenFlags) -> Self {
        fs::write(dir.join("from"), vec![7; bytes]).unwrap();
        fs::write(dir.join("to"), []).unwrap();
        let world = serve(dir, Options::default());
        let from = world.reader("from");
        let to = world.open(world.lookup("to").unwrap().node, OpenFlags::WRITE | flags).unwrap();
        Self { world, from, to }
    }

    fn start(&self, len: u64) -> Answer<u64> {
        self.world.ranges().copy(&self.world.cx, self.from, 0, self.to, 0, len)
    }
}

#[test]
fn small_cached_files_are_copied_inline() {
    const SMALL: u64 = 100_000;
    for parent in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let copy = Copy::of(dir.path(), SMALL as usize, OpenFlags::empty());
        // On a busy machine one of these may be slow, and the next few then go to the pool.
        let at_once = (0..50).filter(|_| {
            let answer = copy.start(SMALL);
            let at_once = answer.is_done();
            assert_eq!(answer.wait().unwrap(), SMALL);
            at_once
        });
        assert!(at_once.count() > 0, "{parent}");
        assert_eq!(fs::read(dir.path().join("to")).unwrap(), vec![7; SMALL as usize]);
        assert!(!copy.start(1 << 20).is_done(), "a large one keeps its thread for long");
    }

    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let stable = Copy::of(dir.path(), SMALL as usize, OpenFlags::SYNC);
    assert!(!stable.start(SMALL).is_done(), "what is stable has waited for a disk");
    let cold = Copy::of(dir.path(), SMALL as usize, OpenFlags::empty());
    let answer = pending_when_cold(&dir.path().join("from"), || cold.start(SMALL));
    assert_eq!(answer.wait().unwrap(), SMALL);
}

/// Checks copies on a file system that writes dirty data back before sharing blocks.
#[test]
fn block_sharing_copy_runs_in_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    fs::create_dir(&at).unwrap();
    run(Command::new("mkfs.xfs").arg("-q").arg(&image));
    let _mounted = Mounted::new(&["-o", "loop", image.to_str().unwrap()], &at);
    let copy = Copy::of(&at, 64 << 10, OpenFlags::empty());
    let answer = copy.start(64 << 10);
    assert!(!answer.is_done());
    assert_eq!(answer.wait().unwrap(), 64 << 10);
    let extents = Command::new("filefrag").arg("-v").arg(at.join("to")).output().unwrap();
    let extents = String::from_utf8_lossy(&extents.stdout);
    assert!(extents.contains("shared"), "{extents}");
}

#[test]
fn only_large_removals_go_to_the_pool() {
    let (dir, world) = served();
    fs::write(dir.path().join("big"), vec![7; 16 << 20]).unwrap();
    let unlink = |text| world.fs.unlink(&world.cx, ROOT, name(text));
    let big = unlink("big");
    assert!(!big.is_done());
    big.wait().unwrap();
    // On a busy machine one of these may be slow, and the next few then go to the pool.
    let at_once = (0..50).filter(|_| {
        fs::write(dir.path().join("small"), b"7").unwrap();
        let answer = unlink("small");
        let done = answer.is_done();
        answer.wait().unwrap();
        done
    });
    assert!(at_once.count() > 0);
}

#[test]
fn removed_big_file_is_freed_in_the_pool() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("big");
    let world = serve(dir.path(), Options::default());
    let timed = |act: &mut dyn FnMut()| {
        let start = Instant::now();
        act();
        start.elapsed()
    };
    // The quickest of several, because some are slow on a busy machine.
    let at_once = (0..5).map(|_| {
        fs::write(&path, vec![7; 64 << 20]).unwrap();
        let mut open = Some(fs::File::open(&path).unwrap());
        fs::remove_file(&path).unwrap();
        timed(&mut || drop(open.take()))
    });
    let at_once = at_once.min().unwrap();
    let forgotten = (0..5).map(|_| {
        fs::write(&path, vec![7; 64 << 20]).unwrap();
        let node = world.lookup("big").unwrap().node;
        world.unlink("big").unwrap();
        timed(&mut || world.forget(node))
    });
    let forgotten = forgotten.min().unwrap();
    assert!(forgotten < at_once / 2, "{forgotten:?}, and {at_once:?} to free as much");
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}
