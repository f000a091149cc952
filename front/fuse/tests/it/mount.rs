//! A mount on this host, used by ordinary programs.

use crate::common::Mounted;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tombolo_back_local_dir::LocalDir;
use tombolo_back_memory::Memory;
use tombolo_core::SessionId;
use tombolo_core::fs::Export;
use tombolo_front_fuse::dev::{Mount, Options};
use tombolo_front_fuse::session::Coherence;
use tombolo_layer_basic::delay;
use tombolo_sys::lock::{LockKind, LockRange, try_lock};
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::init::Capabilities;

fn memory(coherence: Coherence) -> Mounted {
    Mounted::new(&Memory::default(), &Options { coherence, ..Default::default() })
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_tree_is_copied_in_listed_read_and_removed() {
    for coherence in [Coherence::Strict, Coherence::Auto, Coherence::Always, Coherence::Push] {
        let mounted = memory(coherence);
        let tree = mounted.path().join("tree");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        run("cp", &["-a", source.to_str().unwrap(), tree.to_str().unwrap()]);
        run("diff", &["-r", source.to_str().unwrap(), tree.to_str().unwrap()]);
        assert!(run("ls", &["-la", tree.to_str().unwrap()]).contains("session"));
        assert!(run("cat", &[tree.join("lib.rs").to_str().unwrap()]).contains("FUSE front end"));
        run("rm", &["-r", tree.to_str().unwrap()]);
        assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
    }
}

#[test]
fn large_files_round_trip() {
    let mounted = memory(Coherence::Auto);
    let file = mounted.path().join("large");
    let data: Vec<u8> =
        (0..5_000_001u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&file, &data).unwrap();
    assert!(fs::read(&file).unwrap() == data);
    assert_eq!(fs::metadata(&file).unwrap().len(), data.len() as u64);
}

#[test]
fn links_modes_and_names_round_trip() {
    let mounted = memory(Coherence::Auto);
    let at = |name: &str| mounted.path().join(name);
    fs::write(at("file"), b"x").unwrap();
    fs::hard_link(at("file"), at("second")).unwrap();
    assert_eq!(fs::metadata(at("second")).unwrap().nlink(), 2);
    symlink("file", at("link")).unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("file"));
    assert_eq!(fs::read(at("link")).unwrap(), b"x");
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(fs::metadata(at("second")).unwrap().mode() & 0o7777, 0o604);
    fs::rename(at("second"), at("third")).unwrap();
    assert!(!at("second").exists());
    let long = "x".repeat(256);
    let error = fs::metadata(at(&long)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(36), "ENAMETOOLONG: {error}");
    assert!(fs::create_dir(at(&"x".repeat(255))).is_ok());
}

#[test]
fn busy_mount_is_detached_and_served_until_unused() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::start(&Memory::default(), SessionId(1), dir.path(), &Options::default()).unwrap();
    fs::write(dir.path().join("file"), b"still here").unwrap();
    let open = fs::File::open(dir.path().join("file")).unwrap();
    assert!(!mount.unmount().unwrap(), "it is in use");
    assert!(!dir.path().join("file").exists());
    assert_eq!(std::io::read_to_string(&open).unwrap(), "still here");
    drop(open);
    mount.wait();
}

#[test]
fn lock_wait_is_interruptible() {
    let mounted = memory(Coherence::Auto);
    let file = mounted.path().join("file");
    fs::write(&file, b"x").unwrap();
    let held = fs::File::open(&file).unwrap();
    held.lock().unwrap();
    // Waits for a second before a signal interrupts flock(2).
    let started = Instant::now();
    let status = Command::new("flock").args(["-w", "1"]).arg(&file).arg("true").status().unwrap();
    assert_eq!(status.code(), Some(1), "the lock was held by another");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(mounted.mount.session().pending_count(), 0);
    held.unlock().unwrap();
    assert!(Command::new("flock").args(["-w", "5"]).arg(&file).arg("true").status().unwrap().success());
}

#[test]
fn lock_wait_delays_no_other_program() {
    let options = Options { threads: 1, ..Default::default() };
    let mounted = Mounted::new(&Memory::default(), &options);
    let file = mounted.at("file");
    fs::write(&file, b"x").unwrap();
    let held = fs::File::open(&file).unwrap();
    held.lock().unwrap();
    let mut waiting = Command::new("flock").arg(&file).arg("true").spawn().unwrap();
    while mounted.mount.session().pending_count() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in 0..100 {
        fs::write(mounted.at(number.to_string()), b"meanwhile").unwrap();
    }
    assert!(waiting.try_wait().unwrap().is_none());
    drop(held);
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn local_locks_are_the_kernels_own() {
    for local_locks in [false, true] {
        let beneath = tempfile::tempdir().unwrap();
        fs::write(beneath.path().join("file"), b"x").unwrap();
        let export = LocalDir::open(beneath.path(), Default::default()).unwrap();
        let options = Options { local_locks, ..Default::default() };
        let mounted = Mounted::new(&export, &options);
        let open = |dir: &Path| fs::OpenOptions::new().write(true).open(dir.join("file")).unwrap();
        let (held, same_mount, host) = (open(mounted.path()), open(mounted.path()), open(beneath.path()));
        held.lock().unwrap();
        assert!(same_mount.try_lock().is_err());
        assert_eq!(host.try_lock().is_ok(), local_locks);
        let whole = LockRange { start: 0, len: 0 };
        try_lock(held.as_fd(), LockKind::Exclusive, whole).unwrap();
        assert!(try_lock(same_mount.as_fd(), LockKind::Exclusive, whole).is_err());
        assert_eq!(try_lock(host.as_fd(), LockKind::Exclusive, whole).is_ok(), local_locks);
        drop(held);
        same_mount.lock().unwrap();
        drop((same_mount, host));
    }
}

/// `cap_net_raw=ep`, as security.capability stores it (capabilities(7): version 2, effective, one permitted
/// bit).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn without_xattrs_one_request_and_writes_drop_capabilities() {
    let beneath = tempfile::tempdir().unwrap();
    let below = beneath.path().join("file");
    fs::write(&below, b"x").unwrap();
    let (none, mut bytes) = (rustix::fs::XattrFlags::empty(), [0; 64]);
    rustix::fs::setxattr(&below, "user.comment", b"seen", none).unwrap();
    rustix::fs::setxattr(&below, "security.capability", &CAPABILITY, none).unwrap();
    let export = LocalDir::open(beneath.path(), Default::default()).unwrap();
    let mounted = Mounted::new(&export, &Options { xattrs: false, ..Default::default() });
    let path = mounted.at("file");
    for _ in 0..3 {
        let refused = [
            rustix::fs::getxattr(&path, "user.comment", &mut bytes).unwrap_err(),
            rustix::fs::setxattr(&path, "user.other", b"1", none).unwrap_err(),
            rustix::fs::removexattr(&path, "user.comment").unwrap_err(),
        ];
        assert_eq!(refused, [rustix::io::Errno::OPNOTSUPP; 3]);
        let list = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut bytes);
        assert!(matches!(list, Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)), "{list:?}");
        let listed = rustix::fs::listxattr(&path, &mut bytes);
        assert!(matches!(listed, Ok(0) | Err(rustix::io::Errno::OPNOTSUPP)), "{listed:?}");
    }
    for opcode in [Opcode::Getxattr, Opcode::Setxattr, Opcode::Removexattr, Opcode::Listxattr] {
        assert_eq!(mounted.mount.session().counters().requests(opcode), 1, "{opcode:?}");
    }
    assert!(!mounted.mount.session().negotiated().contains(Capabilities::POSIX_ACL));
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(b"y").unwrap();
    let capability = rustix::fs::getxattr(&below, "security.capability", &mut bytes);
    assert_eq!(capability, Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::getxattr(&below, "user.comment", &mut bytes), Ok(4));
}

/// Lists a directory of many pages completely before it stats the entries, as `find` and `rm -r` do.
#[test]
fn walk_of_listed_directory_looks_up_no_entry() {
    let beneath = tempfile::tempdir().unwrap();
    (0..1000).for_each(|number| fs::write(beneath.path().join(number.to_string()), b"x").unwrap());
    let export = LocalDir::open(beneath.path(), Default::default()).unwrap();
    let options = Options { coherence: Coherence::Always, ..Default::default() };
    let mounted = Mounted::new(&export, &options);
    let names: Vec<_> = fs::read_dir(mounted.at(".")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 1000);
    names.iter().for_each(|name| assert!(fs::symlink_metadata(name).unwrap().is_file()));
    assert_eq!(mounted.mount.session().counters().requests(Opcode::Lookup), 0);
}

/// Uses a server slower than the interval between changes: attributes of the second look-up are always
/// outdated by the open.
#[test]
fn continuously_written_file_opens_on_slow_server() {
    let beneath = tempfile::tempdir().unwrap();
    fs::write(beneath.path().join("file"), b"x").unwrap();
    let export: Arc<dyn Export> = Arc::new(LocalDir::open(beneath.path(), Default::default()).unwrap());
    let export = delay::over(export, Duration::from_millis(25)).unwrap();
    let mounted = Mounted::new(&export, &Options::default());
    let done = Arc::new(AtomicBool::new(false));
    let (written, is_done) = (beneath.path().join("file"), done.clone());
    let writer = std::thread::spawn(move || {
        let mut file = fs::OpenOptions::new().append(true).open(written).unwrap();
        while !is_done.load(Ordering::Relaxed) {
            file.write_all(b"more").unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let opened = (0..20).map(|_| fs::File::open(mounted.at("file"))).collect::<Vec<_>>();
    done.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let failed = opened.iter().filter_map(|open| open.as_ref().err()).collect::<Vec<_>>();
    assert!(failed.is_empty(), "{} of 20: {:?}", failed.len(), failed[0]);
    drop(opened);
}

#[test]
fn getflags_of_changed_file_is_unsupported_not_stale() {
    let beneath = tempfile::tempdir().unwrap();
    fs::write(beneath.path().join("file"), b"x").unwrap();
    let export = LocalDir::open(beneath.path(), Default::default()).unwrap();
    let mounted = Mounted::new(&export, &Options::default());
    let open = fs::File::open(mounted.at("file")).unwrap();
    fs::write(beneath.path().join("file"), b"more").unwrap();
    let flags = rustix::fs::ioctl_getflags(&open);
    assert_eq!(flags.unwrap_err(), rustix::io::Errno::NOTTY);
    drop(open);
}

/// Mount point of the child process in the test below.
const DEAD: &str = "TOMBOLO_TEST_DEAD_MOUNT";

#[test]
fn a_dead_mount_is_taken_away_and_mounted_again() {
    if let Some(target) = std::env::var_os(DEAD) {
        // In the child: a server about to be killed. It must not use its own mount, because a thread that
        // waits for its own process cannot be killed.
        let options = Options { coherence: Coherence::Always, ..Default::default() };
        let mount = Mount::start(&Memory::default(), SessionId(1), Path::new(&target), &options).unwrap();
        return mount.wait();
    }
    let dir = tempfile::tempdir().unwrap();
    let unmounted = fs::metadata(dir.path()).unwrap().dev();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "mount::a_dead_mount_is_taken_away_and_mounted_again"])
        .env(DEAD, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while fs::metadata(dir.path()).unwrap().dev() == unmounted {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(fs::metadata(dir.path()).is_ok(), "the kernel remembers the root of the dead");
    assert_eq!(fs::read_dir(dir.path()).unwrap_err().raw_os_error(), Some(107), "ENOTCONN");
    let mount = Mount::start(&Memory::default(), SessionId(2), dir.path(), &Options::default()).unwrap();
    fs::write(dir.path().join("again"), b"").unwrap();
    assert!(mount.unmount().unwrap());
    mount.wait();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is mounted here any more");
}

#[test]
fn a_mapped_file_is_seen_as_it_was_written() {
    for coherence in [Coherence::Strict, Coherence::Auto] {
        let mounted = memory(coherence);
        let program = mounted.path().join("true");
        fs::copy("/bin/true", &program).unwrap();
        assert!(
            Command::new(&program).status().unwrap().success(),
            "a program runs from the mount: {coherence:?}"
        );
    }
}

#[test]
fn a_file_is_refused_as_a_mount_point() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for target in [file, dir.path().join("missing")] {
        let error = Mount::start(&Memory::default(), SessionId(1), &target, &Options::default()).unwrap_err();
        assert!(error.to_string().contains("mount point"), "{error}");
    }
}

#[test]
fn coherence_policies_see_changes_in_time() {
    let below = tempfile::tempdir().unwrap();
    fs::write(below.path().join("file"), b"old").unwrap();
    let export = LocalDir::open(below.path(), Default::default()).unwrap();
    for (coherence, patience) in
        [(Coherence::Strict, Duration::ZERO), (Coherence::Auto, Duration::from_millis(1200))]
    {
        let options = Options { coherence, ..Default::default() };
        let mounted = Mounted::new(&export, &options);
        for round in 0..5 {
            let text = format!("{coherence:?} {}", "x".repeat(round));
            assert_ne!(fs::read_to_string(mounted.at("file")).unwrap(), text);
            fs::write(below.path().join("file"), &text).unwrap();
            fs::write(below.path().join(&text), b"").unwrap();
            // Close-to-open: an open sees earlier writes, whatever the attributes' lifetime.
            assert_eq!(fs::read_to_string(mounted.at("file")).unwrap(), text);
            assert!(mounted.at(&text).exists(), "absence is not remembered");
            std::thread::sleep(patience);
            assert_eq!(fs::metadata(mounted.at("file")).unwrap().len(), text.len() as u64);
        }
    }
}

/// Relies on RELEASE, which alone reports the last close; after ENOSYS for an OPEN a kernel sends none, also
/// for created files.
#[test]
fn flock_ends_with_last_close_under_every_policy() {
    let below = tempfile::tempdir().unwrap();
    fs::write(below.path().join("opened"), b"x").unwrap();
    let export = LocalDir::open(below.path(), Default::default()).unwrap();
    for coherence in [Coherence::Strict, Coherence::Auto, Coherence::Always] {
        let mounted = Mounted::new(&export, &Options { coherence, ..Default::default() });
        for name in ["opened", "created"] {
            let how = fs::File::options().write(true).create(true).truncate(false).open(mounted.at(name));
            let open = how.unwrap();
            open.lock().unwrap();
            let copy = open.try_clone().unwrap();
            drop(open);
            let host = fs::File::open(below.path().join(name)).unwrap();
            assert!(host.try_lock().is_err(), "{coherence:?} {name}: a copy is still open");
            drop(copy);
            let end = Instant::now() + Duration::from_secs(10);
            while host.try_lock().is_err() {
                assert!(Instant::now() < end, "{coherence:?} {name}: the lock outlives its file");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        fs::remove_file(mounted.at("created")).unwrap();
    }
}

/// Returns the names in a directory and the number of listing requests sent for them.
fn listed(mounted: &Mounted, dir: &str) -> (Vec<String>, u64) {
    let requests = || {
        let counters = mounted.mount.session().counters();
        counters.requests(Opcode::Readdir) + counters.requests(Opcode::Readdirplus)
    };
    let before = requests();
    let names = fs::read_dir(mounted.at(dir)).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    (names, requests() - before)
}

#[test]
fn listings_show_host_changes_except_under_always() {
    let below = tempfile::tempdir().unwrap();
    let export = LocalDir::open(below.path(), Default::default()).unwrap();
    for (coherence, name) in
        [(Coherence::Strict, "strict"), (Coherence::Auto, "auto"), (Coherence::Always, "always")]
    {
        let mounted = Mounted::new(&export, &Options { coherence, ..Default::default() });
        listed(&mounted, "");
        // A requested listing makes the access time unknown, so the next open requests attributes, the last
        // one does not.
        let (before, _) = listed(&mounted, "");
        fs::write(below.path().join(name), b"").unwrap();
        let (after, requests) = listed(&mounted, "");
        let kept = coherence == Coherence::Always;
        assert_eq!((after == before, requests == 0), (kept, kept), "{coherence:?}: {after:?}");
    }
}

#[test]
fn cached_listing_shows_changes_of_its_mount() {
    let mounted = memory(Coherence::Always);
    for dir in ["dir", "other"] {
        fs::create_dir(mounted.at(dir)).unwrap();
    }
    let at = |name: &str| mounted.at("dir").join(name);
    let same = |names: &[&str]| {
        let (found, _) = listed(&mounted, "dir");
        assert_eq!(found, names);
        assert_eq!(listed(&mounted, "dir"), (found, 0), "the second listing is the kernel's");
    };
    same(&[]);
    fs::write(at("file"), b"").unwrap();
    same(&["file"]);
    fs::create_dir(at("made")).unwrap();
    symlink("file", at("symlink")).unwrap();
    same(&["file", "made", "symlink"]);
    fs::hard_link(at("file"), at("link")).unwrap();
    same(&["file", "link", "made", "symlink"]);
    fs::rename(at("file"), at("moved")).unwrap();
    same(&["link", "made", "moved", "symlink"]);
    fs::rename(at("moved"), mounted.at("other/moved")).unwrap();
    assert_eq!(listed(&mounted, "other").0, ["moved"]);
    same(&["link", "made", "symlink"]);
    fs::rename(mounted.at("other/moved"), at("back")).unwrap();
    assert!(listed(&mounted, "other").0.is_empty());
    same(&["back", "link", "made", "symlink"]);
    fs::remove_file(at("link")).unwrap();
    fs::remove_dir(at("made")).unwrap();
    same(&["back", "symlink"]);
}

#[test]
fn cached_listing_survives_removals() {
    let mounted = memory(Coherence::Always);
    fs::create_dir(mounted.at("dir")).unwrap();
    for number in 0..3000 {
        fs::write(mounted.at(format!("dir/{number:04}")), b"").unwrap();
    }
    assert_eq!(listed(&mounted, "dir").0.len(), 3000);
    let mut removed = 0;
    for entry in fs::read_dir(mounted.at("dir")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
        // Another listing from the start invalidates the cached one during the first.
        if removed % 700 == 0 {
            assert_eq!(listed(&mounted, "dir").0.len(), 3000 - removed);
        }
    }
    assert_eq!(removed, 3000);
    fs::remove_dir(mounted.at("dir")).unwrap();
}

#[test]
fn closing_any_descriptor_drops_posix_locks() {
    let mounted = memory(Coherence::Auto);
    let file = mounted.path().join("file");
    fs::write(&file, b"x").unwrap();
    // Locks the file, closes another descriptor of it, and prints whether a child finds it locked before and
    // after.
    let script = r#"
import fcntl, os, subprocess, sys
path = sys.argv[1]
probe = "import fcntl,sys\nf=open(sys.argv[1],'r+')\ntry:\n  fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError: sys.exit(1)"
locked = lambda: subprocess.call([sys.executable, "-c", probe, path])
first = os.open(path, os.O_RDWR)
fcntl.lockf(first, fcntl.LOCK_EX)
before = locked()
os.close(os.open(path, os.O_RDONLY))
print(before, locked())
"#;
    assert_eq!(run("python3", &["-c", script, file.to_str().unwrap()]).trim(), "1 0");
}

#[test]
fn a_lock_dies_with_the_process_that_took_it() {
    let mounted = memory(Coherence::Auto);
    let file = mounted.path().join("file");
    fs::write(&file, b"x").unwrap();
    for mode in ["r", "r+"] {
        let kind = if mode == "r" { "SH" } else { "EX" };
        let take = format!(
            "import fcntl,sys; f=open(sys.argv[1],'{mode}'); fcntl.lockf(f,fcntl.LOCK_{kind}|fcntl.LOCK_NB)"
        );
        run("python3", &["-c", &take, file.to_str().unwrap()]);
        let take = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)";
        run("python3", &["-c", take, file.to_str().unwrap()]);
    }
}

#[test]
fn many_programs_at_once_are_all_served() {
    let mounted = memory(Coherence::Auto);
    let large: Vec<u8> = (0..300_000u32).map(|number| (number % 253) as u8).collect();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (root, large) = (mounted.path(), &large);
            scope.spawn(move || {
                let dir = root.join(format!("of-{number}"));
                fs::create_dir(&dir).unwrap();
                for round in 0..40 {
                    let (first, second) = (dir.join(format!("a{round}")), dir.join("b"));
                    fs::write(&first, large).unwrap();
                    fs::rename(&first, &second).unwrap();
                    assert!(fs::read(&second).unwrap() == *large);
                    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
                    fs::remove_file(&second).unwrap();
                }
                fs::remove_dir(&dir).unwrap();
            });
        }
    });
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
}

/// Returns a memory file system whose answers are delayed.
fn slow(time: Duration) -> impl Export {
    tombolo_layer_basic::delay::over(Arc::new(Memory::default()), time).unwrap()
}

#[test]
fn slow_request_does_not_delay_the_next() {
    let options = Options { threads: 1, coherence: Coherence::Strict, ..Default::default() };
    let delay = Duration::from_millis(500);
    let mounted = Mounted::new(&slow(delay), &options);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| fs::metadata(mounted.path()).unwrap());
        }
    });
    assert!(started.elapsed() >= delay);
    assert!(started.elapsed() < delay * 10, "twenty took {:?}, one after the other", started.elapsed());
}

#[test]
fn delayed_answers_serve_a_tree_correctly() {
    let slow = slow(Duration::from_micros(200));
    let mounted = Mounted::new(&slow, &Options::default());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let tree = mounted.at("tree");
    run("cp", &["-a", source.to_str().unwrap(), tree.to_str().unwrap()]);
    run("diff", &["-r", source.to_str().unwrap(), tree.to_str().unwrap()]);
    run("rm", &["-r", tree.to_str().unwrap()]);
    assert!(mounted.mount.session().counters().later() > 100);
    assert_eq!(mounted.mount.session().pending_count(), 0);
}

/// Mount point of the child process in the test below.
const OWN: &str = "TOMBOLO_TEST_OWN_MOUNT";

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    if let Some(target) = std::env::var_os(OWN) {
        // In the child, without privileges.
        let target = Path::new(&target);
        let mount = Mount::start(&Memory::default(), SessionId(1), target, &user_options()).unwrap();
        fs::write(target.join("file"), b"mine").unwrap();
        assert_eq!(fs::read(target.join("file")).unwrap(), b"mine");
        mount.unmount().unwrap();
        return mount.wait();
    }
    let dir = tempfile::tempdir().unwrap();
    let (program, target) = (dir.path().join("test"), dir.path().join("mount"));
    // By another process: a descriptor of ours open for writing, inherited by another test's child, would
    // make the execution fail with ETXTBSY.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    fs::create_dir(&target).unwrap();
    for (path, mode) in [(dir.path(), 0o755), (&program, 0o755), (&target, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::chown(&target, Some(65_534), Some(65_534)).unwrap();
    // A mount namespace in which all users may open the device, as udev sets it up on most machines.
    let script = r#"
mount --make-rprivate / && mknod -m 666 "$1.device" c 10 229 && mount --bind "$1.device" /dev/fuse &&
exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$1" --exact mount::an_ordinary_user_mounts_through_the_helper
"#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&program)
        .env(OWN, &target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn user_options() -> Options {
    Options { allow_other: false, ..Default::default() }
}
