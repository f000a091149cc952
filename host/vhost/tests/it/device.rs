//! Device under test, and its server.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tombolo_host_vhost::{Chain, ChainLimits, Device, QueueIndex, Server, Settings};
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer, Used};

pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Commands, the first byte of a request. Echoes the request.
pub const ECHO: u8 = b'e';
/// Command that holds the chain until the next `RELEASE`.
pub const HOLD: u8 = b'h';
/// Echoes this request, then, from another thread and in reverse order, all held ones.
pub const RELEASE: u8 = b'r';
/// Drops the chain without a reply.
pub const DROP: u8 = b'd';
/// Echoes after some milliseconds, during which nothing else is handled.
pub const SLOW: u8 = b's';
pub const PANIC: u8 = b'p';

#[derive(Default)]
pub struct Echo {
    pub counts: Arc<Counts>,
    /// `true` if the first queue is not urgent.
    first_can_wait: bool,
    /// `true` if requests of an earlier process are repeated.
    repeats: bool,
}

#[derive(Default)]
pub struct Counts {
    pub handled: AtomicUsize,
    pub dropped: AtomicUsize,
    pub stopped: AtomicUsize,
    /// Held chains.
    pub held: Mutex<Vec<Chain>>,
}

impl Echo {
    pub fn counted(counts: Arc<Counts>, repeats: bool) -> Echo {
        Echo { counts, first_can_wait: false, repeats }
    }
}

impl Device for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn config(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(b"configuration")
    }

    fn offers_config(&self) -> bool {
        false
    }

    fn queue_count(&self) -> u16 {
        2
    }

    fn limits(&self) -> ChainLimits {
        ChainLimits { descriptors_max: 64, bytes_max: 1 << 20 }
    }

    fn is_urgent(&self, queue: QueueIndex) -> bool {
        queue.0 > 0 || !self.first_can_wait
    }

    fn can_migrate(&self) -> bool {
        true
    }

    fn repeats_requests(&self) -> bool {
        self.repeats
    }

    fn handle(&self, _queue: QueueIndex, chain: Chain) {
        self.counts.handled.fetch_add(1, Ordering::SeqCst);
        let mut kind = [0];
        chain.readable.read_at(0, &mut kind);
        match kind[0] {
            HOLD => self.counts.held.lock().unwrap().push(chain),
            DROP => drop(chain),
            SLOW => {
                std::thread::sleep(Duration::from_millis(5));
                echo(chain);
            }
            PANIC => panic!("a device with a bug"),
            RELEASE => {
                let held = std::mem::take(&mut *self.counts.held.lock().unwrap());
                echo(chain);
                std::thread::spawn(move || held.into_iter().rev().for_each(echo));
            }
            _ => echo(chain),
        }
    }

    fn stopped(&self) {
        self.counts.stopped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.counts.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn echo(chain: Chain) {
    let written = chain.readable.copy_to_sink(&chain.writable);
    chain.complete(written);
}

fn short_drain() -> Settings {
    Settings { drain_timeout: Duration::from_millis(500), ..Settings::default() }
}

/// A server of echo devices on its own socket.
pub struct TestHost {
    pub server: Server,
    pub socket: PathBuf,
    pub counts: Arc<Counts>,
    _folder: TempDir,
}

impl TestHost {
    pub fn new() -> TestHost {
        TestHost::with(short_drain())
    }

    pub fn with(settings: Settings) -> TestHost {
        TestHost::of(settings, false, false)
    }

    /// Creates a server of devices that repeat requests left by an earlier process.
    pub fn repeating() -> TestHost {
        TestHost::of(short_drain(), false, true)
    }

    /// Creates a server of devices whose first queue is not urgent.
    pub fn patient(settings: Settings) -> TestHost {
        TestHost::of(settings, true, false)
    }

    fn of(settings: Settings, first_can_wait: bool, repeats: bool) -> TestHost {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("echo.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let make = move |_guest| {
            let echo = Echo { counts: shared.clone(), first_can_wait, repeats };
            let device: Arc<dyn Device> = Arc::new(echo);
            Ok(device)
        };
        let server = Server::start(listener, settings, Box::new(make)).unwrap();
        TestHost { server, socket, counts, _folder: folder }
    }

    pub fn guest(&self, settings: DriverSettings) -> Guest {
        let (driver, queues) = Driver::connect(&self.socket, settings).unwrap();
        let queues = queues.into_iter().map(Client::new).collect();
        Guest { driver, queues }
    }

    /// Connects without memory or queues.
    pub fn connect(&self) -> Driver {
        Driver::open(UnixStream::connect(&self.socket).unwrap(), DriverSettings::default()).unwrap()
    }

    /// Connects with memory, and with an in-flight area if `keeps_requests`.
    pub fn driver(&self, keeps_requests: bool) -> Driver {
        let mut driver = self.connect();
        driver.share_memory().unwrap();
        if keeps_requests {
            driver.keep_requests(8192).unwrap();
        }
        driver
    }

    /// Answers the first held request, as soon as there is one.
    pub fn release_one(&self) {
        assert!(eventually(|| !self.counts.held.lock().unwrap().is_empty()), "nothing is kept");
        echo(self.counts.held.lock().unwrap().remove(0));
    }

    pub fn handled(&self) -> usize {
        self.counts.handled.load(Ordering::SeqCst)
    }

    /// Waits until the devices have seen as many requests.
    pub fn wait_handled(&self, count: usize) {
        assert!(eventually(|| self.handled() >= count), "{} requests of {count}", self.handled());
        assert_eq!(self.handled(), count);
    }
}

/// Waits until a condition holds. Returns `false` after a time-out.
pub fn eventually(holds: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

pub fn memfd(len: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

/// Sends a request of one byte from its own buffers; returns its chain.
pub fn send(queue: &mut DriverQueue, kind: u8) -> u16 {
    let (request, answer) = (queue.alloc(8).unwrap(), queue.alloc(8).unwrap());
    queue.write(request, &[kind]);
    queue.submit(&[request.first(1).readable(), answer.writable()]).unwrap()
}

pub struct Guest {
    pub driver: Driver,
    pub queues: Vec<Client>,
}

impl Guest {
    pub fn echoes(&mut self) -> bool {
        self.queues.iter_mut().all(Client::echoes)
    }
}

/// A queue with a pair of buffers.
pub struct Client {
    pub queue: DriverQueue,
    pub request: GuestBuffer,
    pub answer: GuestBuffer,
}

impl Client {
    pub fn new(mut queue: DriverQueue) -> Client {
        let request = queue.alloc(8192).unwrap();
        let answer = queue.alloc(8192).unwrap();
        Client { queue, request, answer }
    }

    pub fn send(&mut self, bytes: &[u8]) -> u16 {
        self.queue.write(self.request, bytes);
        let request = self.request.first(bytes.len() as u32).readable();
        self.queue.submit(&[request, self.answer.writable()]).unwrap()
    }

    pub fn receive(&mut self) -> Used {
        self.queue.wait_used(TIMEOUT).unwrap()
    }

    /// Returns `true` if a request is echoed.
    pub fn echoes(&mut self) -> bool {
        let question = b"echo, please";
        let head = self.send(question);
        let used = self.receive();
        let mut answer = vec![0; question.len()];
        self.queue.read(self.answer, &mut answer);
        used == Used { head, written: question.len() as u32 } && answer == question
    }
}
