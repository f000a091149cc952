//! Users, groups and hosts known only to services, not to the files in `/etc`: with the dynamically linked
//! program, and with the static one, whose C library cannot load nsswitch.conf modules.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use tombolo_nfs_tests::client::{Caller, Nfs, Transport, mode};
use tombolo_wire_nfs3::Status;

use crate::common::{Ran, Scratch, Server, until, words};

/// A user and its primary group, known only to a service.
const USER: u32 = 4321;
const CREW: u32 = 777;

/// A machine that uses libnss-systemd for users, and a possibly missing module for hosts.
struct Machine {
    scratch: Scratch,
    program: PathBuf,
    /// Service that never replies.
    _service: Option<UnixListener>,
}

/// Returns the dynamically and statically linked program. `TOMBOLO_STATIC` names the latter.
fn programs() -> Vec<PathBuf> {
    let without = std::env::var_os("TOMBOLO_STATIC").filter(|program| !program.is_empty());
    if without.is_none() {
        tombolo_skip::skipped("TOMBOLO_STATIC does not name the program without libraries (make programs)");
    }
    std::iter::once(env!("CARGO_BIN_EXE_tombolo").into()).chain(without.map(PathBuf::from)).collect()
}

impl Machine {
    fn new(program: &Path) -> Self {
        let scratch = Scratch::new();
        let write = |name: &str, text: &str| fs::write(scratch.path(name), text).expect("write");
        ["etc", "records", "services"]
            .iter()
            .for_each(|dir| fs::create_dir(scratch.path(dir)).expect("mkdir"));
        write(
            "etc/nsswitch.conf",
            "passwd: files systemd\ngroup: files systemd\nhosts: files mymachines resolve\n",
        );
        write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\n");
        write("etc/group", "root:x:0:\nann:x:1000:\nstaff:x:888:ann\n");
        write("etc/hosts", "127.0.0.1 localhost\n127.0.0.1 nas.test\n");
        let user = format!(r#"{{"userName":"eve","uid":{USER},"gid":{CREW},"disposition":"regular"}}"#);
        let crew = format!(r#"{{"groupName":"crew","gid":{CREW},"disposition":"regular"}}"#);
        for (record, id, name, kind) in [(user, USER, "eve", "user"), (crew, CREW, "crew", "group")] {
            write(&format!("records/{id}.{kind}"), &record);
            let link = scratch.path(&format!("records/{name}.{kind}"));
            symlink(format!("{id}.{kind}"), link).expect("link");
        }
        fs::set_permissions(scratch.path("tree"), PermissionsExt::from_mode(0o755)).expect("chmod");
        for (dir, group) in [("tree/crew", CREW), ("tree/staff", 888)] {
            fs::create_dir(scratch.path(dir)).expect("mkdir");
            fs::set_permissions(scratch.path(dir), PermissionsExt::from_mode(0o770)).expect("chmod");
            chown(scratch.path(dir), Some(0), Some(group)).expect("this test needs root");
        }
        Self { scratch, program: program.to_owned(), _service: None }
    }

    /// Adds a directory service that accepts requests and never replies.
    fn with_service_that_hangs(mut self) -> Self {
        let path = self.scratch.path("services/io.systemd.Hangs");
        self._service = Some(UnixListener::bind(path).expect("bind"));
        self
    }

    /// Returns a command that runs the program on that machine.
    fn tombolo(&self, line: impl AsRef<str>) -> Command {
        let bind = |name: &str, place: &str| format!("mount --bind {} {place}", self.scratch.text(name));
        let script = [
            "mount -t tmpfs run /run && mkdir -p /run/userdb /run/systemd/userdb".to_owned(),
            bind("records", "/run/userdb"),
            bind("services", "/run/systemd/userdb"),
            bind("etc", "/etc"),
        ];
        self.scratch.in_own_mounts(&script.join(" && "), &self.program, &words(&line))
    }

    fn run(&self, line: impl AsRef<str>) -> Ran {
        Ran::new(self.tombolo(line))
    }

    fn serve(&self, line: impl AsRef<str>) -> Server {
        self.scratch.started(self.tombolo(line), "ready control")
    }

    fn serve_nfs(&self, more: &str) -> Server {
        let words = "serve tree --nfs 127.0.0.1:0 --state kept --sandbox strict";
        self.serve(format!("{words} {more}"))
    }
}

/// Creates a directory as a user that sends no groups; returns the error, if any.
fn mkdir(server: &Server, dir: &str, name: &str, uid: u32) -> Option<Status> {
    let address = server.nfs_address().parse().expect("an address");
    let nfs = Nfs::connect(Transport::Tcp, address).expect("connect");
    let root = nfs.root(&format!("/tree/{dir}"));
    let made = nfs.as_caller(Caller::with_groups(uid, uid, &[])).mkdir(&root, name.as_bytes(), mode(0o755));
    made.status().copied()
}

#[test]
fn groups_that_a_service_knows_count() {
    for program in programs() {
        let machine = Machine::new(&program);
        let server = machine.serve_nfs("--manage-gids");
        server.says(&["landlock=on seccomp=on capabilities=few namespace=on"]);
        assert_eq!(mkdir(&server, "crew", "by-eve", USER), None, "{}", program.display());
        assert_eq!(mkdir(&server, "staff", "by-ann", 1000), None);
        assert_eq!(mkdir(&server, "crew", "by-ann", 1000), Some(Status::Acces));
        assert_eq!(mkdir(&server, "crew", "by-nobody", 5432), Some(Status::Acces));
        server.stop();
    }
}

#[test]
fn a_socket_is_given_to_a_service_s_group() {
    for program in programs() {
        let machine = Machine::new(&program);
        let words = "serve tree --virtiofs vm.sock --socket-group";
        let failed = machine.run(format!("{words} typo"));
        failed.failed(1, &["cannot find group typo", "no such group"]);
        let server = machine.serve(format!("{words} crew --sandbox strict"));
        assert_eq!(fs::metadata(machine.scratch.path("vm.sock")).expect("stat").gid(), CREW);
        server.stop();
    }
}

#[test]
fn a_directory_service_that_hangs_stops_no_server() {
    for program in programs() {
        let machine = Machine::new(&program).with_service_that_hangs();
        let server = machine.serve_nfs("--manage-gids");
        thread::scope(|scope| {
            let strangers: Vec<_> = (0..4)
                .map(|at| {
                    scope.spawn({
                        let server = &server;
                        move || mkdir(server, "crew", &format!("by-{at}"), 6000 + at)
                    })
                })
                .collect();
            // More concurrent requests than helper threads.
            assert_eq!(mkdir(&server, "staff", "by-ann", 1000), None, "in a group of this machine");
            assert_eq!(mkdir(&server, "", "by-root", 0), Some(Status::Acces), "squashed");
            for stranger in strangers {
                assert_eq!(stranger.join().expect("answered"), Some(Status::Acces));
            }
        });
        let helper = look_ups_of(&server);
        server.stop();
        until("what looks up names has ended", || !Path::new(&format!("/proc/{helper}")).exists());
        // Before the sandbox is entered the program itself looks up names.
        let words = "serve tree --virtiofs vm.sock --socket-group typo";
        machine.run(words).failed(1, &["cannot find group typo", "no answer within 10s", "its number"]);
    }
}

/// Returns the look-up helpers of a server, its children of that name, and their statuses.
fn helpers_of(server: &Server) -> Vec<(u32, String)> {
    let children = fs::read_dir("/proc").expect("proc").flatten().filter_map(|entry| {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
        let is_it = read("cmdline")?.split('\0').any(|word| word == "names")
            && read("stat")?.rsplit(')').next()?.split(' ').nth(2)? == server.pid().to_string();
        let pid = entry.file_name().to_str()?.parse().ok()?;
        is_it.then(|| (pid, read("status").unwrap_or_default()))
    });
    children.collect()
}

/// Returns the only look-up helper of a server. It has no capabilities.
fn look_ups_of(server: &Server) -> u32 {
    let found = helpers_of(server);
    let [(pid, status)] = &found[..] else { panic!("one, not {found:?}") };
    for set in ["CapEff", "CapBnd"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
    *pid
}

#[test]
fn servers_are_found_by_name_from_a_sandbox() {
    for program in programs() {
        let machine = Machine::new(&program);
        let origin = machine.serve_nfs("--squash none");
        let port = origin.nfs_address().rsplit(':').next().expect("a port");
        let url = format!("nfs://nas.test:{port}/tree");
        let listed = machine.run(format!("ls {url}")).succeeded();
        assert_eq!(listed.out, "crew\nfile\nstaff\n");
        let server = machine.serve(format!("serve {url} --nfs 127.0.0.1:0 --state far --sandbox strict"));
        look_ups_of(&server);
        let again = format!("nfs://{}/tree", server.nfs_address());
        let listed = machine.run(format!("cat {again}/file")).succeeded();
        assert_eq!(listed.out, "content\n");
        server.stop();
        let unknown = machine.run("ls nfs://no-such-host.invalid/tree");
        unknown.failed(1, &["no-such-host.invalid", "not known"]);
        origin.stop();
    }
}

#[test]
fn a_server_that_looks_up_nothing_starts_no_helper() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --nfs 127.0.0.1:0 --state kept --sandbox strict");
    assert_eq!(helpers_of(&server), []);
    server.stop();
}

/// C library functions that load nsswitch.conf modules.
const LOADERS: [&[u8]; 12] = [
    b"getpwnam_r",
    b"getpwuid_r",
    b"getpwnam",
    b"getpwuid",
    b"getgrnam_r",
    b"getgrnam",
    b"getgrgid_r",
    b"getgrouplist",
    b"initgroups",
    b"getaddrinfo",
    b"getnameinfo",
    b"gethostbyname_r",
];

/// Searches the string table of a program for its imports. The static program is built from
/// the same sources.
#[test]
fn the_program_uses_no_function_that_loads_modules() {
    let mut program = Vec::new();
    let file = fs::File::open(env!("CARGO_BIN_EXE_tombolo")).expect("open");
    // The table is near the start.
    file.take(4 << 20).read_to_end(&mut program).expect("read");
    let words: HashSet<&[u8]> = program.split(|&byte| byte == 0).collect();
    assert!(words.contains(&b"getrandom"[..]), "imports are found so");
    for name in LOADERS {
        assert!(!words.contains(name), "{}", String::from_utf8_lossy(name));
    }
}
