//! `tombolo serve` from start to end, from the view of a VMM, a tool and an operator.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::common::{Ran, Scratch, contains, http, words};

#[test]
fn serve_prints_hints_and_leaves_nothing() {
    let scratch = Scratch::new();
    let before = scratch.listing();
    let server = scratch
        .serve_until("serve tree --virtiofs vm.sock,tag=src --metrics 0", "ready metrics http://127.0.0.1:");
    let socket = scratch.text("vm.sock");
    server.says(&[
        format!("ready virtiofs {socket} tag=src export=/tree\n"),
        "-object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem".to_owned(),
        format!(
            "-chardev socket,id=fs0,path={socket} -device vhost-user-fs-pci,queue-size=1024,chardev=fs0,tag=src"
        ),
        "mount -t virtiofs src /mnt".to_owned(),
        format!("ready control {}\n", scratch.text("run/tombolo/tree.sock")),
    ]);
    for path in ["vm.sock", "run/tombolo/tree.sock"] {
        let metadata = scratch.path(path).metadata().expect("a socket");
        assert!(metadata.file_type().is_socket() && metadata.permissions().mode() & 0o777 == 0o600, "{path}");
    }
    let top = scratch.run("top --once").succeeded();
    top.says(&[format!("/tree by virtiofs {socket}")]);
    let address = server.metrics_address().to_owned();
    let metrics = http(&address, "/metrics");
    contains(&metrics, &["# HELP tombolo_operations_total ", "version=0.0.4"]);

    server.stop();
    assert_eq!(scratch.listing(), before);
    assert!(std::net::TcpStream::connect(&address).is_err());
}

#[test]
fn hidden_attributes_are_told_of_on_the_ready_line() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --virtiofs vm.sock --xattrs off");
    server.says(&[" tag=tombolo export=/tree xattrs=off hides=acls,capabilities\n"]);
    let refused = scratch.run("serve tree --nfs 0 --xattrs off");
    refused.failed(2, &["--xattrs requires --virtiofs, --fuse, --shm or --shm-file"]);
}

#[test]
fn sighup_is_ignored_and_sigint_ends() {
    let scratch = Scratch::new();
    let mut server = scratch.serve("serve tree --virtiofs vm.sock");
    server.signal("HUP");
    scratch.run("top --once").succeeded();
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn stale_socket_is_replaced_and_live_one_refused() {
    let scratch = Scratch::new();
    let words = "serve tree --virtiofs vm.sock";
    let killed = scratch.serve(words);
    killed.kill();
    assert!(scratch.path("vm.sock").exists(), "a killed server cannot clean up");
    let server = scratch.serve(words);
    // Its control socket was stale too.
    server.says(&["run/tombolo/tree.sock"]);
    let before = scratch.listing();
    scratch.run(words).failed(1, &["vm.sock", "another server is listening"]);
    assert_eq!(scratch.listing(), before);
    scratch.run("top --once").succeeded();
    server.stop();
}

#[test]
fn several_directories_have_sockets_of_their_own() {
    let scratch = Scratch::new();
    let server = scratch.serve(
        "serve tree mnt=/other/name --virtiofs a,export=/tree --virtiofs b,export=/other/name,queues=2",
    );
    server.says(&["tag=tombolo export=/other/name", "num-request-queues=2"]);
    let second = scratch.serve("serve tree --virtiofs c");
    second.says(&["run/tombolo/tree-2.sock"]);
    let value = scratch.run("top --once --json").succeeded().json();
    assert_eq!(value["servers"].as_array().map(Vec::len), Some(2), "{value}");
    for server in [server, second] {
        server.stop();
    }
}

#[test]
fn addresses_that_others_can_reach_are_warned_of() {
    let scratch = Scratch::new();
    let said = |command: &[&str], nfs: &str, metrics: &str| {
        let line = format!("serve tree --state nfs-state --nfs {nfs} --metrics {metrics}");
        let mut command = scratch.program(command[0], &[&command[1..], &words(&line)].concat());
        command.stderr(fs::File::create(scratch.path("log")).expect("create"));
        let server = scratch.started(command, "ready metrics");
        (server.said.clone(), fs::read_to_string(scratch.path("log")).expect("read"))
    };
    let tombolo = env!("CARGO_BIN_EXE_tombolo");
    let warnings = [
        "serving all clients that reach this address",
        "metrics are readable by anyone who can reach this address",
    ];
    // In a network namespace that nothing else can reach.
    let (ready, log) = said(&["unshare", "--net", tombolo], ":2049", ":9464");
    assert!(ready.contains(" interfaces=all\n") && ready.contains("http://0.0.0.0:9464/"), "{ready}");
    assert!(warnings.iter().all(|warning| log.contains(warning)), "{log}");
    let (ready, log) = said(&[tombolo], "0", "0");
    assert!(ready.contains(" interfaces=loopback\n") && ready.contains("http://127.0.0.1:"), "{ready}");
    assert!(!warnings.iter().any(|warning| log.contains(warning)), "{log}");
}

#[test]
fn the_configuration_speaks_where_the_command_line_is_silent() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("etc")).expect("mkdir");
    let text = "dir = ['../tree=/one']\nvirtiofs = ['../vm.sock,tag=conf']\nshm = ['../link.sock']\ndoorbell = 'event'\n\
                read-only = true\ncontrol = '../c.sock'\n";
    fs::write(scratch.path("etc/tombolo.toml"), text).expect("write");
    let server = scratch.serve("serve --config etc/tombolo.toml --virtiofs flag.sock,tag=flag");
    server.says(&["flag.sock tag=flag export=/one"]);
    assert!(!scratch.path("vm.sock").exists(), "the command line counts first");
    assert_eq!(scratch.run("cat shm:link.sock/one/file").out, "content\n");
    assert_eq!(scratch.top_of("c.sock")["status"]["exports"][0]["read_only"], true);
    server.stop();
}

#[test]
fn vmms_of_a_group_are_let_in() {
    let scratch = Scratch::new();
    let group = scratch.path("tree").metadata().expect("stat").gid();
    let words = format!("serve tree --virtiofs vm.sock --socket-group {group}");
    let facts = |name: &str| {
        let metadata = scratch.path(name).metadata().expect("a socket");
        (metadata.gid(), metadata.permissions().mode() & 0o777)
    };
    let server = scratch.serve(&words);
    assert_eq!(facts("vm.sock"), (group, 0o660));
    drop(server);
    let _server = scratch.serve(format!("{words} --socket-mode 0606"));
    assert_eq!(facts("vm.sock"), (group, 0o606));
    for (option, value, code, said) in [
        ("--socket-group", "no-such-group", 1, "no such group"),
        ("--socket-mode", "0999", 2, "in octal"),
        ("--socket-mode", "17777", 2, "in octal"),
    ] {
        scratch.run(format!("serve tree --virtiofs b {option} {value}")).failed(code, &[said]);
    }
    scratch.run("serve tree --nfs 0 --socket-group root").failed(2, &["--virtiofs SOCKET"]);
}

#[test]
fn inherited_socket_is_served_and_not_removed() {
    let scratch = Scratch::new();
    let listener = UnixListener::bind(scratch.path("parent.sock")).expect("bind");
    let mut command = scratch.program("sh", &[]);
    let serve = format!("exec {} serve tree --fd 3,tag=src 3<&0 </dev/null", env!("CARGO_BIN_EXE_tombolo"));
    command.args(["-c", &serve]).stdin(OwnedFd::from(listener));
    let server = scratch.started(command, "ready control");
    server.says(&[format!("ready virtiofs {} tag=src export=/tree\n", scratch.text("parent.sock"))]);
    let mut vmm = UnixStream::connect(scratch.path("parent.sock")).expect("connect");
    // GET_FEATURES, which a vhost-user back end answers.
    vmm.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).expect("write");
    vmm.read_exact(&mut [0; 20]).expect("an answer");
    server.stop();
    assert!(scratch.path("parent.sock").exists());
    scratch
        .run("serve tree --fd 700")
        .failed(1, &["descriptor 700", "Bad file descriptor", "listening UNIX stream socket"]);
    // A nonexistent descriptor must not refer to a socket created meanwhile.
    for number in 3..9_u8 {
        let serve = format!("5 {} serve tree --virtiofs vm.sock,tag=vm", env!("CARGO_BIN_EXE_tombolo"));
        let line = format!("{serve} --nfs 0 --fd {number}");
        let ran = Ran::new(scratch.program("timeout", &words(&line)));
        ran.failed(1, &[&format!("descriptor {number}"), "Bad file descriptor"]);
    }
    scratch.run("serve tree --fd vm.sock").failed(2, &["FD[,tag=TAG]"]);
}

#[test]
fn a_server_stops_although_a_client_is_connected() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --virtiofs vm.sock");
    let _vmm = UnixStream::connect(scratch.path("vm.sock")).expect("connect");
    let _tool = UnixStream::connect(scratch.path("run/tombolo/tree.sock")).expect("connect");
    server.stop();
}

#[test]
fn top_follows_a_server_to_its_end() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --virtiofs vm.sock");
    let mut top =
        scratch.tombolo("top -n 0.1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("top");
    let shown = BufReader::new(top.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut tables = shown.filter(|line| line.contains("operation"));
    assert!(tables.nth(1).is_some(), "it goes on");
    server.stop();
    let output = top.wait_with_output().expect("its end");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("the server at") && said.lines().count() == 1, "{said}");
}

#[test]
fn top_scrolls_and_ends_by_keys() {
    let scratch = Scratch::new();
    let words = "serve tree mnt --virtiofs a,export=/tree --virtiofs b,export=/mnt";
    let _server = scratch.serve(words);
    // script(1) provides a terminal of five rows.
    let command = format!(
        "stty rows 5 cols 70; {} top -n 3600; stty -a | grep -o ' icanon'",
        env!("CARGO_BIN_EXE_tombolo")
    );
    let mut script = scratch.program("script", &["-qec", &command, "/dev/null"]);
    let mut top = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script(1)");
    let mut keys = top.stdin.take().expect("its keyboard");
    let mut screen = top.stdout.take().expect("its screen");
    let mut shown = String::new();
    let mut see = |words: &str| {
        let mut bytes = [0; 4096];
        while !shown.contains(words) {
            let count = screen.read(&mut bytes).expect("read");
            assert!(count > 0, "{words:?} is not in {shown:?}");
            shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        // Later output may have arrived too.
        let end = shown.find(words).expect("seen") + words.len();
        shown.drain(..end);
    };
    see("lines 1-4 of ");
    keys.write_all(b"j").expect("press");
    see("lines 2-5 of ");
    keys.write_all(b"q").expect("press");
    // Restored.
    see("\u{1b}[?1049l");
    see(" icanon");
    assert_eq!(top.wait().expect("its end").code(), Some(0));
}

#[test]
fn a_tool_that_hangs_up_early_is_no_error() {
    let scratch = Scratch::new();
    let _server = scratch.serve("serve tree --virtiofs vm.sock");
    let mut top =
        scratch.tombolo("top -n 0.1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("top");
    drop(top.stdout.take());
    assert_eq!(top.wait().expect("its end").code(), Some(0));
}

#[test]
fn a_control_directory_of_others_is_refused() {
    let scratch = Scratch::new();
    let dir = scratch.path("run/tombolo");
    fs::create_dir(&dir).expect("mkdir");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
    scratch.run("serve tree --virtiofs vm.sock").failed(1, &["no other user can enter", "--control SOCKET"]);
    assert!(!scratch.path("vm.sock").exists());
}

#[test]
fn a_tool_of_another_user_is_turned_away() {
    let scratch = Scratch::new();
    if !scratch.path("tree").metadata().is_ok_and(|metadata| metadata.uid() == 0) {
        tombolo_skip::skip!("acting as another user needs root");
    }
    let _server = scratch.serve("serve tree --virtiofs vm.sock --control c.sock");
    // The operator has made the directory accessible to all by mistake.
    let program = scratch.copy_of_program();
    for (name, mode) in [(".", 0o755), ("c.sock", 0o666), ("tombolo", 0o755)] {
        fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let mut nobody = scratch.program(&program, &["top", "--once", "c.sock"]);
    nobody.uid(65534).gid(65534);
    Ran::new(nobody).failed(1, &["only the server's user and root may connect"]);
    scratch.run("top --once c.sock").succeeded();
}
