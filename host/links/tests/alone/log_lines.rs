//! Log messages about hostile peers at the link socket: one line each.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::test_host::{TestService, eventually};
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::server::Server;
use tombolo_sys::{Errno, packet};
use tracing_subscriber::fmt::MakeWriter;

/// The log, in memory.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

#[test]
fn a_stranger_is_one_line_in_the_log() {
    let _alone = crate::alone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| LOG.make_writer()).init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links");
    let options = ListenOptions { hello_timeout: Duration::from_millis(50), ..ListenOptions::default() };
    let server = Arc::new(Server::new(Arc::new(TestService(Arc::default()))));
    let listener = LinkListener::start(&path, server, options).unwrap();

    let silent = packet::connect(&path).unwrap();
    wait_for_answer(&silent);
    let nonsense = packet::connect(&path).unwrap();
    packet::send(&nonsense, b"\x1b[2J\nnonsense that would steer a terminal", &[nonsense.as_fd()]).unwrap();
    wait_for_answer(&nonsense);
    drop(packet::connect(&path).unwrap());
    eventually("three lines", || lines().len() >= 3);
    drop(listener);

    let lines = lines();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(lines[0].contains("no hello received in time"), "{}", lines[0]);
    assert!(lines[1].contains("not a link message"), "{}", lines[1]);
    assert!(lines[2].contains("disconnected without a hello"), "{}", lines[2]);
    assert!(lines.iter().all(|line| line.contains(&format!("pid={}", std::process::id()))), "{lines:#?}");
}

fn lines() -> Vec<String> {
    String::from_utf8(LOG.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
}

fn wait_for_answer(socket: &std::os::fd::OwnedFd) {
    eventually("an answer", || {
        !matches!(packet::receive(socket, &mut [0; 512]), Err(Errno::AGAIN | Errno::CONNRESET))
    });
}
