//! Arbitrary messages of a kept front end, with descriptors, to a server that is replaced in between: the
//! connection ends when the front end disconnects, and another guest is not affected.

use std::cell::RefCell;
use std::io::{PipeReader, PipeWriter, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::SessionId;
use tombolo_core::block::BlockDevice;
use tombolo_front_virtio_blk::{Options, VirtioBlk};
use tombolo_host_vhost::keeper::{Keeper, ServerSocket, Servers, Settings as KeeperSettings};
use tombolo_host_vhost::{Device, Server, Settings};
use tombolo_sys::memfd;
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, FrontEnd, GuestBuffer, message};

const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of messages in a run.
const MESSAGES_MAX: usize = 48;
/// Size of guest memory, in-flight areas and logs.
const MEMORY_BYTES: u64 = 1 << 20;

/// Message number that replaces the server.
const REPLACE: u8 = 0xff;
/// Message number of raw bytes.
const RAW: u8 = 0xfe;

/// Runs the target. A message is its number, a byte of flags (number and kind of descriptors,
/// acknowledgement), the length of its body, and the body.
pub fn run(bytes: &[u8]) {
    thread_local! {
        static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
    }
    KEPT.with_borrow_mut(|kept| kept.get_or_insert_with(Kept::new).run(bytes));
}

struct Kept {
    socket: PathBuf,
    private: UnixListener,
    servers: Arc<Servers>,
    server: Option<Server>,
    disk: Arc<dyn BlockDevice>,
    /// Descriptors of messages: memory, and the two ends of a pipe to kick and to call by.
    memory: OwnedFd,
    pipe: (PipeReader, PipeWriter),
    guest: Option<Guest>,
}

/// The other guest.
struct Guest {
    _driver: Driver,
    queue: DriverQueue,
    header: GuestBuffer,
    data: GuestBuffer,
    status: GuestBuffer,
    turn: u8,
}

impl Kept {
    fn new() -> Kept {
        static ABORTS: Once = Once::new();
        // A panic of any other thread aborts the process.
        ABORTS.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                before(panic);
                std::process::abort();
            }));
        });
        let socket = std::env::temp_dir().join(format!("tombolo-fuzz-keeper.{}", std::process::id()));
        // Left by a process with the same id.
        let _ = std::fs::remove_file(&socket);
        let place = ServerSocket::beside(&socket).expect("a place");
        let private = place.listener().expect("a listener");
        let servers = Arc::new(Servers::default());
        let public = UnixListener::bind(&socket).expect("bind");
        let settings = KeeperSettings { guests_max: 8, refuses_front_end_areas: false };
        Keeper::start(public, place, servers.clone(), settings).expect("a keeper");
        let disk = Arc::new(MemoryDisk::new(8 << 10).expect("a disk"));
        let memory = memfd::create("fuzz-keeper", MEMORY_BYTES).expect("memory");
        let pipe = std::io::pipe().expect("a pipe");
        let mut kept = Kept { socket, private, servers, server: None, disk, memory, pipe, guest: None };
        kept.start();
        kept.guest = Some(Guest::new(&kept.socket));
        kept
    }

    fn start(&mut self) {
        let disk = self.disk.clone();
        let make = move |_| {
            let options = Options { name: "fuzz".into(), serial: "fuzz".into(), queues: 2 };
            Ok(Arc::new(VirtioBlk::new(disk.clone(), options, SessionId(1))?) as Arc<dyn Device>)
        };
        let listener = self.private.try_clone().expect("a descriptor");
        let settings = Settings { drain_timeout: Duration::from_millis(10), ..Settings::default() };
        self.server = Some(Server::start(listener, settings, Box::new(make)).expect("a server"));
        self.servers.started();
    }

    fn replace(&mut self) {
        self.server = None;
        self.servers.died();
        self.start();
    }

    fn run(&mut self, bytes: &[u8]) {
        let stream = UnixStream::connect(&self.socket).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut front = FrontEnd::new(stream);
        let mut rest = bytes;
        for _ in 0..MESSAGES_MAX {
            let Some((&[kind, flags, len], more)) = rest.split_first_chunk::<3>() else { break };
            let (body, behind) = more.split_at(more.len().min(usize::from(len)));
            rest = behind;
            if kind == REPLACE {
                self.replace();
                continue;
            }
            let header = if kind == RAW {
                body.to_vec()
            } else {
                message(kind.into(), 1 | u32::from(flags & 8), body)
            };
            // The server may have disconnected.
            if front.send_raw(&header, &self.descriptors(flags)).is_err() {
                break;
            }
        }
        let stream = front.stream();
        let _ = stream.shutdown(Shutdown::Write);
        let mut answers = Vec::new();
        let end = stream.take(1 << 20).read_to_end(&mut answers);
        assert!(
            !end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
            "it goes on without its front end"
        );
        self.guest.as_mut().expect("a guest").is_served();
    }

    fn descriptors(&self, flags: u8) -> Vec<BorrowedFd<'_>> {
        let descriptor = match flags >> 4 & 3 {
            0 => self.memory.as_fd(),
            1 => self.pipe.0.as_fd(),
            _ => self.pipe.1.as_fd(),
        };
        vec![descriptor; usize::from(flags & 7)]
    }
}

impl Guest {
    fn new(socket: &std::path::Path) -> Guest {
        let (driver, mut queues) = Driver::connect(socket, DriverSettings::default()).expect("a guest");
        let mut queue = queues.remove(0);
        let mut alloc = |len| queue.alloc(len).expect("guest memory");
        let (header, data, status) = (alloc(16), alloc(512), alloc(1));
        Guest { _driver: driver, queue, header, data, status, turn: 0 }
    }

    /// Checks that it reads back what it wrote.
    fn is_served(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        let written = [self.turn; 512];
        self.queue.write(self.data, &written);
        self.ask(1, true);
        self.queue.write(self.data, &[0; 512]);
        self.ask(0, false);
        let mut read = [0; 512];
        self.queue.read(self.data, &mut read);
        assert_eq!(read, written);
    }

    fn ask(&mut self, kind: u128, writes: bool) {
        self.queue.write(self.header, &kind.to_le_bytes());
        self.queue.write(self.status, &[0xee]);
        let data = if writes { self.data.readable() } else { self.data.writable() };
        self.queue.submit(&[self.header.readable(), data, self.status.writable()]).expect("room");
        self.queue.wait_used(PATIENCE).expect("an answer");
        let mut status = [0xee];
        self.queue.read(self.status, &mut status);
        assert_eq!(status, [0]);
    }
}
