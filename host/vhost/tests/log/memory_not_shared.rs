//! A VMM that does not share its guest's memory: the guest hangs, and the log has the remedy for the command
//! line.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use super::{Log, serve, serve_at};
use tombolo_host_vhost::keeper::{Keeper, ServerSocket, Servers, Settings};
use tombolo_vhost_driver::{Driver, DriverSettings, GUEST_BASE, MemoryEntry, request};

const HANGS: &str = "the guest will hang";

/// Starts both queues of a guest with memory at `user_address`, if given.
fn start(socket: &Path, user_address: Option<u64>) -> Driver {
    let settings = DriverSettings { queues: 2, ..DriverSettings::default() };
    let mut driver = Driver::open(UnixStream::connect(socket).unwrap(), settings).unwrap();
    if let Some(user_address) = user_address {
        let size = driver.region().len() as u64;
        let table = [MemoryEntry { guest_address: GUEST_BASE, size, user_address, file_offset: 0 }];
        let file = driver.memory_file().try_clone().unwrap();
        driver.front.set_memory(&table, &[file.as_fd()]).unwrap();
    }
    let at = user_address.unwrap_or(0x7f00_0000_0000);
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    for index in 0..2 {
        let front = &mut driver.front;
        front.post_state(request::SET_VRING_NUM, index.into(), 128).unwrap();
        front.set_vring_addresses(index.into(), [at, at + 0x2000, at + 0x3000], None).unwrap();
        front.set_vring_fd(request::SET_VRING_KICK, index, Some(kick.as_fd())).unwrap();
        front.post_state(request::SET_VRING_ENABLE, index.into(), 1).unwrap();
    }
    driver
}

#[test]
fn unshared_memory_logs_one_line_with_remedy() {
    let log = Log::begin();
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("silent.sock");
    let server = serve(&socket);

    let _shared = start(&socket, Some(tombolo_vhost_driver::USER_BASE));
    assert_eq!(log.lines(HANGS), [""; 0]);
    // This process is the front end, and its heap is private.
    let private = vec![0_u8; 1 << 20];
    let _private = start(&socket, Some(private.as_ptr().addr() as u64 & !4095));
    let _none = start(&socket, None);
    server.stop();

    let hangs = log.lines(HANGS);
    assert_eq!(hangs.len(), 2, "{hangs:?}");
    assert!(hangs[0].contains("privately") && hangs[0].contains("guest=1"), "{}", hangs[0]);
    assert!(hangs[1].contains("shares none of its memory") && hangs[1].contains("guest=2"), "{}", hangs[1]);
    for line in hangs {
        assert!(
            line.contains("memory-backend-memfd,id=mem,size=SIZE,share=on -numa node,memdev=mem"),
            "{line}"
        );
    }
}

#[test]
fn keeper_logs_unshared_memory() {
    let log = Log::begin();
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("kept.sock");
    let place = ServerSocket::beside(&socket).unwrap();
    let server = serve_at(place.listener().unwrap());
    let servers = Arc::new(Servers::default());
    servers.started();
    let settings = Settings { guests_max: 1, refuses_front_end_areas: false };
    Keeper::start(UnixListener::bind(&socket).unwrap(), place, servers, settings).unwrap();
    let private = vec![0_u8; 1 << 20];
    let _private = start(&socket, Some(private.as_ptr().addr() as u64 & !4095));
    server.stop();
    // The server of this test is in the front end's process, so it logs the same; its lines name their guest.
    let hangs = log.lines(HANGS);
    let of_keeper: Vec<_> = hangs.iter().filter(|line| !line.contains("guest=")).collect();
    assert_eq!(of_keeper.len(), 1, "{hangs:?}");
    assert!(of_keeper[0].contains("privately") && of_keeper[0].contains("share=on"), "{}", of_keeper[0]);
    // The keeper outlives the test: its last line must not be in the next test's log.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while log.lines("guest disconnected").is_empty() {
        assert!(std::time::Instant::now() < end, "the keeper does not notice the end of its guest");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
