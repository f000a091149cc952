//! What a guest that breaks the rules leaves in the log: one line for the queue that it broke, and not one more.

use std::borrow::Cow;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tombolo_host_vhost::{Chain, Device, QueueIndex, Server, Settings};
use tombolo_vhost_driver::{Driver, DriverSettings};

struct Silent;

impl Device for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    fn config(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn queue_count(&self) -> u16 {
        2
    }

    fn handle(&self, _queue: QueueIndex, chain: Chain) {
        chain.complete(0);
    }
}

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

#[test]
fn a_broken_queue_is_one_line_in_the_log() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("silent.sock");
    let make = |_| {
        let device: Arc<dyn Device> = Arc::new(Silent);
        Ok(device)
    };
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Server::start(listener, Settings::default(), Box::new(make)).unwrap();
    let settings = DriverSettings { queues: 2, ..DriverSettings::default() };
    let (driver, mut queues) = Driver::connect(&socket, settings).unwrap();
    let hostile = &mut queues[1];
    hostile.set_descriptor(0, u64::MAX, 4096, 0, 0).unwrap();
    for _ in 0..10 {
        hostile.offer(0).unwrap();
        hostile.kick_always();
    }
    assert!(hostile.wait_broken(Duration::from_secs(10)));
    for _ in 0..10 {
        hostile.kick_always();
    }
    drop(driver);
    while server.guest_count() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    server.stop();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{text}");
    for part in ["queue stopped", "silent", "queue=1", "guest=0", "0xffffffffffffffff"] {
        assert!(warnings[0].contains(part), "{part} is missing in {}", warnings[0]);
    }
}
