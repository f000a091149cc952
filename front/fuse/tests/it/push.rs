//! Kernel caches that last until a notice invalidates them.

use crate::common::Mounted;
use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_core::Answer;
use tombolo_core::fs::{Entry, Export, Op, RenameFlags};
use tombolo_front_fuse::dev::Options;
use tombolo_front_fuse::session::Coherence;
use tombolo_layer_basic::around::{Call, Payload};
use tombolo_layer_basic::{Around, Layered};
use tombolo_test_support::Session;
use tombolo_wire_fuse::Opcode;

pub(crate) fn pushed(export: &dyn Export) -> Mounted {
    pushed_with(export, true)
}

/// Mounts with the cache invalidation of Linux 6.16 if `epochs`, otherwise with that of earlier kernels.
fn pushed_with(export: &dyn Export, epochs: bool) -> Mounted {
    Mounted::new(export, &Options { coherence: Coherence::Push, epochs, ..Options::default() })
}

/// Overwrites the beginning of a file.
fn write(other: &Session, name: &str, data: &[u8]) {
    let file = other.writer(name);
    other.write_all(file, 0, data);
    other.release(file);
}

/// Maximum wait for a notice, which takes some 100 µs. After a much longer time, other causes could explain a
/// change.
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "the kernel still believes what was before: {what}");
        std::thread::yield_now();
    }
}

/// Uses stat(2): std's statx(2) requests the birth time too, which costs another request.
fn mode(path: &Path) -> u32 {
    rustix::fs::stat(path).expect("there").st_mode & 0o777
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("listed");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// Returns the number of requests caused by read-only access.
fn requests(mounted: &Mounted) -> u64 {
    let counters = mounted.mount.session().counters();
    let counted =
        [Opcode::Lookup, Opcode::Getattr, Opcode::Statx, Opcode::Readdir, Opcode::Readdirplus, Opcode::Read];
    counted.into_iter().map(|opcode| counters.requests(opcode)).sum()
}

/// Checks that a program whose access costs no request sees the effects of `change`.
fn everything_is_seen(mounted: &Mounted, other: &Session) {
    let at = |name: &str| mounted.at(name);
    other.put("file", b"before");
    soon("create", || at("file").exists());
    let warm = || {
        for _ in 0..3 {
            let _ = (fs::metadata(at("file")), fs::metadata(at("absent")).is_err(), names(mounted.path()));
            let _ = fs::read(at("file"));
        }
    };
    warm();
    // Notices about the creation may arrive a little later.
    soon("what is known is not asked for", || {
        let quiet = requests(mounted);
        for _ in 0..100 {
            fs::metadata(at("file")).expect("there");
            assert!(!at("absent").exists());
        }
        requests(mounted) == quiet
    });
    other.chmod("file", 0o600).expect("changed");
    soon("chmod", || mode(&at("file")) == 0o600);
    warm();
    write(other, "file", b"after, and longer");
    soon("write", || fs::read(at("file")).expect("read") == b"after, and longer");
    assert_eq!(fs::metadata(at("file")).expect("there").len(), 17);
    warm();
    other.put("absent", b"");
    soon("a name that was absent", || at("absent").exists());
    soon("listing", || names(mounted.path()) == ["absent", "file"]);
    warm();
    other.rename("file", "moved", RenameFlags::empty()).expect("renamed");
    soon("rename", || !at("file").exists() && at("moved").exists());
    warm();
    let open = fs::File::open(at("moved")).expect("opened");
    other.unlink("moved").expect("removed");
    soon("unlink", || !at("moved").exists() && names(mounted.path()) == ["absent"]);
    soon("the names of an open file", || open.metadata().expect("known").nlink() == 0);
}

#[test]
fn changes_by_another_client_are_seen_at_once() {
    for epochs in [true, false] {
        let memory = Memory::default();
        everything_is_seen(&pushed_with(&memory, epochs), &Session::attach(&memory));
    }
}

pub(crate) fn watched(dir: &Path) -> LocalDir {
    LocalDir::open(dir, DirOptions { watch_host: true, ..DirOptions::default() }).expect("served")
}

#[test]
fn changes_by_another_directory_client_are_seen_at_once() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let export = watched(dir.path());
    everything_is_seen(&pushed(&export), &Session::attach(&export));
}

#[test]
fn changes_by_host_processes_are_seen_at_once() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mounted = pushed(&watched(dir.path()));
    let host = |script: &str| {
        let done = Command::new("sh").args(["-ec", script]).current_dir(dir.path()).status();
        assert!(done.expect("a shell").success());
    };
    let at = |name: &str| mounted.at(name);
    assert!(!at("file").exists());
    host("echo before > file; mkdir sub");
    soon("create", || fs::read(at("file")).is_ok_and(|data| data == b"before\n"));
    host("echo after, and longer > file");
    soon("write", || fs::read(at("file")).expect("read") == b"after, and longer\n");
    host("chmod 600 file");
    soon("chmod", || mode(&at("file")) == 0o600);
    host("ln file second");
    soon("link", || fs::metadata(at("file")).expect("there").nlink() == 2 && at("second").exists());
    host("rm second; mv file sub/moved");
    soon("rename", || !at("file").exists() && at("sub/moved").exists() && !at("second").exists());
    assert_eq!(names(mounted.path()), ["sub"]);
    host("touch -d 2001-02-03 sub/moved; truncate -s 3 sub/moved");
    soon("truncate", || fs::read(at("sub/moved")).expect("read") == b"aft");
    let sub = || rustix::fs::stat(at("sub")).expect("there");
    host("chmod 750 sub");
    soon("chmod of a directory", || sub().st_mode & 0o777 == 0o750);
    host("touch -d 2001-02-03 sub");
    soon("a directory's times", || sub().st_mtime < 1_000_000_000);
    host("rm -r sub");
    soon("removal", || names(mounted.path()).is_empty());
}

#[test]
fn names_outlive_a_second_without_epochs() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    fs::create_dir(dir.path().join("sub")).expect("made");
    fs::write(dir.path().join("file"), "").expect("written");
    let mounted = pushed_with(&watched(dir.path()), false);
    let look_ups = || mounted.mount.session().counters().requests(Opcode::Lookup);
    let caused = |access: &dyn Fn()| {
        let before = look_ups();
        access();
        look_ups() - before
    };
    let file = || assert!(mounted.at("file").exists());
    let absent = || assert!(!mounted.at("absent").exists());
    let host = |words: &[&str]| {
        assert!(
            Command::new(words[0]).args(&words[1..]).current_dir(dir.path()).status().expect("run").success()
        );
    };
    // The first notice is of everything, and the watch is complete before it. Notices are ordered.
    assert!(!mounted.at("later").exists());
    host(&["touch", "later"]);
    soon("a change by the host", || mounted.at("later").exists());
    soon("no request", || caused(&file) + caused(&absent) == 0);
    fs::hard_link(mounted.at("file"), mounted.at("linked")).expect("linked");
    fs::rename(mounted.at("linked"), mounted.at("renamed")).expect("renamed");
    let renamed = || assert!(mounted.at("renamed").exists());
    let sub = || assert!(mounted.at("sub").exists());
    let counts = || [&file as &dyn Fn(), &absent, &renamed, &sub].map(caused);
    sub();
    // Repeated, because other tests may overflow the queue of the watch, which invalidates everything.
    soon("only the directory's name is valid for no more than a second", || {
        std::thread::sleep(Duration::from_millis(1100));
        counts() == [0, 0, 0, 1]
    });
    // A mount in the export invalidates everything. The kernel keeps names of open files otherwise.
    let open = ["file", "renamed"].map(|name| fs::File::open(mounted.at(name)).expect("opened"));
    host(&["mount", "-t", "tmpfs", "none", "sub"]);
    let mut seen = [0; 4];
    soon("all names are looked up again", || {
        counts().iter().zip(&mut seen).for_each(|(count, sum)| *sum += count);
        seen[..3].iter().all(|sum| *sum > 0)
    });
    drop(open);
    host(&["umount", "-l", "sub"]);
}

#[test]
fn mounts_inside_the_export_are_noticed() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    fs::create_dir(dir.path().join("sub")).expect("made");
    fs::write(dir.path().join("sub/below"), "").expect("written");
    let mounted = pushed(&watched(dir.path()));
    let host = |script: &str| {
        let done = Command::new("sh").args(["-ec", script]).current_dir(dir.path()).status();
        assert!(done.expect("a shell").success());
    };
    let sub = mounted.at("sub");
    assert_eq!((names(&sub), sub.join("above").exists()), (vec!["below".into()], false));
    host("mount -t tmpfs none sub; touch sub/above");
    soon("mount", || names(&sub) == ["above"] && sub.join("above").exists() && !sub.join("below").exists());
    host("touch sub/second");
    soon("a change on it", || names(&sub) == ["above", "second"]);
    host("umount -l sub");
    soon("unmount", || names(&sub) == ["below"] && sub.join("below").exists() && !sub.join("above").exists());
}

#[test]
fn changes_through_an_overlapping_export_are_seen() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    fs::create_dir(dir.path().join("sub")).expect("made");
    let mounted = pushed(&watched(dir.path()));
    let inner =
        Session::attach(&LocalDir::open(&dir.path().join("sub"), DirOptions::default()).expect("served"));
    let at = |name: &str| mounted.at("sub").join(name);
    assert!(!at("file").exists());
    inner.put("file", b"before");
    soon("create", || fs::read(at("file")).is_ok_and(|data| data == b"before"));
    write(&inner, "file", b"after!");
    soon("write", || fs::read(at("file")).expect("read") == b"after!");
    inner.chmod("file", 0o600).expect("changed");
    soon("chmod", || mode(&at("file")) == 0o600);
    inner.unlink("file").expect("removed");
    soon("removal", || !at("file").exists());
}

/// Checks that whenever nothing changes for a moment, programs that look continuously see the current state.
#[test]
fn concurrent_changes_never_leave_stale_caches() {
    for epochs in [true, false] {
        stale_caches_never_stay(epochs);
    }
}

fn stale_caches_never_stay(epochs: bool) {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let memory = Memory::default();
    let other = Session::attach(&memory);
    let mounted = pushed_with(&memory, epochs);
    let test = Arc::new(());
    let running = Arc::downgrade(&test);
    let look = |name: &str| {
        let path = mounted.at(name);
        rustix::fs::stat(&path).ok().map(|stat| (stat.st_mode & 0o777, fs::read(&path).unwrap_or_default()))
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while running.strong_count() > 0 {
                    NAMES.iter().for_each(|name| drop((look(name), names(mounted.path()))));
                }
            });
        }
        let mut there: BTreeMap<&str, (u32, Vec<u8>)> = BTreeMap::new();
        let mut state = 1_u64;
        for round in 0..300_u32 {
            for _ in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = (state >> 33) as usize;
                let (name, to) = (NAMES[random % 4], NAMES[random / 4 % 4]);
                match there.remove(name) {
                    None => {
                        other.put(name, b"new");
                        there.insert(name, (0o644, b"new".to_vec()));
                    }
                    Some(_) if (random / 16).is_multiple_of(4) => {
                        other.unlink(name).expect("removed");
                    }
                    Some(file) if random / 16 % 4 == 1 => {
                        other.rename(name, to, RenameFlags::empty()).expect("renamed");
                        there.insert(to, file);
                    }
                    Some((_, data)) if random / 16 % 4 == 2 => {
                        other.chmod(name, 0o400 + round % 64).expect("changed");
                        there.insert(name, (0o400 + round % 64, data));
                    }
                    Some((mode, _)) => {
                        let data = format!("round {round:10}").into_bytes();
                        write(&other, name, &data);
                        there.insert(name, (mode, data));
                    }
                }
            }
            for name in NAMES {
                soon(name, || look(name) == there.get(name).cloned());
            }
            soon("listing", || names(mounted.path()) == there.keys().copied().collect::<Vec<_>>());
        }
        drop(test);
    });
}

/// A mount renames a file that another client replaced just before, mostly before the notice arrives: the
/// kernel moves the name of the replaced file.
#[test]
fn renamed_file_is_the_one_that_replaced_it() {
    for epochs in [true, false] {
        let memory = Memory::default();
        let other = Session::attach(&memory);
        let mounted = pushed_with(&memory, epochs);
        other.put("a", b"first");
        for round in 0..200 {
            let (from, to) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
            soon("the name", || fs::read(mounted.at(from)).is_ok());
            let text = format!("round {round}").into_bytes();
            other.put("new", &text);
            other.rename("new", from, RenameFlags::empty()).expect("renamed");
            fs::rename(mounted.at(from), mounted.at(to)).expect("renamed");
            soon("the file that was renamed", || fs::read(mounted.at(to)).is_ok_and(|data| data == text));
        }
    }
}

#[test]
fn unwatchable_host_disables_caching() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let blind = LocalDir::open(dir.path(), DirOptions::default()).expect("served");
    let mounted = pushed(&blind);
    let host = |script: &str| {
        let done = Command::new("sh").args(["-ec", script]).current_dir(dir.path()).status();
        assert!(done.expect("a shell").success());
    };
    host("echo before > file");
    assert_eq!(fs::read(mounted.at("file")).expect("read"), b"before\n");
    assert!(!mounted.at("second").exists());
    host("echo after > file; chmod 600 file; ln file second");
    assert_eq!(mode(&mounted.at("file")), 0o600);
    assert_eq!(fs::read(mounted.at("file")).expect("read"), b"after\n");
    assert!(mounted.at("second").exists());
}

/// Events identify a subvolume's files by inode numbers that also exist on the watched volume, or not at all.
#[test]
fn subvolume_in_export_disables_caching() {
    let dir = tempfile::tempdir().expect("a directory");
    let host = |script: &str| Command::new("sh").args(["-ec", script]).current_dir(dir.path()).status();
    let made = host(
        "command -v btrfs && truncate -s 200M image && mkfs.btrfs -q image && mkdir on && mount -o loop image on",
    );
    if !made.is_ok_and(|made| made.success()) {
        tombolo_skip::skip!("no mkfs.btrfs, or the kernel has no btrfs");
    }
    let host = |script: &str| assert!(host(script).expect("a shell").success(), "{script}");
    let _unmount = Unmount(dir.path().join("on"));
    host("mkdir on/plain; echo before > on/plain/file");
    let mounted = pushed(&watched(&dir.path().join("on")));
    let at = |name: &str| mounted.at(name);
    assert_eq!(fs::read(at("plain/file")).expect("read"), b"before\n");
    let asks = || {
        let before = requests(&mounted);
        assert_eq!(fs::read(at("plain/file")).expect("read"), b"before\n");
        requests(&mounted) - before
    };
    soon("the volume itself is watched", || asks() == 0);
    host("btrfs -q subvolume create on/sub; echo before > on/sub/file");
    soon("create", || fs::read(at("sub/file")).is_ok_and(|data| data == b"before\n"));
    soon("that all is asked for", || asks() > 0);
    for _ in 0..20 {
        assert_ne!(asks(), 0, "what is not told of must not be kept");
    }
    host("echo after > on/sub/file; chmod 600 on/sub/file; echo after > on/plain/file");
    assert_eq!(mode(&at("sub/file")), 0o600);
    assert_eq!(fs::read(at("sub/file")).expect("read"), b"after\n");
    soon("a file that was kept before", || fs::read(at("plain/file")).expect("read") == b"after\n");
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // The test has ended; a mount that cannot be removed remains.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// File system that holds back the next reply to LOOKUP until told to send it.
#[derive(Default)]
struct Held {
    is_armed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_made: bool,
    may_go: bool,
}

impl Around for Held {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let answer = inner();
        let is_entry = matches!(&answer, Answer::Done(Ok(it)) if (it as &dyn Any).is::<Entry>());
        if call.op == Op::Lookup && is_entry && self.is_armed.swap(false, Ordering::SeqCst) {
            let mut state = self.state.lock().expect("not poisoned");
            state.is_made = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| !state.may_go).expect("not poisoned"));
        }
        answer
    }
}

#[test]
fn reply_from_before_a_change_is_invalidated() {
    let memory = Arc::new(Memory::default());
    let other = Session::attach(&*memory);
    other.put("file", b"data");
    let held = Arc::<Held>::default();
    let mounted = pushed(&Layered::new(memory, held.clone()));
    // The first notice invalidates everything. It could replace the notice that must be repeated below, but
    // does not explain the visibility of the third change.
    other.put("before", b"");
    for set in [0o640, 0o600, 0o644] {
        mode(&mounted.at("before"));
        other.chmod("before", set).expect("changed");
        soon("chmod", || mode(&mounted.at("before")) == set);
    }
    held.is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        // Cached from now on, unless a notice arrives.
        let first = scope.spawn(|| mode(&mounted.at("file")));
        let state = held.state.lock().expect("not poisoned");
        drop(held.changed.wait_while(state, |state| !state.is_made).expect("not poisoned"));
        other.chmod("file", 0o600).expect("changed");
        // The kernel does not know the node yet, so this notice finds nothing. A busy machine takes a while
        // to send it.
        std::thread::sleep(Duration::from_secs(1));
        held.state.lock().expect("not poisoned").may_go = true;
        held.changed.notify_all();
        // Old, or new if the notice was repeated before the kernel used the reply.
        assert!([0o644, 0o600].contains(&first.join().expect("looked")));
    });
    soon("chmod during a look-up", || mode(&mounted.at("file")) == 0o600);
}
