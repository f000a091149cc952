//! `tombolo serve --nfs` and `tombolo keys`, from the view of an operator and a client.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::thread;
use std::time::Duration;

use tombolo_nfs_tests::client::{Caller, Nfs, Transport, mode};
use tombolo_wire_nfs3::mount;
use tombolo_wire_nfs3::{FileHandle, FileHandleBuf, Reply, Status};

use crate::common::{Mounted, Scratch, Server, free_port, http};

/// Starts a server that keeps its state in `kept`; returns it with its address.
fn serve(scratch: &Scratch, words: &str) -> (Server, String) {
    let server = scratch.serve(format!("serve {words} --state kept"));
    let at = server.nfs_address().to_owned();
    (server, at)
}

/// Connects a client with the identity of root.
fn client(address: &str) -> Nfs {
    Nfs::connect(Transport::Tcp, address.parse().expect("an address")).expect("a connection")
}

/// Performs MNT; returns the handle or the status.
fn mnt(address: &str, path: &str) -> Result<FileHandleBuf, mount::Status> {
    match client(address).mnt(path) {
        Reply::Ok(mounted) => Ok(mounted.root),
        Reply::Failed(status, ()) => Err(status),
    }
}

/// Performs GETATTR; returns the status if it failed.
fn getattr(address: &str, handle: &FileHandleBuf) -> Option<Status> {
    client(address).getattr(handle).status().copied()
}

/// Performs MKDIR of `name` in the export's directory `dir`, as a user with the additional group 777; returns
/// the status if it failed.
fn mkdir(address: &str, dir: &str, name: &str, uid: u32, gid: u32) -> Option<Status> {
    let dir = mnt(address, &format!("/tree{dir}")).expect("a handle");
    let client = client(address).as_caller(Caller::with_groups(uid, gid, &[777]));
    client.mkdir(&dir, name.as_bytes(), mode(0o755)).status().copied()
}

#[test]
fn a_connection_that_a_starting_server_takes_is_served() {
    let scratch = Scratch::new();
    for round in 0..10 {
        let port = free_port(round);
        let state = format!("kept-{round}");
        let words = format!("serve tree --nfs {} --state {state} --control c.sock", port);
        let caller = thread::spawn(move || {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let client = loop {
                match Nfs::connect(Transport::Tcp, address) {
                    Ok(client) => break client,
                    Err(_) => thread::sleep(Duration::from_micros(200)),
                }
            };
            client.null();
        });
        let _server = scratch.serve(&words);
        assert!(caller.join().is_ok(), "round {round}: no reply");
    }
}

#[test]
fn port_busy_for_udp_only_is_reported() {
    let scratch = Scratch::new();
    // A free TCP port below the ephemeral range.
    let mut ports = 20_000..32_000;
    let (taken, _) = ports
        .find_map(|port| {
            Some((UdpSocket::bind(("127.0.0.1", port)).ok()?, TcpListener::bind(("127.0.0.1", port)).ok()?))
        })
        .expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    scratch.run(format!("serve tree --nfs {port}")).failed(1, &["serve NFS", &port, "over UDP", "in use"]);
}

#[test]
fn a_server_says_how_to_mount_and_answers_there() {
    let scratch = Scratch::new();
    let words = "serve tree mnt=/other --nfs 0 --state kept --metrics 0";
    let server = scratch.serve_until(words, "ready metrics");
    let at = server.nfs_address().to_owned();
    let port = at.rsplit(':').next().expect("a port").to_owned();
    server.says(&[
        format!("ready nfs {at} export=/tree squash=root interfaces=loopback\n"),
        format!("ready nfs {at} export=/other squash=root interfaces=loopback\n"),
        format!(
            "mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock 127.0.0.1:/tree /mnt\n"
        ),
        "10.0.2.2:/tree /mnt".to_owned(),
        format!("nfs://127.0.0.1/other?nfsport={port}&mountport={port}&version=3"),
        "macOS (untested)".to_owned(),
    ]);
    let handle = mnt(&at, "/tree").expect("a handle");
    assert_eq!(getattr(&at, &handle), None);
    assert_eq!(mnt(&at, "/none"), Err(mount::Status::NoEnt));
    let udp = Nfs::connect(Transport::Udp, at.parse().expect("an address")).expect("a socket");
    udp.null();

    let top = scratch.run("top --once").succeeded();
    top.says(&[format!("/tree by nfs {at}"), format!("nfs {at}  connections ")]);
    let metrics = http(server.metrics_address(), "/metrics");
    let series = format!("tombolo_nfs_calls_total{{address=\"{at}\"}} ");
    assert!(metrics.contains(&series), "{metrics}");

    server.stop();
    assert!(TcpStream::connect(&at).is_err());
}

#[test]
fn handles_outlive_a_restart_and_go_with_their_key() {
    let scratch = Scratch::new();
    let serve = || serve(&scratch, "tree --nfs 0");
    let keys = |words: &str| scratch.run(format!("keys --state kept {words}"));
    let (server, at) = serve();
    let handle = mnt(&at, "/tree").expect("a handle");
    server.kill();

    let (server, at) = serve();
    assert_eq!(getattr(&at, &handle), None, "as if nothing had happened");
    let mut forged = handle.as_handle().as_bytes().to_vec();
    *forged.last_mut().expect("a byte") ^= 1;
    let forged = FileHandle::new(&forged).expect("a handle").to_owned();
    assert_eq!(getattr(&at, &forged), Some(Status::BadHandle));
    let rotated = keys("rotate");
    assert_eq!((rotated.code, rotated.out.as_str()), (Some(0), "2  signs\n1  good\n"));
    assert!(rotated.err.contains("tree is running"), "{rotated:?}");
    server.stop();

    let (server, at) = serve();
    assert_eq!(getattr(&at, &handle), None, "the older key is good");
    assert_ne!(mnt(&at, "/tree"), Ok(handle), "the newer one signs");
    server.stop();
    let retired = keys("retire 1").succeeded();
    assert_eq!(retired.out, "2  signs\n1  retired\n");
    keys("retire 2").failed(1, &["key 2 signs", "tombolo keys rotate"]);
    keys("retire 9").failed(1, &["no such key: 9"]);

    let (server, at) = serve();
    assert_eq!(getattr(&at, &handle), Some(Status::Stale));
    assert!(mnt(&at, "/tree").is_ok());
    server.stop();
}

/// Serves two trees, of which only the last components are equal.
#[test]
fn two_trees_of_one_name_have_a_state_each() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("a/src")).expect("mkdir");
    fs::create_dir_all(scratch.path("b/src")).expect("mkdir");
    let serve = |tree: &str| serve(&scratch, &format!("{tree} --nfs 0"));
    let (one, one_at) = serve("a/src");
    let (two, two_at) = serve("b/src");
    let handles = [&one_at, &two_at].map(|at| mnt(at, "/src").expect("a handle"));
    assert_eq!(getattr(&two_at, &handles[0]), Some(Status::BadHandle), "the keys are others");
    drop((one, two));
    // In the other order.
    let (_two, two_at) = serve("b/src");
    let (_one, one_at) = serve("a/src");
    assert_eq!((getattr(&one_at, &handles[0]), getattr(&two_at, &handles[1])), (None, None));
    scratch.run("serve a/src --nfs 0 --state kept").failed(1, &["in use by another server", "--state DIR"]);
    scratch.run("keys list --state kept").failed(2, &["src (/", "/a/src), src-2 (/", "/b/src)"]);
}

/// Serves overlayfs without `nfs_export`, which has no file handles.
#[test]
fn missing_file_handles_are_replaced_by_table() {
    let scratch = Scratch::new();
    let overlay = "mount -t overlay -o lowerdir=tree,upperdir=upper,workdir=work overlay mnt";
    scratch.sh(&format!("mkdir upper work && {overlay}"));
    let _mounted = Mounted(scratch.path("mnt"));
    fs::create_dir(scratch.path("mnt/dir")).expect("mkdir");
    let serve = || serve(&scratch, "mnt=/over --nfs 0");
    let (server, at) = serve();
    let (root, dir) = (mnt(&at, "/over").expect("a handle"), mnt(&at, "/over/dir").expect("a handle"));
    server.kill();
    let (server, at) = serve();
    assert_eq!((getattr(&at, &root), getattr(&at, &dir)), (None, None));
    fs::rename(scratch.path("mnt/dir"), scratch.path("mnt/else")).expect("rename");
    server.stop();
    let (_server, at) = serve();
    assert_eq!(getattr(&at, &dir), Some(Status::Stale), "renamed behind our back");
    assert_eq!(mnt(&at, "/over/else"), Ok(dir), "the same file, met again");
    assert_eq!(getattr(&at, &dir), None);
}

#[test]
fn keys_are_not_guessed_at() {
    let scratch = Scratch::new();
    scratch.run("keys list --state nothere").failed(1, &["no such directory", "--state DIR"]);
    let server = scratch.serve("serve tree --nfs 0 --state kept");
    drop(server);
    let server = scratch.serve("serve mnt=/other --nfs 0 --state kept");
    drop(server);
    scratch.run("keys list --state kept").failed(2, &["--server", "other (/", "/mnt), tree (/", "/tree)"]);
    let listed = scratch.run("keys list --state kept --server tree").succeeded();
    assert_eq!(listed.out, "1  signs\n");
    scratch.run("keys list --state kept --server none").failed(1, &["none", "no state"]);
    fs::write(scratch.path("kept/tree/handle-keys"), "banana\n").expect("write");
    scratch.run("serve tree --nfs 0 --state kept").failed(1, &["handle-keys, line 1"]);
    assert_eq!(fs::read_to_string(scratch.path("kept/tree/handle-keys")).expect("left alone"), "banana\n");
}

#[test]
fn clients_outside_allow_list_are_refused() {
    let scratch = Scratch::new();
    let serve = "serve tree --nfs 0 --state kept";
    let server = scratch.serve(format!("{serve} --allow 10.0.0.0/8 --allow fd00::/16"));
    assert_eq!(
        mnt(server.nfs_address(), "/tree"),
        Err(mount::Status::Acces),
        "127.0.0.1 is in neither; mount(8) says so at once"
    );
    drop(server);
    let server = scratch.serve(format!("{serve} --allow 10.0.0.0/8 --allow 127.0.0.0/8"));
    assert!(mnt(server.nfs_address(), "/tree").is_ok());
}

/// Checks that new files belong to the mapped identity, and need its permissions.
#[test]
fn callers_are_squashed_as_the_options_say() {
    let scratch = Scratch::new();
    for (dir, mode) in [("tree", 0o755), ("tree/open", 0o777), ("tree/group", 0o775)] {
        let _ = fs::create_dir(scratch.path(dir));
        fs::set_permissions(scratch.path(dir), fs::Permissions::from_mode(mode)).expect("chmod");
    }
    std::os::unix::fs::chown(scratch.path("tree/group"), Some(0), Some(777)).expect("this test needs root");
    let serve = |words: &str| serve(&scratch, &format!("tree --nfs 0 {words}"));
    let owner = |name: &str| {
        let metadata = scratch.path("tree").join(name).metadata().expect("it was made");
        (metadata.uid(), metadata.gid())
    };
    let (server, at) = serve("");
    assert_eq!(mkdir(&at, "", "by-root", 0, 0), Some(Status::Acces), "a client's root is squashed");
    assert_eq!(mkdir(&at, "/open", "by-root", 0, 0), None);
    assert_eq!(owner("open/by-root"), (65_534, 65_534));
    assert_eq!(mkdir(&at, "/open", "by-user", 1000, 1001), None);
    assert_eq!(owner("open/by-user"), (1000, 1001));
    assert_eq!(mkdir(&at, "", "by-user", 1000, 1001), Some(Status::Acces));
    assert_eq!(mkdir(&at, "/group", "by-group", 1000, 1001), None, "groups count");
    drop(server);

    let (server, at) = serve("--squash none");
    assert_eq!(mkdir(&at, "", "by-root", 0, 0), None);
    assert_eq!(owner("by-root"), (0, 0));
    drop(server);

    let (server, at) = serve("--squash all --anonuid 2000 --anongid 2001");
    assert_eq!(mkdir(&at, "/group", "by-all", 1000, 1001), Some(Status::Acces), "no groups either");
    assert_eq!(mkdir(&at, "/open", "by-all", 1000, 1001), None);
    assert_eq!(owner("open/by-all"), (2000, 2001));
    drop(server);

    // User 1000 is not in group 777 on the server, whatever the client sends.
    let (server, at) = serve("--manage-gids");
    assert_eq!(mkdir(&at, "/group", "by-told", 1000, 1001), Some(Status::Acces));
    drop(server);

    let (_server, at) = serve("--squash none --readonly");
    assert_eq!(mkdir(&at, "/open", "by-reader", 0, 0), Some(Status::RoFs));
}

#[test]
fn the_configuration_speaks_of_nfs_too() {
    let scratch = Scratch::new();
    let text = "dir = ['tree=/one', 'mnt=/two']\nnfs = ['0,export=/one', '0']\nsquash = 'all'\nanonuid = 7\n\
                allow = ['127.0.0.0/8']\nmanage-gids = true\nstate = 'kept'\nnfs-threads = 1\nnfs-no-udp = true\n";
    fs::write(scratch.path("tombolo.toml"), text).expect("write");
    let server = scratch.serve("serve --config tombolo.toml");
    let lines: Vec<&str> = server.said.lines().filter(|line| line.starts_with("ready nfs ")).collect();
    assert_eq!(lines.len(), 3, "{}", server.said);
    assert!(scratch.path("kept/one/handle-keys").exists(), "beside the file, under the first export's name");
    let one = server.nfs_address().to_owned();
    assert!(mnt(&one, "/one").is_ok());
    assert_eq!(mnt(&one, "/two"), Err(mount::Status::NoEnt), "not offered at this port");
    let two = lines[1].split(' ').nth(2).expect("an address");
    assert!(mnt(two, "/two").is_ok());
    UdpSocket::bind(&one).expect("no socket is bound for datagrams");
    server.stop();
}

#[test]
fn contradictory_options_are_refused() {
    let scratch = Scratch::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let busy = listener.local_addr().expect("its address").to_string();
    let taken = format!("serve tree --state kept --nfs {busy}");
    scratch.all_fail(&[
        ("serve tree --state kept --nfs host", 2, &["PORT, :PORT, IP:PORT or NAME:PORT"]),
        (
            "serve tree --state kept --nfs no-such-host.invalid:1",
            1,
            &["cannot find the address of no-such-host.invalid"],
        ),
        ("serve tree --state kept --nfs 2049,ro", 2, &["\"ro\" is not export=/NAME"]),
        ("serve tree --state kept --nfs 0,export=/none", 2, &["no export /none", "available: /tree"]),
        ("serve tree --state kept --nfs 0,export=/tree,export=/tree", 2, &["listed twice"]),
        ("serve tree --state kept --nfs 2049 --nfs 2049", 2, &["given twice"]),
        ("serve tree --state kept --nfs 0 --squash some", 2, &["none, root, all"]),
        ("serve tree --state kept --nfs 0 --allow 10.0.0.1/8", 2, &["10.0.0.0/8"]),
        (
            "serve tree --state kept --virtiofs vm.sock --allow 10.0.0.0/8",
            2,
            &["--allow requires --nfs", "add --nfs PORT"],
        ),
        ("serve tree --state kept --nfs 192.0.2.1:1", 1, &["cannot serve NFS at 192.0.2.1:1"]),
        (&taken, 1, &[&busy, "in use"]),
    ]);
}
