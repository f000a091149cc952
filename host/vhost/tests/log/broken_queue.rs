//! Log of a protocol violation: exactly one line for the affected queue.

use std::time::Duration;

use super::{Log, serve};
use tombolo_vhost_driver::{Driver, DriverSettings};

#[test]
fn a_broken_queue_is_one_line_in_the_log() {
    let log = Log::begin();
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("silent.sock");
    let server = serve(&socket);
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
    let warnings = log.lines("WARN");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["queue stopped", "silent", "queue=1", "guest=0", "0xffffffffffffffff"] {
        assert!(warnings[0].contains(part), "{part} is missing in {}", warnings[0]);
    }
}
