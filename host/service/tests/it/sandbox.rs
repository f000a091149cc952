//! A process in a sandbox that was taken over. A sandbox is for good, so each is entered by a child: this program once more, which runs
//! [`plays_a_server_that_was_taken_over`] alone.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::time::UNIX_EPOCH;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
use rustix::process::{Pid, Resource, getrlimit, ioctl_tiocsctty, prlimit, test_kill_process};
use tombolo_host_service::sandbox::broker::{self, Broker};
use tombolo_host_service::sandbox::{Needs, Strictness, enter};
use tombolo_sys::creds::{self, Checks, Identity};
use tombolo_sys::open::{OpenFlags, Reopen};

/// What it may do, and what it tries.
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

    /// What a server that was taken over finds possible.
    fn finds(&self, strictness: &str, needs: &str) -> Vec<String> {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "sandbox::plays_a_server_that_was_taken_over", "--ignored", "--nocapture"])
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
        said.lines()
            .filter_map(|line| line.split_once("possible: "))
            .map(|(_, what)| what.to_owned())
            .collect()
    }
}

#[test]
fn a_server_that_was_taken_over_can_do_what_it_needs_and_nothing_else() {
    let bed = Bed::new();
    let needed = ["write an open file", "start a thread", "read a file that it reads", "remove a socket"];
    assert_eq!(bed.finds("strict", ""), needed);
    let changing = [
        "write an open file",
        "start a thread",
        "read a file that it reads",
        "change a file",
        "set the times of an open file",
        "remove a socket",
    ];
    fs::write(bed.top.path().join("sockets/file"), "").expect("again");
    assert_eq!(bed.finds("strict", "changes"), changing);
    fs::write(bed.top.path().join("sockets/file"), "").expect("again");
    let connecting = [
        "write an open file",
        "start a thread",
        "read a file that it reads",
        "remove a socket",
        "connect",
        "connect to a socket",
    ];
    assert_eq!(bed.finds("strict", "connects"), connecting);
    fs::write(bed.top.path().join("sockets/file"), "").expect("again");
    let serving = [
        "write an open file",
        "start a thread",
        "read a file that it reads",
        "change a file",
        "set the times of an open file",
        "change the mode of what lies outside",
        "change the owner of what lies outside",
        "change the times of what lies outside",
        "remove a socket",
        "act as another user",
    ];
    assert_eq!(bed.finds("strict", "users"), serving);
    fs::write(bed.top.path().join("sockets/file"), "").expect("again");
    let listening = [
        "write an open file",
        "start a thread",
        "read a file that it reads",
        "remove a socket",
        "connect to a socket",
        "make a socket",
    ];
    assert_eq!(bed.finds("strict", "listens"), listening);
    fs::write(bed.top.path().join("sockets/file"), "").expect("again");
    assert_eq!(bed.finds("strict", "mounts"), needed);
    fs::write(bed.top.path().join("sockets/file"), "").expect("again");
    assert!(bed.finds("off", "").len() >= 10, "without a sandbox nearly all of it");
}

#[test]
#[ignore = "ends in a sandbox; the others run it in a process of its own"]
fn plays_a_server_that_was_taken_over() {
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
        lists: Vec::new(),
        changes: if needs("changes") || needs("users") { vec![at("changes")] } else { Vec::new() },
        removes: vec![at("sockets")],
        listens_in: if needs("listens") { vec![at("sockets")] } else { Vec::new() },
        listens: false,
        connects: needs("connects"),
        has_ring: false,
        serves_users: needs("users"),
        serves_mounts: needs("mounts"),
        anything: None,
    };
    let strictness: Strictness = word("STRICTNESS").parse().expect("a word");
    let held = enter(strictness, &needs).expect("a sandbox");
    if strictness == Strictness::Strict {
        let capabilities = if few { "few" } else { "none" };
        assert_eq!(held.to_string(), format!("landlock=on seccomp=on capabilities={capabilities}"));
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
    change_attributes(&at("outside/file"), possible);
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
    // A file is no terminal, but that is said by the file: the request came through.
    possible("ask what it likes of a descriptor", ioctl_tiocsctty(&open) != Err(Errno::NOSYS));
    // It is no mount point, but that is said behind the sandbox.
    possible("unmount", unmount(at("reads"), UnmountFlags::empty()) == Err(Errno::INVAL));
    possible("change what root may", rustix::process::chroot("/").is_ok());
}

/// sendto(2): connects first.
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Landlock does not see these.
fn change_attributes(path: &Path, possible: impl Fn(&str, bool)) {
    let mode = fs::set_permissions(path, PermissionsExt::from_mode(0o640));
    possible("change the mode of what lies outside", mode.is_ok());
    let owner = rustix::process::getuid().as_raw();
    possible("change the owner of what lies outside", chown(path, Some(owner), None).is_ok());
    let time = Timespec { tv_sec: 0, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let outcome = utimensat(CWD, path, &times, AtFlags::empty());
    possible("change the times of what lies outside", outcome.is_ok());
}

fn acts_as_another() -> bool {
    let identity = Identity { uid: 4321, gid: 4321, groups: &[] };
    creds::assume(identity, Checks::Kernel).is_ok()
}

fn readable(path: &Path) -> bool {
    File::open(path).and_then(|mut file| file.read(&mut [0; 1])).is_ok()
}

/// The broker of the directory `changes`.
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
    broker::serve(&socket, &[top.join("changes")], Strictness::Strict, || Ok(()))
        .expect("served until the other end closes");
}

/// As a server holds it: found, not opened.
fn place(path: &Path) -> OwnedFd {
    let flags = OpenFlags::PATH | OpenFlags::CLOEXEC | OpenFlags::NOFOLLOW;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).expect("it is there")
}

#[test]
fn a_broker_opens_files_of_its_exports_as_their_users_and_nothing_else() {
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
    // On another file system; and what is no file of data.
    assert_eq!(opens(Path::new("/proc/version"), OpenFlags::RDONLY).err(), Some(Errno::ACCESS));
    assert_eq!(opens(&at("changes"), OpenFlags::RDONLY).err(), Some(Errno::ACCESS));
    let _socket = UnixListener::bind(at("changes/socket")).expect("made");
    assert_eq!(opens(&at("changes/socket"), OpenFlags::RDONLY).err(), Some(Errno::ACCESS));
    // What would let it be executed or give it names.
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

#[test]
fn a_broker_that_does_not_start_is_noticed() {
    assert!(Broker::start(&mut Command::new("/bin/true")).is_err());
    assert!(Broker::start(&mut Command::new("/nowhere")).is_err());
}
