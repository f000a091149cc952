//! A sandboxed process under an attacker's control. A sandbox is irrevocable, so each is entered by a child
//! process: this program again, which runs only [`plays_a_compromised_server`].

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, id};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, setxattr, utimensat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
use rustix::process::{Pid, Resource, getrlimit, ioctl_tiocsctty, prlimit, test_kill_process};
use seccompiler::{TargetArch, apply_filter, compile_from_json};
use serde_json::json;
use tombolo_host_service::sandbox::broker::{self, Broker};
use tombolo_host_service::sandbox::{Namespace, Needs, Strictness, enter};
use tombolo_sys::creds::{self, Checks, Identity};
use tombolo_sys::handle::FileHandle;
use tombolo_sys::open::{OpenFlags, Reopen};

/// Test bed: directories that the server needs, and others that it attempts to access.
struct Bed {
    top: tempfile::TempDir,
    tcp: TcpListener,
    _unix: UnixListener,
}

const CHILD: &str = "TOMBOLO_SANDBOXED";

impl Bed {
    fn new() -> Self {
        let top = tempfile::tempdir().expect("a directory");
        for dir in ["reads", "changes", "sockets", "outside"] {
            fs::create_dir(top.path().join(dir)).expect("made");
            fs::write(top.path().join(dir).join("file"), dir).expect("written");
        }
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let _unix = UnixListener::bind(top.path().join("outside/socket")).expect("a socket");
        Self { top, tcp, _unix }
    }

    /// Returns what an attacker in a server finds possible.
    fn finds(&self, strictness: &str, needs: &str) -> Vec<String> {
        self.said("plays_a_compromised_server", "possible: ", strictness, needs)
    }

    /// Returns the lines that a child playing `part` prints after `word`.
    fn said(&self, part: &str, word: &str, strictness: &str, needs: &str) -> Vec<String> {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("sandbox::{part}"), "--ignored", "--nocapture"])
            .env(CHILD, self.top.path())
            .env("STRICTNESS", strictness)
            .env("NEEDS", needs)
            .env("PORT", self.tcp.local_addr().expect("an address").port().to_string())
            .env("PARENT", id().to_string())
            .output()
            .expect("a child");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{errors}");
        said.lines().filter_map(|line| line.split_once(word)).map(|(_, what)| what.to_owned()).collect()
    }
}

#[test]
fn compromised_server_can_do_only_what_it_needs() {
    let bed = Bed::new();
    let always = ["write an open file", "start a thread", "read a file that it reads"];
    let serving = [
        "change a file",
        "set the times of an open file",
        "change the mode of a file",
        "change the owner of a file",
        "change the times of a file",
        "change an attribute of a file",
        "change the mode by a handle of what lies outside",
        "remove a socket",
        "act as another user",
    ];
    for (needs, possible) in [
        ("", &["remove a socket"][..]),
        ("mounts", &["remove a socket"]),
        ("changes", &["change a file", "set the times of an open file", "remove a socket"]),
        ("connects", &["remove a socket", "connect", "connect to a socket"]),
        ("users", &serving),
        ("listens", &["remove a socket", "connect to a socket", "make a socket"]),
    ] {
        fs::write(bed.top.path().join("sockets/file"), "").expect("there again");
        assert_eq!(bed.finds("strict", needs), [&always, possible].concat(), "{needs}");
    }
    fs::write(bed.top.path().join("sockets/file"), "").expect("there again");
    assert!(bed.finds("off", "").len() >= 10, "without a sandbox nearly all of it");
}

#[test]
#[ignore = "ends in a sandbox; the others run it in a process of its own"]
fn plays_a_compromised_server() {
    let Some(top) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let word = |name: &str| std::env::var(name).expect(name);
    let at = |path: &str| top.join(path);
    let mut open = File::options().append(true).open(at("outside/file")).expect("open");
    let port: u16 = word("PORT").parse().expect("a port");
    let unconnected = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let parent = Pid::from_raw(word("PARENT").parse().expect("a process")).expect("a process");
    let needs = |what: &str| word("NEEDS") == what;
    let few = needs("users") || needs("connects");
    let mut reads = vec![at("reads"), at("not there")];
    reads.extend(needs("mounts").then(|| "/proc".into()));
    let needs = Needs {
        reads,
        changes: if needs("changes") || needs("users") { vec![at("changes")] } else { Vec::new() },
        removes: vec![at("sockets")],
        listens_in: if needs("listens") { vec![at("sockets")] } else { Vec::new() },
        reaches: if needs("connects") { vec![at("outside/socket")] } else { Vec::new() },
        connects: needs("connects"),
        serves_users: needs("users"),
        serves_mounts: needs("mounts"),
        ..Needs::default()
    };
    let strictness: Strictness = word("STRICTNESS").parse().expect("a word");
    let namespace = Namespace::enter(strictness, &needs).expect("mounts");
    let held = enter(strictness, &needs, namespace).expect("a sandbox");
    if strictness == Strictness::Strict {
        let capabilities = if few { "few" } else { "none" };
        let wanted = format!("landlock=on seccomp=on capabilities={capabilities} namespace=on");
        assert_eq!(held.to_string(), wanted);
    }
    let possible = |what: &str, tried: bool| {
        if tried {
            writeln!(std::io::stdout(), "possible: {what}").expect("said");
        }
    };
    possible("write an open file", open.write_all(b"more").is_ok());
    possible("start a thread", std::thread::spawn(|| true).join().is_ok_and(|ran| ran));
    possible("read a file that it reads", readable(&at("reads/file")));
    possible("change a file", fs::write(at("changes/file"), "new").is_ok());
    let changed = File::options().append(true).open(at("changes/file"));
    possible(
        "set the times of an open file",
        changed.is_ok_and(|file| file.set_modified(UNIX_EPOCH).is_ok()),
    );
    change_attributes(&at("changes/file"), "a file", possible);
    change_attributes(&at("outside/file"), "what lies outside", possible);
    let handle = File::open(at("changes")).and_then(|dir| mode_by_handle(&dir, &at("outside/file")));
    possible("change the mode by a handle of what lies outside", handle.is_ok());
    possible("remove a socket", fs::remove_file(at("sockets/file")).is_ok());
    possible("make a file beside its sockets", fs::write(at("sockets/new"), "").is_ok());
    possible("read what lies outside", readable(&at("outside/file")));
    possible("remove what lies outside", fs::remove_file(at("outside/file")).is_ok());
    possible("read its user's files", readable(Path::new("/etc/passwd")));
    possible("connect", TcpStream::connect(("127.0.0.1", port)).is_ok());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let sent = sendto(&unconnected, b"word", SendFlags::from_bits_retain(MSG_FASTOPEN), &address);
    possible("connect by sending", sent != Err(Errno::NOSYS));
    possible("send datagrams to sockets", UnixDatagram::pair().is_ok());
    possible("connect to a socket", UnixStream::connect(at("outside/socket")).is_ok());
    possible("make a socket", UnixListener::bind(at("sockets/socket")).is_ok());
    possible("make a socket elsewhere", UnixListener::bind(at("outside/another")).is_ok());
    possible("act as another user", acts_as_another());
    possible("listen", TcpListener::bind("127.0.0.1:0").is_ok());
    possible("execute a program", Command::new("/bin/true").status().is_ok());
    possible("look into another process", readable(Path::new(&format!("/proc/{}/maps", word("PARENT")))));
    possible("signal another process", test_kill_process(parent).is_ok());
    let limit = getrlimit(Resource::Core);
    possible("change another process's limits", prlimit(Some(parent), Resource::Core, limit).is_ok());
    // A regular file is no terminal, but the file itself reports that: the request passed the filter.
    possible("ask what it likes of a descriptor", ioctl_tiocsctty(&open) != Err(Errno::NOSYS));
    // Not a mount point, but that is reported behind the sandbox.
    possible("unmount", unmount(at("reads"), UnmountFlags::empty()) == Err(Errno::INVAL));
    possible("change what root may", rustix::process::chroot("/").is_ok());
}

/// sendto(2): connects first.
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Tries changes that landlock does not check.
fn change_attributes(path: &Path, what: &str, possible: impl Fn(&str, bool)) {
    let mode = fs::set_permissions(path, PermissionsExt::from_mode(0o640));
    possible(&format!("change the mode of {what}"), mode.is_ok());
    let owner = rustix::process::getuid().as_raw();
    possible(&format!("change the owner of {what}"), chown(path, Some(owner), None).is_ok());
    let time = Timespec { tv_sec: 0, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let outcome = utimensat(CWD, path, &times, AtFlags::empty());
    possible(&format!("change the times of {what}"), outcome.is_ok());
    let outcome = setxattr(path, "user.a", b"b", XattrFlags::empty());
    possible(&format!("change an attribute of {what}"), outcome.is_ok());
    assert!(matches!(outcome, Ok(()) | Err(Errno::ROFS | Errno::NOSYS)), "{what} {outcome:?}");
}

/// Changes a mode through a writable mount of another directory of the same file system, which no mount
/// prevents.
fn mode_by_handle(dir: &File, path: &Path) -> std::io::Result<()> {
    let (handle, _) = FileHandle::of(place(path).as_fd())?;
    let found = handle.open(dir.as_fd(), OpenFlags::PATH)?;
    let found = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
    fs::set_permissions(found, PermissionsExt::from_mode(0o600))
}

fn acts_as_another() -> bool {
    let identity = Identity { uid: 4321, gid: 4321, groups: &[] };
    creds::assume(identity, Checks::Kernel).is_ok()
}

fn readable(path: &Path) -> bool {
    File::open(path).and_then(|mut file| file.read(&mut [0; 1])).is_ok()
}

/// Mounts, removed in reverse order when dropped.
struct Mounted(Vec<PathBuf>);

impl Mounted {
    fn tmpfs(&mut self, at: PathBuf) {
        fs::create_dir(&at).expect("made");
        fs::write(at.join("beneath"), "").expect("written");
        mount("tombolo", &at, "tmpfs", MountFlags::empty(), c"").expect("mounted: the tests need root");
        self.0.push(at);
    }

    fn read_only(&mut self, of: &Path, at: &Path) {
        fs::create_dir(at).expect("made");
        mount_bind(of, at).expect("mounted");
        self.0.push(at.to_owned());
        mount_remount(at, MountFlags::BIND | MountFlags::RDONLY, c"").expect("mounted again");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            unmount(at, UnmountFlags::DETACH).expect("unmounted");
        }
    }
}

#[test]
fn server_sees_and_changes_only_needed_mounts() {
    let bed = Bed::new();
    let at = |path: &str| bed.top.path().join(path);
    let mut mounted = Mounted(Vec::new());
    mounted.tmpfs(at("changes/sub"));
    mounted.tmpfs(at("changes/sub/deeper"));
    mounted.read_only(&at("outside"), &at("changes/read-only"));
    mounted.tmpfs(at("sockets/hidden"));
    mounted.tmpfs(at("sockets/way"));
    fs::write(at("sockets/hidden/file"), "").expect("written");
    fs::create_dir(at("sockets/way/reads")).expect("made");
    fs::write(at("sockets/way/reads/file"), "").expect("written");
    let wanted = [
        "changes",
        "changes/sub",
        "changes/sub/deeper",
        "changes/read-only",
        "sockets",
        "sockets/hidden",
        "sockets/way",
        "sockets/way/reads",
    ];
    let mut seen = bed.said("plays_a_server_with_mounts", "sees: ", "strict", "");
    let mut wanted = wanted.map(|path| at(path).display().to_string());
    seen.sort();
    wanted.sort();
    assert_eq!(seen, wanted);
    let changed = bed.said("plays_a_server_with_mounts", "changes: ", "strict", "");
    let wanted = ["", "changes", "changes/sub", "changes/sub/deeper", "sockets"];
    assert_eq!(
        changed,
        wanted.map(|path| if path.is_empty() { ".".into() } else { at(path).display().to_string() })
    );
}

/// Plays a server that serves one directory, and reads and removes in others, some of them mounts.
#[test]
#[ignore = "changes the mounts of its process; other tests run it in a child process"]
fn plays_a_server_with_mounts() {
    let Some(top) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let at = |path: &str| top.join(path);
    std::env::set_current_dir(at("changes")).expect("a directory");
    let needs = Needs {
        reads: vec![at("sockets/way/reads")],
        changes: vec![at("changes")],
        removes: vec![at("sockets")],
        ..Needs::default()
    };
    Namespace::enter(Strictness::Strict, &needs).expect("mounts");
    // This thread's mounts; the test's other threads keep the host's.
    let table = fs::read("/proc/thread-self/mountinfo").expect("mountinfo");
    let points = table.split(|byte| *byte == b'\n').filter_map(tombolo_sys::mountinfo::point);
    let points = points.filter_map(|point| String::from_utf8(point).ok());
    for point in points.filter(|point| Path::new(point).starts_with(&top)) {
        writeln!(std::io::stdout(), "sees: {point}").expect("said");
    }
    let places = ["changes", "changes/sub", "changes/sub/deeper", "changes/read-only", "sockets", "outside"];
    let places = places.map(at).into_iter().chain([at("sockets/way"), at("sockets/way/reads"), "/".into()]);
    for place in [PathBuf::from(".")].into_iter().chain(places) {
        let mode = place.metadata().expect("it is there").permissions();
        if fs::set_permissions(&place, mode).is_ok() {
            writeln!(std::io::stdout(), "changes: {}", place.display()).expect("said");
        }
    }
    assert!(readable(&at("sockets/way/reads/file")));
    let hidden = fs::read_dir(at("sockets/hidden")).expect("a directory").count();
    assert_eq!(hidden, 0, "neither what it does not need, nor what that lies over");
}

#[test]
fn server_in_container_keeps_needed_system_mounts() {
    let bed = Bed::new();
    bed.said("plays_a_server_in_a_container", "", "strict", "");
}

/// Plays a server in a container, where its directories are mounts.
#[test]
#[ignore = "changes the mounts of its process; other tests run it in a child process"]
fn plays_a_server_in_a_container() {
    let Some(top) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let at = |path: &str| top.join(path);
    leave_the_host();
    let mut mounted = Mounted(Vec::new());
    mount_bind("/proc/sys", "/proc/sys").expect("mounted");
    for dir in ["a", "b"] {
        mounted.tmpfs(at(dir));
    }
    // A library as a separate mount, as where the system mounts each package.
    let loader = mapped("/ld-linux");
    mount_bind(&loader, &loader).expect("mounted");
    // Two links, the second on an otherwise unneeded mount.
    fs::create_dir(at("b/dir")).expect("made");
    fs::write(at("b/dir/file"), "linked").expect("written");
    symlink(at("a/link"), at("link")).expect("linked");
    symlink("../b/dir", at("a/link")).expect("linked");
    mount("tombolo", "/run", "tmpfs", MountFlags::empty(), c"").expect("mounted");
    mounted.tmpfs("/run/nscd".into());
    let _service = UnixListener::bind("/run/nscd/socket").expect("a socket");
    let needs = Needs { reads: vec![at("link")], removes: vec![at("sockets")], ..Needs::default() };
    let namespace = Namespace::enter(Strictness::Strict, &needs).expect("mounts");
    for path in ["/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"] {
        assert!(readable(Path::new(path)), "{path}");
    }
    assert_eq!(fs::read(at("link/file")).expect("read"), b"linked");
    assert!(readable(&loader));
    assert!(UnixStream::connect("/run/nscd/socket").is_err(), "another process looks up names");
    drop(namespace);
    std::mem::forget(mounted);
}

/// Leaves the host's mounts, for this thread.
fn leave_the_host() {
    tombolo_sys::mounts::unshare().expect("mounts: the tests need root");
    tombolo_sys::mounts::only_receive().expect("mounts");
}

/// Returns a file executed by this process whose path contains `part`.
fn mapped(part: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let line = maps.lines().find(|line| line.contains(part)).expect("it is there");
    line.get(line.find('/').expect("a path")..).expect("a path").into()
}

#[test]
fn server_of_root_reads_all_and_changes_needed() {
    let bed = Bed::new();
    let mut mounted = Mounted(Vec::new());
    mounted.tmpfs(bed.top.path().join("mount"));
    bed.said("plays_a_server_of_everything", "", "strict", "");
}

#[test]
#[ignore = "changes the mounts of its process; other tests run it in a child process"]
fn plays_a_server_of_everything() {
    let Some(top) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let at = |path: &str| top.join(path);
    fs::write(at("mount/file"), "").expect("written");
    let needs = Needs { reads: vec!["/".into()], removes: vec![at("sockets")], ..Needs::default() };
    Namespace::enter(Strictness::Strict, &needs).expect("mounts");
    assert!(at("mount/file").exists() && readable(&at("outside/file")));
    for path in ["mount/file", "outside/file"] {
        assert_eq!(fs::write(at(path), "").map_err(|error| error.kind()), Err(ErrorKind::ReadOnlyFilesystem));
    }
    fs::remove_file(at("sockets/file")).expect("removed");
}

#[test]
fn server_without_own_mounts_uses_the_hosts() {
    let bed = Bed::new();
    bed.said("plays_a_server_that_goes_back", "", "auto", "");
}

#[test]
#[ignore = "changes the mounts of its process; other tests run it in a child process"]
fn plays_a_server_that_goes_back() {
    let Some(top) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let at = |path: &str| top.join(path);
    leave_the_host();
    let mut mounted = Mounted(Vec::new());
    mounted.tmpfs(at("a"));
    std::env::set_current_dir(at("a")).expect("a directory");
    let sees = || {
        let namespace = fs::read_link("/proc/thread-self/ns/mnt").expect("a namespace");
        (namespace, std::env::current_dir().expect("a directory"), at("a/beneath").exists())
    };
    fs::write(at("a/beneath"), "").expect("written");
    let before = sees();
    let needs = Needs { reads: vec![at("reads")], ..Needs::default() };
    let own = Namespace::enter(Strictness::Strict, &needs).expect("mounts");
    assert_ne!(sees().0, before.0);
    own.leave().expect("the way back");
    assert_eq!(sees(), before);
    // As before Linux 5.12: an incomplete set-up is undone.
    let calls = json!({"thread": {
        "mismatch_action": "allow",
        "match_action": {"errno": 38},
        "filter": [{"syscall": "mount_setattr"}],
    }});
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("a processor");
    let calls = compile_from_json(calls.to_string().as_bytes(), arch).expect("a filter");
    apply_filter(&calls["thread"]).expect("applied");
    assert!(Namespace::enter(Strictness::Strict, &needs).is_err());
    assert_eq!(
        enter(Strictness::Off, &needs, Namespace::enter(Strictness::Auto, &needs).expect("none"))
            .expect("none")
            .to_string(),
        "landlock=off seccomp=off capabilities=kept namespace=off"
    );
    assert_eq!(sees(), before);
    std::mem::forget(mounted);
}

/// Starts the broker of the directory `changes`.
fn broker(bed: &Bed) -> Broker {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "sandbox::plays_a_broker", "--ignored"]).env(CHILD, bed.top.path());
    Broker::start(&mut command).expect("a broker")
}

#[test]
#[ignore = "ends in a sandbox; the others run it in a process of its own"]
fn plays_a_broker() {
    let Some(top) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    broker::serve(socket, &[top.join("changes")], Strictness::Strict, || Ok(()))
        .expect("served until the other end closes");
}

/// Opens a path as a server holds it: found, not opened.
fn place(path: &Path) -> OwnedFd {
    let flags = OpenFlags::PATH | OpenFlags::CLOEXEC | OpenFlags::NOFOLLOW;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).expect("it is there")
}

#[test]
fn broker_opens_only_exported_files_as_the_user() {
    let bed = Bed::new();
    let at = |path: &str| bed.top.path().join(path);
    let broker = broker(&bed);
    let opens = |path: &Path, flags| broker.reopen(place(path).as_fd(), flags).map(File::from);
    let mut file = opens(&at("changes/file"), OpenFlags::RDONLY).expect("opened");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "changes");
    opens(&at("changes/file"), OpenFlags::RDWR).expect("opened").write_all(b"new").expect("written");
    assert_eq!(opens(&at("outside/file"), OpenFlags::RDONLY).err(), Some(Errno::ACCESS));
    // On another file system, and not a regular file.
    assert_eq!(opens(Path::new("/proc/version"), OpenFlags::RDONLY).err(), Some(Errno::ACCESS));
    assert_eq!(opens(&at("changes"), OpenFlags::RDONLY).err(), Some(Errno::ACCESS));
    let _socket = UnixListener::bind(at("changes/socket")).expect("made");
    assert_eq!(opens(&at("changes/socket"), OpenFlags::RDONLY).err(), Some(Errno::ACCESS));
    // Requests that would allow execution or linking.
    assert_eq!(opens(&at("changes/file"), OpenFlags::PATH).err(), Some(Errno::ACCESS));
    let (inside, outside) = (place(&at("changes")), place(&at("outside")));
    let file = place(&at("changes/file"));
    assert_eq!(broker.link(file.as_fd(), outside.as_fd(), b"second"), Err(Errno::ACCESS));
    assert_eq!(broker.link(file.as_fd(), inside.as_fd(), b"../outside/second"), Err(Errno::INVAL));
    broker.link(file.as_fd(), inside.as_fd(), b"second").expect("linked");
    // As another user.
    fs::set_permissions(bed.top.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    fs::set_permissions(at("changes/file"), PermissionsExt::from_mode(0o600)).expect("chmod");
    let opens_as = |uid| {
        let place = place(&at("changes/file"));
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let _acting =
                    creds::assume(Identity { uid, gid: uid, groups: &[] }, Checks::Kernel).expect("root");
                broker.reopen(place.as_fd(), OpenFlags::RDONLY).map(drop)
            });
            opening.join().expect("no panic")
        })
    };
    assert_eq!(opens_as(4321), Err(Errno::ACCESS));
    chown(at("changes/file"), Some(4321), None).expect("chown");
    assert_eq!(opens_as(4321), Ok(()));
}

/// Script that holds the lease of a file (fcntl(2)) until the end of standard input, which blocks opens by
/// others. Reports when the lease is requested.
const LEASE_HOLDER: &str = "
import fcntl, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
signal.sigwait([signal.SIGIO])
print('asked', flush=True)
sys.stdin.read()
";

#[test]
fn slow_open_in_broker_blocks_no_other() {
    let bed = Bed::new();
    let at = |path: &str| bed.top.path().join(path);
    let broker = broker(&bed);
    fs::write(at("changes/slow"), "").expect("written");
    let mut holder = Command::new("python3")
        .args(["-c", LEASE_HOLDER])
        .arg(at("changes/slow"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut said = BufReader::new(holder.stdout.take().expect("its output")).lines();
    let mut says = |word: &str| assert_eq!(said.next().expect("a line").expect("read"), word);
    says("held");
    let is_open = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            broker.reopen(place(&at("changes/slow")).as_fd(), OpenFlags::RDONLY).expect("opened");
            is_open.store(true, Ordering::SeqCst);
        });
        says("asked");
        broker.reopen(place(&at("changes/file")).as_fd(), OpenFlags::RDONLY).expect("opened");
        // If it had waited, the kernel would have broken the lease: time for the other thread to report that
        // its file is open.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!is_open.load(Ordering::SeqCst), "this one has waited until the lease was taken away");
        drop(holder.stdin.take());
    });
    holder.wait().expect("ended");
}

#[test]
fn a_broker_that_does_not_start_is_noticed() {
    assert!(Broker::start(&mut Command::new("/bin/true")).is_err());
    assert!(Broker::start(&mut Command::new("/nowhere")).is_err());
}
