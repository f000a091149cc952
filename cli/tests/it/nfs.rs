//! `tombolo serve --nfs` and `tombolo keys`, as an operator and a client see them.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::{Scratch, Server, free_port, http};

/// The address in the line that says that NFS is ready.
fn address(server: &Server) -> String {
    let line = server.said.lines().find(|line| line.starts_with("ready nfs ")).expect("a line for NFS");
    line.split(' ').nth(2).expect("an address").to_owned()
}

/// An RPC call without arguments (RFC 5531 §9): transaction 7, and AUTH_NONE.
fn call(program: u32, version: u32, procedure: u32, args: &[u32]) -> Vec<u8> {
    let words = [7, 0, 2, program, version, procedure, 0, 0, 0, 0];
    words.iter().chain(args).flat_map(|word| word.to_be_bytes()).collect()
}

/// The answer over TCP, without its record mark.
fn ask(address: &str, call: &[u8]) -> std::io::Result<Vec<u8>> {
    ask_over(&mut TcpStream::connect(address)?, call)
}

fn ask_over(stream: &mut TcpStream, call: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&(0x8000_0000 | call.len() as u32).to_be_bytes())?;
    stream.write_all(call)?;
    let mut mark = [0; 4];
    stream.read_exact(&mut mark)?;
    let mut reply = vec![0; (u32::from_be_bytes(mark) & 0x7FFF_FFFF) as usize];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}

const MOUNT: u32 = 100_005;
const NFS: u32 = 100_003;

/// MNT (RFC 1813 §5.2.1): the status and the handle.
fn mnt(address: &str, path: &str) -> Result<Vec<u8>, u32> {
    let mut args = call(MOUNT, 3, 1, &[path.len() as u32]);
    args.extend(path.as_bytes());
    args.resize(args.len().next_multiple_of(4), 0);
    let reply = ask(address, &args).expect("a reply");
    let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
    // xid, REPLY, accepted, AUTH_NONE of no bytes, SUCCESS; then the status.
    assert_eq!((word(0), word(4), word(8), word(20)), (7, 1, 0, 0), "{reply:?}");
    match word(24) {
        0 => Ok(reply[32..32 + word(28) as usize].to_vec()),
        status => Err(status),
    }
}

/// GETATTR (RFC 1813 §3.3.1): the status.
fn getattr(address: &str, handle: &[u8]) -> u32 {
    let mut args = call(NFS, 3, 1, &[handle.len() as u32]);
    args.extend(handle);
    args.resize(args.len().next_multiple_of(4), 0);
    let reply = ask(address, &args).expect("a reply");
    u32::from_be_bytes(reply[24..28].try_into().expect("four bytes"))
}

/// MKDIR (RFC 1813 §3.3.9) of `name` in `dir` as a user whose one more group is 777: the status.
fn mkdir(address: &str, dir: &[u8], name: &str, uid: u32, gid: u32) -> u32 {
    let padded = |bytes: &[u8]| {
        let mut opaque = (bytes.len() as u32).to_be_bytes().to_vec();
        opaque.extend(bytes);
        opaque.resize(opaque.len().next_multiple_of(4), 0);
        opaque
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    // AUTH_SYS: a stamp, no machine's name, the ids, one group.
    let credential = padded(&words(&[1, 0, uid, gid, 1, 777]));
    let head = [words(&[7, 0, 2, NFS, 3, 9, 1]), credential, words(&[0, 0])].concat();
    // Mode 0755 and no other attribute.
    let args = [padded(dir), padded(name.as_bytes()), words(&[1, 0o755, 0, 0, 0, 0, 0])].concat();
    let reply = ask(address, &[head, args].concat()).expect("a reply");
    u32::from_be_bytes(reply[24..28].try_into().expect("four bytes"))
}

const ACCES: u32 = 13;
const ROFS: u32 = 30;
const STALE: u32 = 70;
const BAD_HANDLE: u32 = 10_001;

#[test]
fn a_connection_that_a_starting_server_takes_is_served() {
    let scratch = Scratch::new();
    for round in 0..10 {
        let port = free_port(round);
        let state = format!("kept-{round}");
        let words = ["serve", "tree", "--nfs", &port.to_string(), "--state", &state, "--control", "c.sock"];
        let caller = thread::spawn(move || {
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => break stream,
                    Err(_) => thread::sleep(Duration::from_micros(200)),
                }
            };
            ask_over(&mut stream, &call(NFS, 3, 0, &[]))
        });
        let _server = scratch.serve(&words, "ready control");
        assert_eq!(caller.join().expect("joined").expect("a reply").len(), 24, "round {round}");
    }
}

#[test]
fn a_port_that_is_taken_for_udp_only_is_named() {
    let scratch = Scratch::new();
    let taken = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let port = taken.local_addr().expect("an address").port().to_string();
    scratch.run(&["serve", "tree", "--nfs", &port]).failed(1, &["serve NFS", &port, "over UDP", "in use"]);
}

#[test]
fn a_server_says_how_to_mount_and_answers_there() {
    let scratch = Scratch::new();
    let words = ["serve", "tree", "mnt=/other", "--nfs", "0", "--state", "kept", "--metrics", "0"];
    let mut server = scratch.serve(&words, "ready metrics");
    let at = address(&server);
    let port = at.rsplit(':').next().expect("a port").to_owned();
    for part in [
        format!("ready nfs {at} export=/tree squash=root interfaces=loopback\n"),
        format!("ready nfs {at} export=/other squash=root interfaces=loopback\n"),
        format!(
            "mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock 127.0.0.1:/tree /mnt\n"
        ),
        "10.0.2.2:/tree /mnt".to_owned(),
        format!("nfs://127.0.0.1/other?nfsport={port}&mountport={port}&version=3"),
        "macOS (untested)".to_owned(),
    ] {
        assert!(server.said.contains(&part), "{part:?} is not in\n{}", server.said);
    }
    let handle = mnt(&at, "/tree").expect("a handle");
    assert!(handle.len() <= 64);
    assert_eq!(getattr(&at, &handle), 0);
    assert_eq!(mnt(&at, "/none"), Err(2));
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
    udp.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
    udp.send_to(&call(NFS, 3, 0, &[]), &at).expect("send");
    let mut reply = [0; 100];
    assert_eq!(udp.recv(&mut reply).expect("an answer to NULL"), 24);

    let top = scratch.run(&["top", "--once"]);
    top.succeeded();
    assert!(top.out.contains(&format!("/tree by nfs {at}")), "{}", top.out);
    assert!(top.out.contains(&format!("nfs {at}  connections ")), "{}", top.out);
    let metrics = server.said.rsplit("http://").next().and_then(|rest| rest.strip_suffix("/metrics\n"));
    let metrics = http(metrics.expect("a URL"), "/metrics");
    let series = format!("tombolo_nfs_calls_total{{address=\"{at}\"}} ");
    assert!(metrics.contains(&series), "{metrics}");

    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(TcpStream::connect(&at).is_err());
}

#[test]
fn handles_outlive_a_restart_and_go_with_their_key() {
    let scratch = Scratch::new();
    let serve = || {
        let server = scratch.serve(&["serve", "tree", "--nfs", "0", "--state", "kept"], "ready control");
        let at = address(&server);
        (server, at)
    };
    let keys = |words: &[&str]| scratch.run(&[&["keys", "--state", "kept"], words].concat());
    let (mut server, at) = serve();
    let handle = mnt(&at, "/tree").expect("a handle");
    server.signal("KILL");
    server.wait();

    let (mut server, at) = serve();
    assert_eq!(getattr(&at, &handle), 0, "as if nothing had happened");
    let mut forged = handle.clone();
    *forged.last_mut().expect("a byte") ^= 1;
    assert_eq!(getattr(&at, &forged), BAD_HANDLE);
    let rotated = keys(&["rotate"]);
    assert_eq!((rotated.code, rotated.out.as_str()), (Some(0), "2  signs\n1  good\n"));
    assert!(rotated.err.contains("tree runs"), "{rotated:?}");
    server.signal("TERM");
    server.wait();

    let (mut server, at) = serve();
    assert_eq!(getattr(&at, &handle), 0, "the older key is good");
    assert_ne!(mnt(&at, "/tree"), Ok(handle.clone()), "the newer one signs");
    server.signal("TERM");
    server.wait();
    let retired = keys(&["retire", "1"]);
    retired.succeeded();
    assert_eq!(retired.out, "2  signs\n1  retired\n");
    keys(&["retire", "2"]).failed(1, &["key 2 signs", "tombolo keys rotate"]);
    keys(&["retire", "9"]).failed(1, &["no key 9"]);

    let (mut server, at) = serve();
    assert_eq!(getattr(&at, &handle), STALE);
    assert!(mnt(&at, "/tree").is_ok());
    server.signal("TERM");
    server.wait();
}

/// Their last components are the same, and nothing else.
#[test]
fn two_trees_of_one_name_have_a_state_each() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("a/src")).expect("mkdir");
    fs::create_dir_all(scratch.path("b/src")).expect("mkdir");
    let serve = |tree: &str| {
        let server = scratch.serve(&["serve", tree, "--nfs", "0", "--state", "kept"], "ready control");
        let at = address(&server);
        (server, at)
    };
    let (one, one_at) = serve("a/src");
    let (two, two_at) = serve("b/src");
    let handles = [&one_at, &two_at].map(|at| mnt(at, "/src").expect("a handle"));
    assert_eq!(getattr(&two_at, &handles[0]), BAD_HANDLE, "the keys are others");
    drop((one, two));
    // In the other order.
    let (_two, two_at) = serve("b/src");
    let (_one, one_at) = serve("a/src");
    assert_eq!((getattr(&one_at, &handles[0]), getattr(&two_at, &handles[1])), (0, 0));
    scratch
        .run(&["serve", "a/src", "--nfs", "0", "--state", "kept"])
        .failed(1, &["in use by another server"]);
    scratch.run(&["keys", "list", "--state", "kept"]).failed(2, &["src (/", "/a/src), src-2 (/", "/b/src)"]);
}

/// overlayfs without `nfs_export` has no handles of its own.
#[test]
fn a_file_system_without_handles_gets_them_from_a_table() {
    let scratch = Scratch::new();
    for dir in ["upper", "work"] {
        fs::create_dir(scratch.path(dir)).expect("mkdir");
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        scratch.text("tree"),
        scratch.text("upper"),
        scratch.text("work")
    );
    let target = scratch.text("mnt");
    let mounted = Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay", &target]).status();
    assert!(mounted.expect("mount(8)").success(), "mounting an overlay needs root");
    let _mounted = Unmount(target);
    fs::create_dir(scratch.path("mnt/dir")).expect("mkdir");
    let words = ["serve", "mnt=/over", "--nfs", "0", "--state", "kept"];
    let mut server = scratch.serve(&words, "ready control");
    let at = address(&server);
    let (root, dir) = (mnt(&at, "/over").expect("a handle"), mnt(&at, "/over/dir").expect("a handle"));
    server.signal("KILL");
    server.wait();
    let mut server = scratch.serve(&words, "ready control");
    let at = address(&server);
    assert_eq!((getattr(&at, &root), getattr(&at, &dir)), (0, 0));
    fs::rename(scratch.path("mnt/dir"), scratch.path("mnt/else")).expect("rename");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = scratch.serve(&words, "ready control");
    let at = address(&server);
    assert_eq!(getattr(&at, &dir), STALE, "renamed behind our back");
    assert_eq!(mnt(&at, "/over/else"), Ok(dir.clone()), "the same file, met again");
    assert_eq!(getattr(&at, &dir), 0);
}

/// Takes a mount away when the test ends.
struct Unmount(String);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn keys_are_not_guessed_at() {
    let scratch = Scratch::new();
    scratch.run(&["keys", "list", "--state", "nothere"]).failed(1, &["no such directory", "--state DIR"]);
    let server = scratch.serve(&["serve", "tree", "--nfs", "0", "--state", "kept"], "ready control");
    drop(server);
    let server = scratch.serve(&["serve", "mnt=/other", "--nfs", "0", "--state", "kept"], "ready control");
    drop(server);
    scratch
        .run(&["keys", "list", "--state", "kept"])
        .failed(2, &["--server", "other (/", "/mnt), tree (/", "/tree)"]);
    let listed = scratch.run(&["keys", "list", "--state", "kept", "--server", "tree"]);
    listed.succeeded();
    assert_eq!(listed.out, "1  signs\n");
    scratch.run(&["keys", "list", "--state", "kept", "--server", "none"]).failed(1, &["none", "no state"]);
    fs::write(scratch.path("kept/tree/handle-keys"), "banana\n").expect("write");
    let words = ["serve", "tree", "--nfs", "0", "--state", "kept"];
    scratch.run(&words).failed(1, &["handle-keys, line 1"]);
    assert_eq!(fs::read_to_string(scratch.path("kept/tree/handle-keys")).expect("left alone"), "banana\n");
}

#[test]
fn one_state_is_one_server_s() {
    let scratch = Scratch::new();
    let words = ["serve", "tree", "--nfs", "0", "--state", "kept"];
    let _server = scratch.serve(&words, "ready control");
    scratch.run(&words).failed(1, &["in use by another server", "--state DIR"]);
    let mut other = scratch.serve(&["serve", "tree", "--nfs", "0", "--state", "elsewhere"], "ready control");
    other.signal("TERM");
    assert_eq!(other.wait().code(), Some(0));
}

#[test]
fn who_is_not_allowed_is_told_so() {
    let scratch = Scratch::new();
    let serve = |networks: &[&str]| {
        let mut words = vec!["serve", "tree", "--nfs", "0", "--state", "kept"];
        networks.iter().for_each(|network| words.extend(["--allow", network]));
        scratch.serve(&words, "ready control")
    };
    const ACCES: u32 = 13;
    let server = serve(&["10.0.0.0/8", "fd00::/16"]);
    assert_eq!(
        mnt(&address(&server), "/tree"),
        Err(ACCES),
        "127.0.0.1 is in neither; mount(8) says so at once"
    );
    drop(server);
    let server = serve(&["10.0.0.0/8", "127.0.0.0/8"]);
    assert!(mnt(&address(&server), "/tree").is_ok());
}

/// What is made belongs to whom the operator takes the caller for, and is made only if that one may.
#[test]
fn callers_are_whom_the_operator_takes_them_for() {
    let scratch = Scratch::new();
    for (dir, mode) in [("tree", 0o755), ("tree/open", 0o777), ("tree/group", 0o775)] {
        let _ = fs::create_dir(scratch.path(dir));
        fs::set_permissions(scratch.path(dir), fs::Permissions::from_mode(mode)).expect("chmod");
    }
    std::os::unix::fs::chown(scratch.path("tree/group"), Some(0), Some(777)).expect("this test needs root");
    let serve = |words: &[&str]| {
        let server = scratch
            .serve(&[&["serve", "tree", "--nfs", "0", "--state", "kept"], words].concat(), "ready control");
        let at = address(&server);
        (server, at)
    };
    let owner = |name: &str| {
        let metadata = scratch.path("tree").join(name).metadata().expect("it was made");
        (metadata.uid(), metadata.gid())
    };
    let (server, at) = serve(&[]);
    let dir = |at: &str, name: &str| mnt(at, &format!("/tree{name}")).expect("a handle");
    assert_eq!(mkdir(&at, &dir(&at, ""), "by-root", 0, 0), ACCES, "a client's root is nobody");
    assert_eq!(mkdir(&at, &dir(&at, "/open"), "by-root", 0, 0), 0);
    assert_eq!(owner("open/by-root"), (65_534, 65_534));
    assert_eq!(mkdir(&at, &dir(&at, "/open"), "by-user", 1000, 1001), 0);
    assert_eq!(owner("open/by-user"), (1000, 1001));
    assert_eq!(mkdir(&at, &dir(&at, ""), "by-user", 1000, 1001), ACCES);
    assert_eq!(mkdir(&at, &dir(&at, "/group"), "by-group", 1000, 1001), 0, "groups count");
    drop(server);

    let (server, at) = serve(&["--squash", "none"]);
    assert_eq!(mkdir(&at, &dir(&at, ""), "by-root", 0, 0), 0);
    assert_eq!(owner("by-root"), (0, 0));
    drop(server);

    let (server, at) = serve(&["--squash", "all", "--anonuid", "2000", "--anongid", "2001"]);
    assert_eq!(mkdir(&at, &dir(&at, "/group"), "by-all", 1000, 1001), ACCES, "no groups either");
    assert_eq!(mkdir(&at, &dir(&at, "/open"), "by-all", 1000, 1001), 0);
    assert_eq!(owner("open/by-all"), (2000, 2001));
    drop(server);

    // User 1000 is in no group 777 here, whatever the client says.
    let (server, at) = serve(&["--manage-gids"]);
    assert_eq!(mkdir(&at, &dir(&at, "/group"), "by-told", 1000, 1001), ACCES);
    drop(server);

    let (_server, at) = serve(&["--squash", "none", "--readonly"]);
    assert_eq!(mkdir(&at, &dir(&at, "/open"), "by-reader", 0, 0), ROFS);
}

#[test]
fn the_configuration_speaks_of_nfs_too() {
    let scratch = Scratch::new();
    let text = "dir = ['tree=/one', 'mnt=/two']\nnfs = ['0,export=/one', '0']\nsquash = 'all'\nanonuid = 7\n\
                allow = ['127.0.0.0/8']\nmanage-gids = true\nstate = 'kept'\nnfs-threads = 1\nnfs-no-udp = true\n";
    fs::write(scratch.path("tombolo.toml"), text).expect("write");
    let mut server = scratch.serve(&["serve", "--config", "tombolo.toml"], "ready control");
    let lines: Vec<&str> = server.said.lines().filter(|line| line.starts_with("ready nfs ")).collect();
    assert_eq!(lines.len(), 3, "{}", server.said);
    assert!(scratch.path("kept/one/handle-keys").exists(), "beside the file, under the first export's name");
    let one = address(&server);
    assert!(mnt(&one, "/one").is_ok());
    assert_eq!(mnt(&one, "/two"), Err(2), "not offered at this port");
    let two = lines[1].split(' ').nth(2).expect("an address");
    assert!(mnt(two, "/two").is_ok());
    UdpSocket::bind(&one).expect("nobody listens for datagrams");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn what_makes_no_sense_is_told() {
    let scratch = Scratch::new();
    let somebody = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let busy = somebody.local_addr().expect("its address").to_string();
    let before = scratch.listing();
    let cases: [(&[&str], i32, &[&str]); 10] = [
        (&["--nfs", "host"], 2, &["PORT, :PORT, IP:PORT or NAME:PORT"]),
        (&["--nfs", "no-such-host.invalid:1"], 1, &["cannot find the address of no-such-host.invalid"]),
        (&["--nfs", "2049,ro"], 2, &["\"ro\" is not export=/NAME"]),
        (&["--nfs", "0,export=/none"], 2, &["no export /none", "there are: /tree"]),
        (&["--nfs", "0,export=/tree,export=/tree"], 2, &["named twice"]),
        (&["--nfs", "2049", "--nfs", "2049"], 2, &["given twice"]),
        (&["--nfs", "0", "--squash", "some"], 2, &["none, root, all"]),
        (&["--nfs", "0", "--allow", "10.0.0.1/8"], 2, &["10.0.0.0/8"]),
        (
            &["--virtiofs", "vm.sock", "--allow", "10.0.0.0/8"],
            2,
            &["--allow requires --nfs", "add --nfs PORT"],
        ),
        (&["--nfs", "192.0.2.1:1"], 1, &["cannot serve NFS at 192.0.2.1:1"]),
    ];
    for (words, code, said) in cases {
        scratch.run(&[&["serve", "tree", "--state", "kept"], words].concat()).failed(code, said);
    }
    scratch.run(&["serve", "tree", "--state", "kept", "--nfs", &busy]).failed(1, &[&busy, "in use"]);
    assert_eq!(scratch.listing(), before, "something was left behind");
}
