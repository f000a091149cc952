//! Ends of links, on either side.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tombolo_host_links::EndReason;
use tombolo_host_links::listen::ListenOptions;

use crate::listener::common::{TestHost, found, until, works};

const CHILD: &str = "LINK_DOOR_SOCKET";

/// A client in a process of its own, to be killed: this test itself, which does nothing unless it is given a
/// socket to connect to.
#[test]
fn a_client_of_its_own() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let watcher = tombolo_host_links::control_socket::Watcher::start().expect("a watcher");
    let connection =
        tombolo_host_links::connect::connect(path.as_ref(), &TestHost::options("/src")).expect("a link");
    let (line, _control_socket) =
        connection.start(&watcher, "child", tombolo_shm::doorbell::Mode::Event).expect("a line");
    assert!(works(&line));
    eprintln!("ready");
    std::thread::park();
}

fn child(host: &TestHost) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "listener::endings::a_client_of_its_own", "--nocapture"])
        .env(CHILD, &host.path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child");
    let stderr = child.stderr.take().expect("piped");
    let ready = BufReader::new(stderr).lines().map_while(Result::ok).any(|line| line.contains("ready"));
    assert!(ready, "the child has no link");
    child
}

#[test]
fn client_death_is_detected() {
    let host = TestHost::new(ListenOptions::default());
    let (line, _control_socket) = host.link();
    let mut child = child(&host);
    assert_eq!(host.listener.guests().len(), 2);
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_eq!(&*host.wait_closed(), format!("test:{}", child.id()));
    until("the dead one is not listed", || host.listener.guests().len() == 1);
    assert!(works(&line));
}

#[test]
fn a_client_that_leaves_takes_its_session_along() {
    let host = TestHost::new(ListenOptions::default());
    let (line, control_socket) = host.link();
    drop(control_socket);
    assert_eq!(&*host.wait_closed(), format!("test:{}", std::process::id()));
    assert!(line.is_lost());
    assert!(line.call(3, [0; 48], |_| ()).wait().is_err());
}

#[test]
fn a_server_that_ends_says_goodbye() {
    let host = TestHost::new(ListenOptions::default());
    let links = [host.link(), host.link()];
    let TestHost { listener, path, watcher: _watcher, .. } = host;
    drop(listener);
    for (line, _) in &links {
        until("the line is lost", || line.is_lost());
        assert_eq!(line.end(), Some(EndReason::Left));
    }
    assert!(!path.exists());
}

/// The server of a killed process sends no goodbye, which must be distinguished.
#[test]
fn socket_end_without_goodbye_is_death() {
    let host = TestHost::new(ListenOptions::default());
    let dir = tempfile::tempdir().expect("a directory");
    let between = dir.path().join("between");
    let listener = tombolo_sys::packet::listen(&between, 0o600, 1).expect("listen");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            tombolo_host_links::connect::connect(&between, &TestHost::options("/src"))
                .expect("a link by way of another")
        });
        // Completes the handshake, and dies.
        let ours = found("a connection", || tombolo_sys::packet::accept(&listener).ok());
        let theirs = tombolo_sys::packet::connect(&host.path).expect("the server");
        hand_on(&ours, &theirs);
        hand_on(&theirs, &ours);
        let connection = client.join().expect("join");
        let (line, _control_socket) =
            connection.start(&host.watcher, "link", tombolo_shm::doorbell::Mode::Event).expect("a line");
        assert!(works(&line));
        drop((ours, theirs));
        until("the line is lost", || line.is_lost());
        assert_eq!(line.end(), Some(EndReason::Died));
        host.wait_closed();
    });
}

fn hand_on(from: &std::os::fd::OwnedFd, to: &std::os::fd::OwnedFd) {
    use std::os::fd::AsFd;
    let mut buffer = [0; 1024];
    let packet = found("a message", || tombolo_sys::packet::receive(from, &mut buffer).ok());
    let descriptors: Vec<_> = packet.descriptors.iter().map(AsFd::as_fd).collect();
    tombolo_sys::packet::send(to, &buffer[..packet.len], &descriptors).expect("send");
}

#[test]
fn violating_client_is_cut_with_reason() {
    let host = TestHost::new(ListenOptions::default());
    let (good, _good_control_socket) = host.link();
    let (line, _control_socket) = host.link();
    assert!(line.call(9, [0; 48], |_| ()).wait().is_err());
    host.wait_closed();
    until("the line is lost", || line.is_lost());
    let why = line.end().expect("lost").to_string();
    assert!(why.contains("the peer cut the link: kind 9"), "{why}");
    assert!(works(&good));
    until("it is not listed any more", || host.listener.guests().len() == 1);
}
