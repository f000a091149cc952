//! Successive servers of a front end that cannot reconnect and does not support in-flight tracking.

use crate::device::{Client, Counts, Echo, HOLD, RELEASE, eventually, send};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tombolo_host_vhost::keeper::{Keeper, ServerSocket, Servers, Settings as KeeperSettings};
use tombolo_host_vhost::{Device, Server, Settings};
use tombolo_vhost_driver::{Driver, DriverSettings, MemoryEntry, message, request};

/// Protocol feature bit ("Protocol features").
const IN_FLIGHT: u64 = 1 << 12;

/// A keeper's socket, and the server behind it.
struct Kept {
    socket: PathBuf,
    private: UnixListener,
    servers: Arc<Servers>,
    server: Option<Server>,
    counts: Arc<Counts>,
    repeats: bool,
    settings: Settings,
    _folder: TempDir,
}

impl Kept {
    fn new(repeats: bool) -> Kept {
        Kept::with(repeats, false)
    }

    fn with(repeats: bool, refuses_front_end_areas: bool) -> Kept {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("public.sock");
        let place = ServerSocket::beside(&socket).unwrap();
        let private = place.listener().unwrap();
        let servers = Arc::new(Servers::default());
        let public = UnixListener::bind(&socket).unwrap();
        let settings = KeeperSettings { guests_max: 2, refuses_front_end_areas };
        Keeper::start(public, place, servers.clone(), settings).unwrap();
        let (counts, server) = (Arc::default(), None);
        let settings = Settings { has_fd_store: refuses_front_end_areas, ..Settings::default() };
        let mut kept = Kept { socket, private, servers, server, counts, repeats, settings, _folder: folder };
        kept.start();
        kept
    }

    /// Returns a keeper with a guest.
    fn in_use(repeats: bool) -> (Kept, Driver, Client) {
        let kept = Kept::new(repeats);
        let mut driver = kept.driver();
        let client = Client::new(driver.start_queue(0, 0).unwrap());
        (kept, driver, client)
    }

    fn start(&mut self) {
        let (counts, repeats) = (self.counts.clone(), self.repeats);
        let make = move |_guest| Ok(Arc::new(Echo::counted(counts.clone(), repeats)) as Arc<dyn Device>);
        let listener = self.private.try_clone().unwrap();
        self.server = Some(Server::start(listener, self.settings, Box::new(make)).unwrap());
        self.servers.started();
    }

    /// Simulates kill -9: requests under way are not answered.
    fn kill(&mut self) {
        self.server = None;
        self.servers.died();
    }

    fn replace(&mut self) {
        self.kill();
        self.start();
    }

    fn driver(&self) -> Driver {
        let stream = UnixStream::connect(&self.socket).unwrap();
        let mut driver = Driver::open(stream, DriverSettings::default()).unwrap();
        driver.share_memory().unwrap();
        driver
    }

    fn handled(&self) -> usize {
        self.counts.handled.load(Ordering::SeqCst)
    }

    fn handles(&self, count: usize) -> bool {
        eventually(|| self.handled() >= count) && self.handled() == count
    }
}

#[test]
fn next_server_answers_requests_of_killed_one_once() {
    let (mut kept, _driver, mut client) = Kept::in_use(true);
    assert!(client.echoes());
    for round in 1..=5 {
        let held = [send(&mut client.queue, HOLD), send(&mut client.queue, HOLD)];
        assert!(kept.handles(round * 5 - 2), "{round}: {}", kept.handled());
        kept.replace();
        assert!(kept.handles(round * 5), "{round}: {}", kept.handled());
        let release = send(&mut client.queue, RELEASE);
        let answered: Vec<u16> = (0..3).map(|_| client.receive().head).collect();
        // The device answers in reverse order: the requests were repeated in their order.
        assert_eq!(answered, [release, held[1], held[0]]);
    }
    assert!(client.echoes());
    assert!(client.queue.try_used().is_none());
}

#[test]
fn request_without_server_waits_for_the_next() {
    let (mut kept, _driver, mut client) = Kept::in_use(true);
    kept.kill();
    let head = client.send(b"echo");
    assert!(client.queue.wait_used(Duration::from_millis(20)).is_err());
    kept.start();
    assert_eq!(client.receive().head, head);
}

#[test]
fn stopped_queue_stays_stopped_with_next_server() {
    let (mut kept, mut driver, mut client) = Kept::in_use(true);
    assert!(client.echoes() && client.echoes());
    assert_eq!(driver.stop_queue(0).unwrap(), 2);
    kept.replace();
    client.send(b"echo");
    // The next message is answered by the new server, which has the full state by then.
    driver.front.ask_u64(request::GET_FEATURES).unwrap();
    assert!(client.queue.wait_used(Duration::from_millis(500)).is_err(), "a stopped queue serves nothing");
    assert_eq!(driver.stop_queue(0).unwrap(), 2);
    assert_eq!(kept.handled(), 2);
    let mut client = Client::new(driver.start_queue(0, 2).unwrap());
    assert!(client.echoes());
}

#[test]
fn next_server_gets_the_current_memory_regions() {
    let mut kept = Kept::new(true);
    let mut driver = kept.driver();
    let file = driver.memory_file().try_clone().unwrap();
    let entry = |at: u64| MemoryEntry { guest_address: at, size: 4096, user_address: at, file_offset: 0 };
    for at in [0x1000, 0x9000] {
        driver.front.change_memory(request::ADD_MEM_REG, entry(at), &[file.as_fd()]).unwrap();
    }
    driver.front.change_memory(request::REM_MEM_REG, entry(0x1000), &[]).unwrap();
    let mut client = Client::new(driver.start_queue(0, 0).unwrap());
    kept.replace();
    assert!(client.echoes());
    // A duplicate region would be refused, and so would the removal of a missing one.
    driver.front.change_memory(request::ADD_MEM_REG, entry(0x1000), &[file.as_fd()]).unwrap();
    driver.front.change_memory(request::REM_MEM_REG, entry(0x9000), &[]).unwrap();
    assert!(client.echoes());
}

#[test]
fn next_server_continues_the_dirty_log() {
    let (mut kept, mut driver, mut client) = Kept::in_use(true);
    driver.share_log().unwrap();
    driver.set_logging(true, &[&client.queue]).unwrap();
    let answer = client.answer.address;
    assert!(client.echoes() && driver.dirty_pages().contains(&answer));
    for _ in 0..2 {
        driver.share_log().unwrap();
        kept.replace();
        assert!(client.echoes() && driver.dirty_pages().contains(&answer));
        assert!(driver.dirty_pages().contains(&(client.queue.used_ring().address & !4095)));
    }
    driver.set_logging(false, &[&client.queue]).unwrap();
    let ended = driver.take_dirty_pages().unwrap();
    kept.replace();
    assert!(client.echoes() && driver.dirty_pages().is_empty() && !ended.is_empty());
}

/// Runs a server that handles messages until one of this kind arrives, and dies.
fn die_over(private: &UnixListener, fatal: u32) {
    private.set_nonblocking(false).unwrap();
    let (mut stream, _) = private.accept().unwrap();
    loop {
        let mut header = [0; 12];
        stream.read_exact(&mut header).unwrap();
        let [kind, flags, len] =
            [0, 4, 8].map(|at| u32::from_le_bytes(header[at..at + 4].try_into().unwrap()));
        let mut body = vec![0; len as usize];
        stream.read_exact(&mut body).unwrap();
        let answer = match kind {
            kind if kind == fatal => return,
            request::GET_FEATURES => 1 << 32 | 1 << 30 | 3 << 28,
            // MQ, REPLY_ACK, BACKEND_REQ, INFLIGHT_SHMFD, CONFIGURE_MEM_SLOTS.
            request::GET_PROTOCOL_FEATURES => 1 | 1 << 3 | 1 << 5 | 1 << 12 | 1 << 15,
            _ if flags & 1 << 3 != 0 => 0,
            _ => continue,
        };
        stream.write_all(&message(kind, 1 | 1 << 2, &u64::to_le_bytes(answer))).unwrap();
    }
}

#[test]
fn message_that_killed_a_server_is_repeated_once() {
    let mut kept = Kept::new(true);
    kept.kill();
    let private = kept.private.try_clone().unwrap();
    let fake = thread::spawn(move || die_over(&private, request::ADD_MEM_REG));
    kept.servers.started();
    let mut driver = kept.driver();
    thread::scope(|scope| {
        let kept = &mut kept;
        scope.spawn(move || {
            fake.join().unwrap();
            kept.replace();
        });
        let file = driver.memory_file().try_clone().unwrap();
        let entry = MemoryEntry { guest_address: 0x1000, size: 4096, user_address: 0x1000, file_offset: 0 };
        // A repeated message would be refused.
        driver.front.change_memory(request::ADD_MEM_REG, entry, &[file.as_fd()]).unwrap();
    });
    assert!(Client::new(driver.start_queue(0, 0).unwrap()).echoes());
}

#[test]
fn unrepeatable_device_is_not_kept_alive() {
    let (mut kept, driver, mut client) = Kept::in_use(false);
    assert!(client.echoes());
    kept.replace();
    assert_eq!(driver.front.stream().read(&mut [0]).unwrap(), 0, "cut off");
    // The next guest is served.
    let mut driver = kept.driver();
    assert!(Client::new(driver.start_queue(0, 0).unwrap()).echoes());
}

#[test]
fn front_end_area_is_refused_by_strict_keeper() {
    for refuses_front_end_areas in [false, true] {
        let mut kept = Kept::with(true, refuses_front_end_areas);
        let mut driver = kept.driver();
        let offered = driver.front.ask_u64(request::GET_PROTOCOL_FEATURES).unwrap();
        assert_eq!(offered & IN_FLIGHT == 0, refuses_front_end_areas);
        let taken = driver.keep_requests(1 << 20);
        assert_eq!(taken.is_err(), refuses_front_end_areas, "{taken:?}");
        // The server's own area is used all the same.
        let mut driver = kept.driver();
        let mut client = Client::new(driver.start_queue(0, 0).unwrap());
        kept.replace();
        assert!(client.echoes());
    }
}

#[test]
fn guest_refused_by_running_server_is_disconnected() {
    let kept = Kept::new(true);
    let (mut bad, mut good) = (kept.driver(), kept.driver());
    let mut client = Client::new(good.start_queue(0, 0).unwrap());
    bad.front.send(request::SET_VRING_NUM, &3u64.to_le_bytes(), &[]).unwrap();
    assert_eq!(bad.front.stream().read(&mut [0]).unwrap(), 0, "cut off");
    assert!(client.echoes());
}

/// Otherwise the keeper would take the running server for a successor, and the guest would be refused twice.
#[test]
fn connection_left_by_dead_server_belongs_to_the_next() {
    let mut kept = Kept::new(true);
    kept.kill();
    kept.servers.started();
    let mut bad = thread::scope(|scope| {
        let socket = kept.socket.clone();
        let bad = scope.spawn(move || {
            let stream = UnixStream::connect(socket).unwrap();
            Driver::open(stream, DriverSettings::default()).unwrap()
        });
        poll(&mut [PollFd::new(&kept.private, PollFlags::IN)], None).unwrap();
        kept.servers.died();
        kept.start();
        bad.join().unwrap()
    });
    bad.front.send(request::SET_VRING_NUM, &3u64.to_le_bytes(), &[]).unwrap();
    assert_eq!(bad.front.stream().read(&mut [0]).unwrap(), 0, "cut off");
    assert_eq!(kept.counts.dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn malformed_message_ends_only_its_connection() {
    let (kept, _driver, mut client) = Kept::in_use(true);
    let mut bad = UnixStream::connect(&kept.socket).unwrap();
    bad.write_all(&[0xff; 64]).unwrap();
    // Possibly a reset, because it has sent more than was read.
    assert!(matches!(bad.read(&mut [0]), Ok(0) | Err(_)));
    assert!(client.echoes());
}
