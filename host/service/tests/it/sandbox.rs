//! A process in a sandbox that was taken over. A sandbox is for good, so each is entered by a child: this program once more, which runs
//! [`plays_a_server_that_was_taken_over`] alone.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, id};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, getrlimit, ioctl_tiocsctty, prlimit, test_kill_process};
use tombolo_host_service::sandbox::{Needs, Strictness, enter};

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
    let parent = Pid::from_raw(word("PARENT").parse().expect("a process")).expect("a process");
    let needs = Needs {
        reads: vec![at("reads"), at("not there")],
        changes: if word("NEEDS") == "changes" { vec![at("changes")] } else { Vec::new() },
        removes: vec![at("sockets")],
        connects: word("NEEDS") == "connects",
        executes: false,
    };
    let strictness: Strictness = word("STRICTNESS").parse().expect("a word");
    let held = enter(strictness, &needs).expect("a sandbox");
    if strictness == Strictness::Strict {
        assert_eq!(held.to_string(), "landlock=on seccomp=on capabilities=none");
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
    possible("remove a socket", fs::remove_file(at("sockets/file")).is_ok());
    possible("make a file beside its sockets", fs::write(at("sockets/new"), "").is_ok());
    possible("read what lies outside", readable(&at("outside/file")));
    possible("remove what lies outside", fs::remove_file(at("outside/file")).is_ok());
    possible("read its user's files", readable(Path::new("/etc/passwd")));
    possible("connect", TcpStream::connect(("127.0.0.1", port)).is_ok());
    possible("connect to a socket", UnixStream::connect(at("outside/socket")).is_ok());
    possible("listen", TcpListener::bind("127.0.0.1:0").is_ok());
    possible("execute a program", Command::new("/bin/true").status().is_ok());
    possible("look into another process", readable(Path::new(&format!("/proc/{}/maps", word("PARENT")))));
    possible("signal another process", test_kill_process(parent).is_ok());
    let limit = getrlimit(Resource::Core);
    possible("change another process's limits", prlimit(Some(parent), Resource::Core, limit).is_ok());
    // A file is no terminal, but that is said by the file: the request came through.
    possible("ask what it likes of a descriptor", ioctl_tiocsctty(&open) != Err(Errno::PERM));
    possible("change what root may", rustix::process::chroot("/").is_ok());
}

fn readable(path: &Path) -> bool {
    File::open(path).and_then(|mut file| file.read(&mut [0; 1])).is_ok()
}
