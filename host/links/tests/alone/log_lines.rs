//! Log messages about hostile peers at the link socket: one line each.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::server::{Peer, Refusal, Server, Service, Session};
use tombolo_sys::{Errno, packet};

/// The log, in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Nothing;

impl Service for Nothing {
    fn open(&self, _: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Err(Refusal::NoSuchExport)
    }
}

#[test]
fn a_stranger_is_one_line_in_the_log() {
    let _alone = crate::alone();
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links");
    let options = ListenOptions { hello_timeout: Duration::from_millis(50), ..ListenOptions::default() };
    let listener = LinkListener::start(&path, Arc::new(Server::new(Arc::new(Nothing))), options).unwrap();

    let silent = packet::connect(&path).unwrap();
    wait_for_answer(&silent);
    let nonsense = packet::connect(&path).unwrap();
    packet::send(&nonsense, b"\x1b[2J\nnonsense that would steer a terminal", &[nonsense.as_fd()]).unwrap();
    wait_for_answer(&nonsense);
    drop(packet::connect(&path).unwrap());
    let gone = Instant::now() + Duration::from_secs(30);
    while lines(&log).len() < 3 && Instant::now() < gone {
        std::thread::yield_now();
    }
    drop(listener);

    let lines = lines(&log);
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(lines[0].contains("no hello received in time"), "{}", lines[0]);
    assert!(lines[1].contains("not a link message"), "{}", lines[1]);
    assert!(lines[2].contains("disconnected without a hello"), "{}", lines[2]);
    assert!(lines.iter().all(|line| line.contains(&format!("pid={}", std::process::id()))), "{lines:#?}");
}

fn lines(log: &Log) -> Vec<String> {
    String::from_utf8(log.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
}

fn wait_for_answer(socket: &std::os::fd::OwnedFd) {
    let end = Instant::now() + Duration::from_secs(30);
    let mut buffer = [0; 512];
    while let Err(Errno::AGAIN | Errno::CONNRESET) = packet::receive(socket, &mut buffer) {
        assert!(Instant::now() < end, "no answer");
        std::thread::yield_now();
    }
}
