//! The front-end side of vhost-user: a front end and a virtio driver in one process, for tests and
//! measurements.
//!
//! It acts as the virtual machine monitor (messages over the socket, a memfd as guest memory) and as the
//! guest's driver (split virtqueues with event index and indirect descriptors). It shares no code with the
//! serving side except memory regions, so that neither hides the other's mistakes; it can send what no honest
//! guest sends; and it drives any vhost-user server, for example virtiofsd.
//!
//! - [`Driver`], [`DriverSettings`]: connects, negotiates, starts the queues.
//! - [`DriverQueue`]: submits chains and collects answers, by polling or sleeping; `Send`, one thread each.
//! - [`FrontEnd`]: raw messages.
//!
//! Non-goals: a device. The product never depends on this crate, except for its tests.
//!
//! Reading order: this file, `front_end`, `queue`, `dirty_log`.
#![forbid(unsafe_code)]

mod dirty_log;
mod front_end;
mod queue;

pub use front_end::{FrontEnd, MemoryEntry, message, request};
pub use queue::{DriverQueue, GuestBuffer, Part, Used};

use front_end::{
    PROTOCOL_BACKEND_REQ, PROTOCOL_CONFIG, PROTOCOL_IN_FLIGHT, PROTOCOL_LOG, PROTOCOL_MEMORY_SLOTS,
    PROTOCOL_MQ, PROTOCOL_REPLY_ACK,
};
use queue::Layout;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use tombolo_mem::Region;

/// Feature bits of the transport (virtio 1.2, chapter 6; vhost-user for the last).
const FEATURE_INDIRECT: u64 = 1 << 28;
const FEATURE_EVENT_INDEX: u64 = 1 << 29;
const FEATURE_VERSION_1: u64 = 1 << 32;
const FEATURE_PROTOCOL_FEATURES: u64 = 1 << 30;

/// Settings of a driver.
#[derive(Debug, Clone, Copy)]
pub struct DriverSettings {
    /// Virtqueues to start, from the first on.
    pub queues: u16,
    /// Number of entries in each; a power of two.
    pub queue_size: u16,
    /// Guest memory per queue for rings and buffers, in bytes; a multiple of the page size.
    pub queue_memory_bytes: usize,
    /// `true`: negotiate the event index.
    pub event_index: bool,
    /// `true`: negotiate and use indirect descriptors.
    pub indirect: bool,
    /// Waiting by sleeping (on an eventfd, as for a guest's interrupt) or by polling the used ring.
    pub wait: Wait,
    /// Feature bits of the device to accept, where offered.
    pub device_features: u64,
}

/// Method of waiting for answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Poll the used ring continuously, without interrupts.
    Poll,
    /// Sleep until interrupted.
    Event,
}

impl Default for DriverSettings {
    fn default() -> DriverSettings {
        DriverSettings {
            queues: 1,
            queue_size: 128,
            queue_memory_bytes: 4 << 20,
            event_index: true,
            indirect: true,
            wait: Wait::Event,
            device_features: 0,
        }
    }
}

/// Start of the driver's guest memory in guest addresses: not 0, so that a stray 0 is outside.
pub const GUEST_BASE: u64 = 0x4000_0000;

/// Claimed address of that memory in the driver's address space. Nothing is mapped there: no server may rely
/// on it.
pub const USER_BASE: u64 = 0x7fff_0000_0000;

/// A connected front end with its guest memory.
#[derive(Debug)]
pub struct Driver {
    /// The connection, for other messages.
    pub front: FrontEnd,
    settings: DriverSettings,
    features: u64,
    memory: OwnedFd,
    region: Region,
    /// Area in which servers record requests in flight.
    in_flight: Option<OwnedFd>,
    /// Log in which servers mark pages that they write.
    log: Option<Region>,
    is_logging: bool,
}

impl Driver {
    /// Connects to a server's socket, negotiates, shares the memory, and starts the queues.
    pub fn connect(path: &Path, settings: DriverSettings) -> io::Result<(Driver, Vec<DriverQueue>)> {
        let mut driver = Driver::open(UnixStream::connect(path)?, settings)?;
        driver.share_memory()?;
        let queues =
            (0..settings.queues).map(|index| driver.start_queue(index, 0)).collect::<io::Result<_>>()?;
        Ok((driver, queues))
    }

    /// Negotiates features and creates the guest's memory, without sharing it yet.
    pub fn open(stream: UnixStream, settings: DriverSettings) -> io::Result<Driver> {
        let (front, features) = Self::negotiated(stream, settings)?;
        let memory = memfd_create("tombolo-driver", MemfdFlags::CLOEXEC)?;
        let len = settings.queue_memory_bytes * usize::from(settings.queues);
        ftruncate(&memory, len as u64)?;
        let region = Region::map(&memory, 0, len).map_err(io::Error::other)?;
        Ok(Driver {
            front,
            settings,
            features,
            memory,
            region,
            in_flight: None,
            log: None,
            is_logging: false,
        })
    }

    fn negotiated(stream: UnixStream, settings: DriverSettings) -> io::Result<(FrontEnd, u64)> {
        let mut front = FrontEnd::new(stream);
        front.post(request::SET_OWNER, &[], &[])?;
        let offered = front.ask_u64(request::GET_FEATURES)?;
        let mut wanted = FEATURE_VERSION_1 | FEATURE_PROTOCOL_FEATURES | settings.device_features;
        wanted |= if settings.event_index { FEATURE_EVENT_INDEX } else { 0 };
        wanted |= if settings.indirect { FEATURE_INDIRECT } else { 0 };
        let features = offered & wanted;
        if features & FEATURE_PROTOCOL_FEATURES != 0 {
            let offered = front.ask_u64(request::GET_PROTOCOL_FEATURES)?;
            let known = PROTOCOL_MQ
                | PROTOCOL_LOG
                | PROTOCOL_REPLY_ACK
                | PROTOCOL_BACKEND_REQ
                | PROTOCOL_CONFIG
                | PROTOCOL_IN_FLIGHT
                | PROTOCOL_MEMORY_SLOTS;
            front.set_protocol_features(offered & known)?;
        }
        front.post_u64(request::SET_FEATURES, features)?;
        Ok((front, features))
    }

    /// Makes servers record the requests in flight, in an area of `area_len` bytes. No queue may run.
    pub fn keep_requests(&mut self, area_len: u64) -> io::Result<()> {
        let area = memfd_create("tombolo-in-flight", MemfdFlags::CLOEXEC)?;
        ftruncate(&area, area_len)?;
        self.in_flight = Some(area);
        self.hand_over_requests()
    }

    fn hand_over_requests(&mut self) -> io::Result<()> {
        let Some(area) = &self.in_flight else { return Ok(()) };
        let len = rustix::fs::fstat(area)?.st_size.unsigned_abs();
        let mut payload = [len.to_le_bytes(), 0u64.to_le_bytes()].concat();
        payload.extend(self.settings.queues.to_le_bytes());
        payload.extend(self.settings.queue_size.to_le_bytes());
        payload.resize(24, 0);
        self.front.post(request::SET_INFLIGHT_FD, &payload, &[area.as_fd()])
    }

    /// Switches to another server transparently to the guest: with the same memory and queues, and the
    /// requests in flight.
    pub fn go_on_with(&mut self, path: &Path, queues: &mut [&mut DriverQueue]) -> io::Result<()> {
        let (front, features) = Self::negotiated(UnixStream::connect(path)?, self.settings)?;
        if features != self.features {
            return Err(io::Error::other("the server offers other features than the one before"));
        }
        self.front = front;
        self.share_memory()?;
        self.hand_over_requests()?;
        for (index, queue) in queues.iter_mut().enumerate() {
            let base = queue.used_index();
            self.hand_over(index as u16, base, queue)?;
        }
        Ok(())
    }

    /// Returns the guest's memory as a table of one entry.
    pub fn memory_table(&self) -> Vec<MemoryEntry> {
        vec![MemoryEntry {
            guest_address: GUEST_BASE,
            size: self.region.len() as u64,
            user_address: USER_BASE,
            file_offset: 0,
        }]
    }

    /// Shares the guest's memory with the server.
    pub fn share_memory(&mut self) -> io::Result<()> {
        self.front.set_memory(&self.memory_table(), &[self.memory.as_fd()])
    }

    /// Returns the file of the guest's memory.
    pub fn memory_file(&self) -> &OwnedFd {
        &self.memory
    }

    /// Returns the guest's memory itself.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the negotiated features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Initialises a queue and starts it at a position of its rings.
    pub fn start_queue(&mut self, index: u16, base: u16) -> io::Result<DriverQueue> {
        let start = self.settings.queue_memory_bytes * usize::from(index);
        let layout = Layout::new(start, self.settings.queue_size);
        let notifier = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, call, error) = (notifier()?, notifier()?, notifier()?);
        let eventfds = queue::EventFds { kick, call, error };
        let end = start + self.settings.queue_memory_bytes;
        let queue = DriverQueue::new(self.region.clone(), layout, end, base, eventfds, self.options())?;
        self.hand_over(index, base, &queue)?;
        Ok(queue)
    }

    fn hand_over(&mut self, index: u16, base: u16, queue: &DriverQueue) -> io::Result<()> {
        let n = u32::from(index);
        self.front.post_state(request::SET_VRING_NUM, n, u32::from(self.settings.queue_size))?;
        self.hand_over_addresses(n, queue)?;
        self.front.post_state(request::SET_VRING_BASE, n, u32::from(base))?;
        let fds = queue.eventfds();
        self.front.set_vring_fd(request::SET_VRING_CALL, index, Some(fds.call.as_fd()))?;
        self.front.set_vring_fd(request::SET_VRING_ERR, index, Some(fds.error.as_fd()))?;
        self.front.set_vring_fd(request::SET_VRING_KICK, index, Some(fds.kick.as_fd()))?;
        if self.features & FEATURE_PROTOCOL_FEATURES != 0 {
            self.front.post_state(request::SET_VRING_ENABLE, n, 1)?;
        }
        Ok(())
    }

    /// Restarts a stopped queue, unchanged, at a position of its rings.
    pub fn restart_queue(&mut self, index: u16, base: u16, queue: &DriverQueue) -> io::Result<()> {
        self.hand_over(index, base, queue)
    }

    fn hand_over_addresses(&mut self, index: u32, queue: &DriverQueue) -> io::Result<()> {
        let log = self.is_logging.then_some(queue.used_ring().address);
        self.front.set_vring_addresses(index, queue.ring_addresses(), log)
    }

    /// Stops a queue and returns the position at which its rings continue.
    pub fn stop_queue(&mut self, index: u16) -> io::Result<u16> {
        let reply = self.front.ask(request::GET_VRING_BASE, &front_end::state(u32::from(index), 0))?;
        let base = reply.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes);
        base.ok_or_else(|| io::Error::other("a short answer to GET_VRING_BASE"))
    }

    /// Reads `len` bytes of the device's configuration space from `offset`.
    pub fn config(&mut self, offset: u32, len: u32) -> io::Result<Vec<u8>> {
        self.front.config(offset, len)
    }

    fn options(&self) -> queue::Options {
        queue::Options {
            event_index: self.features & FEATURE_EVENT_INDEX != 0,
            indirect: self.features & FEATURE_INDIRECT != 0,
            wait: self.settings.wait,
        }
    }
}
