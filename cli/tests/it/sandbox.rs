//! The sandbox of `tombolo serve`, from the view of an operator. `host/service` tests what a compromised
//! server can still do.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use tombolo_nfs_tests::client::{Caller, Expect, Nfs, Transport, mode};
use tombolo_wire_nfs3::args::MknodKind;
use tombolo_wire_nfs3::{FileHandleBuf, SpecData3, Status};

use crate::common::{MountPlace, Mounted, Scratch, Server, words};

const HELD: &str = "ready sandbox landlock=on seccomp=on capabilities=few namespace=on\n";

fn client(address: &str) -> Nfs {
    Nfs::connect(Transport::Tcp, address.parse().expect("an address")).expect("a connection")
}

#[test]
fn all_server_threads_are_sandboxed_with_minimal_capabilities() {
    let scratch = Scratch::new();
    let words =
        "serve tree --nfs 0 --shm link.sock --virtiofs vm.sock --state kept --metrics 0 --sandbox strict";
    let server = scratch.serve_until(words, "ready metrics");
    assert!(server.said.contains(HELD), "{}", server.said);
    let address = server.nfs_address();
    assert!(client(address).lookup(&client(address).root("/tree"), b"none").status().is_some());
    for (field, wanted) in [("Seccomp:", "2"), ("NoNewPrivs:", "1")] {
        let found = server.of_threads(field);
        assert!(found.len() > 4 && found.iter().all(|value| value == wanted), "{field} {found:?}");
    }
    assert_leads_nowhere_else(&server);
    // CAP_KILL, CAP_NET_ADMIN, CAP_SYS_MODULE, CAP_SYS_CHROOT, CAP_SYS_PTRACE.
    let unneeded = 1 << 5 | 1 << 12 | 1 << 16 | 1 << 18 | 1 << 19;
    for field in ["CapEff:", "CapPrm:", "CapBnd:"] {
        for found in server.of_threads(field) {
            let found = u64::from_str_radix(&found, 16).expect("a set");
            assert_eq!(found & unneeded, 0, "{field} {found:x}");
        }
    }
    server.stop();
    assert!(!scratch.path("vm.sock").exists() && !scratch.path("link.sock").exists());
    let server = scratch.serve("serve tree --virtiofs vm.sock --sandbox off");
    assert!(server.said.contains("ready sandbox landlock=off seccomp=off capabilities=kept namespace=off\n"));
    assert!(server.of_threads("Seccomp:").iter().all(|value| value == "0"));
    server.stop();
    let ssh = "serve nfs+ssh://localhost/x --nfs 0 --sandbox strict";
    scratch.run(ssh).failed(1, &["it starts another program", "--sandbox auto"]);
}

/// Asserts that no open directory is on a mount of the host, through which all others could be reached and
/// changed.
fn assert_leads_nowhere_else(server: &Server) {
    let of_server = |path: &str| PathBuf::from(format!("/proc/{}/{path}", server.pid()));
    let mounts = fs::read_to_string(of_server("mountinfo")).expect("mountinfo");
    let ids: Vec<_> = mounts.lines().filter_map(|line| line.split(' ').next()).collect();
    let open = fs::read_dir(of_server("fd")).expect("descriptors").flatten();
    for descriptor in
        open.filter(|descriptor| fs::metadata(descriptor.path()).is_ok_and(|found| found.is_dir()))
    {
        let name = descriptor.file_name();
        let info = fs::read_to_string(of_server("fdinfo").join(&name)).expect("fdinfo");
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).expect("its mount").trim();
        assert!(ids.contains(&id), "{:?} -> {:?}", name, fs::read_link(descriptor.path()));
    }
}

#[test]
fn sandboxed_server_serves_clients_fully() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --nfs 0 --squash none --state kept --sandbox strict");
    let root_user = client(server.nfs_address());
    let root = root_user.root("/tree");
    fs::set_permissions(scratch.path("tree"), PermissionsExt::from_mode(0o777)).expect("chmod");
    let user = client(server.nfs_address()).as_caller(Caller::with_groups(4321, 4321, &[777]));
    let dir = user.mkdir(&root, b"dir", mode(0o700)).done().handle();
    assert_eq!(fs::metadata(scratch.path("tree/dir")).expect("stat").uid(), 4321);
    let other = client(server.nfs_address()).as_caller(Caller::with_groups(5432, 5432, &[]));
    assert_eq!(other.lookup(&dir, b"x").status(), Some(&Status::Acces));
    let node = MknodKind::CharDevice(mode(0o600), SpecData3 { major: 1, minor: 3 });
    root_user.mknod(&root, b"null", node).done();
    assert!(fs::metadata(scratch.path("tree/null")).expect("stat").file_type().is_char_device());
    // From one directory to another.
    root_user.rename(&root, b"null", &dir, b"moved").done();
    root_user.remove(&dir, b"moved").done();
    user.rmdir(&root, b"dir").done();
    server.stop();
}

#[test]
fn programs_work_on_mount_of_sandboxed_server() {
    let Some(place) = MountPlace::new() else { return };
    let scratch = &place.0;
    let server = scratch.serve_shm("--sandbox strict --host-watch");
    scratch.run("mount shm:link.sock/tree mnt").succeeded();
    let script = r#"set -e
(umask 0; mkdir wide; test "$(stat -c %a wide)" = 777)
umask 077; echo one >f; mkdir d; mkfifo d/fifo; mknod d/null c 1 3
ln f d/hard; ln -s f soft; mv d/hard d/moved; cp --sparse=always f g
chmod 640 f; chown 4321:4321 f; touch -d @7 f; truncate -s 100000 g
fallocate -p -o 4096 -l 4096 g; flock g true; sync -f g; rm -r d soft
test "$(stat -c '%a %u %Y' f)" = '640 4321 7'; test "$(stat -c %a g)" = 600"#;
    let ran = Command::new("sh").args(["-c", script]).current_dir(place.mnt()).output().expect("sh");
    assert!(ran.status.success(), "{ran:?}");
    let (file, mut value) = (place.mnt().join("f"), [0; 8]);
    setxattr(&file, "user.a", b"b", XattrFlags::empty()).expect("set");
    assert_eq!(getxattr(&file, "user.a", &mut value), Ok(1));
    fs::write(scratch.path("tree/another"), "").expect("written");
    assert!(place.mnt().join("another").exists());
    place.umount();
    server.stop();
}

/// Runs programs of a user in the directory's group.
fn group_member(place: &MountPlace) {
    let script = "umask 027; echo mine >dir/f && cat dir/f && stat -c '%u %g %a' dir/f";
    let mut member = Command::new("setpriv");
    member.args(["--reuid", "4321", "--regid", "4321", "--groups", "777", "sh", "-c", script]);
    let ran = member.current_dir(place.mnt()).output().expect("setpriv");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "mine\n4321 4321 640\n", "{ran:?}");
}

#[test]
fn sandboxed_mount_server_mounts_and_unmounts() {
    let Some(place) = MountPlace::new() else { return };
    let scratch = &place.0;
    fs::set_permissions(scratch.path("."), PermissionsExt::from_mode(0o755)).expect("chmod");
    fs::create_dir(scratch.path("tree/dir")).expect("made");
    chown(scratch.path("tree/dir"), None, Some(777)).expect("chown");
    fs::set_permissions(scratch.path("tree/dir"), PermissionsExt::from_mode(0o770)).expect("chmod");
    let words = "mount -f dir:tree mnt -o sandbox=strict,allow_other,coherence=push";
    let server = scratch.serve_until(words, "ready fuse");
    assert!(server.said.contains(HELD), "{}", server.said);
    assert!(server.of_threads("Seccomp:").iter().all(|value| value == "2"));
    assert_leads_nowhere_else(&server);
    assert_eq!(fs::read_to_string(place.mnt().join("file")).expect("read"), "content\n");
    group_member(&place);
    fs::write(scratch.path("tree/another"), "").expect("written");
    assert!(place.mnt().join("another").exists());
    server.stop();
    assert!(!place.mnt().join("file").exists());
    // Background mounts, where the sandbox is the default.
    scratch.run("mount dir:tree mnt").succeeded();
    let of_server = |field: &str| {
        let status = fs::read_to_string(format!("/proc/{}/status", place.server_pid())).expect("status");
        status.lines().find_map(|line| line.strip_prefix(field).map(|value| value.trim().to_owned()))
    };
    assert_eq!(of_server("Seccomp:").as_deref(), Some("2"));
    place.umount();
    let server = scratch.serve("serve tree --fuse mnt --sandbox strict");
    assert!(server.said.contains(HELD), "{}", server.said);
    assert_eq!(fs::read_to_string(place.mnt().join("file")).expect("read"), "content\n");
    server.stop();
    assert!(!place.mnt().join("file").exists());
}

/// Returns the program's dynamic loader.
fn loader() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let line = maps.lines().find(|line| line.contains("/ld-linux")).expect("a loader");
    line.get(line.find('/').expect("a path")..).expect("a path").into()
}

#[test]
fn server_without_broker_has_no_sandbox() {
    let scratch = Scratch::new();
    // The libraries are on another mount.
    let loader = loader();
    let libraries = loader.parent().expect("a directory").display().to_string();
    let strict = words(&"serve tree --nfs 0 --state kept --sandbox strict");
    let script = format!("mount --bind {libraries} {libraries}");
    let program = env!("CARGO_BIN_EXE_tombolo");
    let server = scratch.started(scratch.in_own_mounts(&script, program.as_ref(), &strict), "ready control");
    assert!(server.said.contains(HELD), "{}", server.said);
    server.stop();
    // Started by its loader: a restart would execute the loader alone.
    let auto = format!("{program} serve tree --nfs 0 --state kept --sandbox auto");
    let started = scratch.program(&loader, &words(&auto));
    let server = scratch.started(started, "ready control");
    let none = "ready sandbox landlock=off seccomp=off capabilities=kept namespace=off\n";
    assert!(server.said.contains(none), "{}", server.said);
    let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).expect("a namespace");
    assert_eq!(mounts(&server.pid().to_string()), mounts("self"));
    server.stop();
}

#[test]
fn containerised_server_hides_mounted_files() {
    let scratch = Scratch::new();
    let script = "mount --bind plain /etc/hosts && mount --bind plain /etc/hostname";
    let strict = words(&"serve tree --nfs 0 --state kept --sandbox strict");
    let program = env!("CARGO_BIN_EXE_tombolo");
    let server = scratch.started(scratch.in_own_mounts(script, program.as_ref(), &strict), "ready control");
    assert!(server.said.contains(HELD), "{}", server.said);
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", server.pid())).expect("mountinfo");
    let hosts = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/etc/hosts")).expect("a mount");
    assert!(hosts.contains("/null /etc/hosts "), "{hosts}");
    server.stop();
}

#[test]
fn sandboxed_server_can_export_root_directory() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve / --read-only --nfs 0 --state kept --sandbox strict");
    assert!(server.said.contains(HELD), "{}", server.said);
    server.stop();
}

#[test]
fn sandboxed_proxy_caches_and_refuses_sessions() {
    let scratch = Scratch::new();
    let (origin, url) = scratch.serve_nfs();
    let words = format!("proxy {url} --cache cache --mode write-back --contract exclusive --sandbox strict");
    let words = format!("{words} --nfs 0 --squash none --state kept --control proxy.sock");
    for round in ["made", "found again"] {
        let proxy = scratch.serve(&words);
        assert!(proxy.said.contains(HELD), "{}", proxy.said);
        assert!(proxy.of_threads("Seccomp:").iter().all(|value| value == "2"));
        assert_leads_nowhere_else(&proxy);
        let through = format!("nfs://{}/tree", proxy.nfs_address());
        assert_eq!(scratch.run(format!("cat {through}/file")).out, "content\n");
        scratch.run(format!("cp tree/file {}", format!("{through}/{round}").replace(' ', "-"))).succeeded();
        let session = format!("session create more {url} --nfs 0 --control proxy.sock");
        scratch.run(session).failed(1, &["sandbox permits only its own tree", "--sandbox auto"]);
        proxy.stop();
    }
    for name in ["made", "found-again"] {
        assert_eq!(fs::read_to_string(scratch.path("tree").join(name)).expect("written back"), "content\n");
    }
    origin.stop();
}

/// The tree of a scratch directory on an ext4 of its own, whose caches are dropped without those of the host.
struct ColdTree<'a> {
    scratch: &'a Scratch,
    _mounted: Mounted,
}

impl<'a> ColdTree<'a> {
    fn new(scratch: &'a Scratch) -> Self {
        scratch.sh("truncate -s 8M image && mkfs.ext4 -q -O ^has_journal image && mount -o loop image tree");
        Self { scratch, _mounted: Mounted(scratch.path("tree")) }
    }

    /// Drops the kernel's caches of the tree, which no process may use.
    fn drop_caches(&self) {
        self.scratch.sh("umount tree && mount -o loop image tree");
    }
}

#[test]
fn file_handle_resolves_after_restart_with_cold_caches() {
    let scratch = Scratch::new();
    let tree = ColdTree::new(&scratch);
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| at as u8).collect();
    fs::write(scratch.path("tree/cold"), &bytes).expect("written");
    fs::create_dir(scratch.path("tree/dir")).expect("made");
    let start = || scratch.serve("serve tree --nfs 0 --squash none --state kept --sandbox strict");
    let server = start();
    let nfs = client(server.nfs_address());
    let root = nfs.root("/tree");
    let (file, dir): (FileHandleBuf, FileHandleBuf) =
        (nfs.lookup(&root, b"cold").done().handle, nfs.lookup(&root, b"dir").done().handle);
    drop(nfs);
    server.stop();
    tree.drop_caches();
    let server = start();
    let nfs = client(server.nfs_address());
    nfs.link(&file, &dir, b"second").done();
    server.stop();
    fs::remove_file(scratch.path("tree/dir/second")).expect("it is there");
    tree.drop_caches();
    let server = start();
    let nfs = client(server.nfs_address());
    let read = nfs.read(&file, 0, 1 << 16).done();
    assert_eq!(&read.bytes[..], &bytes[..]);
    server.stop();
    tree.drop_caches();
    let server = start();
    let stranger = client(server.nfs_address()).as_caller(Caller::with_groups(4321, 4321, &[]));
    fs::set_permissions(scratch.path("tree/cold"), PermissionsExt::from_mode(0o600)).expect("chmod");
    server.stop();
    drop(stranger);
    tree.drop_caches();
    let server = start();
    let stranger = client(server.nfs_address()).as_caller(Caller::with_groups(4321, 4321, &[]));
    assert_eq!(stranger.read(&file, 0, 10).status(), Some(&Status::Acces));
    server.stop();
}
