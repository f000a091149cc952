//! The guest: requests derived from a seed, a few of them in flight at a time.

use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::SessionId;
use tombolo_core::block::BlockDevice;
use tombolo_crash_images::mark;
use tombolo_front_virtio_blk::{Features, Options, VirtioBlk};
use tombolo_host_vhost::{Device, Server, Settings};
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer};

use super::{REQUESTS, SECTOR_BYTES, SECTORS};

/// Number of requests in flight. They do not overlap, so their order is known.
const WINDOW: usize = 4;
const SECTORS_MAX: u64 = 24;
const PATIENCE: Duration = Duration::from_secs(60);

/// A request of the driver, with its sectors.
#[derive(Clone, Debug)]
pub enum Request {
    Write(Range<u64>),
    /// With `true` if the sectors may be unmapped.
    Zero(Range<u64>, bool),
    Discard(Range<u64>),
    Flush,
}

impl Request {
    pub fn sectors(&self) -> Range<u64> {
        match self {
            Self::Write(sectors) | Self::Zero(sectors, _) | Self::Discard(sectors) => sectors.clone(),
            Self::Flush => 0..0,
        }
    }

    /// Returns its header and payload (virtio 1.2, §5.2.6).
    fn encode(&self, number: usize) -> ([u8; 16], Vec<u8>) {
        let sectors = self.sectors();
        let range = |flags: u32| {
            let count = sectors.end - sectors.start;
            (u128::from(sectors.start) | u128::from(count) << 64 | u128::from(flags) << 96)
                .to_le_bytes()
                .to_vec()
        };
        let (kind, at, payload) = match self {
            Self::Write(_) => {
                (1_u32, sectors.start, sectors.clone().flat_map(|sector| content(number, sector)).collect())
            }
            Self::Flush => (4, 0, Vec::new()),
            Self::Discard(_) => (11, 0, range(0)),
            Self::Zero(_, may_unmap) => (13, 0, range(u32::from(*may_unmap))),
        };
        ((u128::from(kind) | u128::from(at) << 64).to_le_bytes(), payload)
    }
}

/// Returns the content that request `number` writes to a sector; it differs for all requests.
pub fn content(number: usize, sector: u64) -> [u8; SECTOR_BYTES] {
    let word = (number as u64 + 1) << 32 | sector;
    let mut bytes = [0; SECTOR_BYTES];
    bytes.as_chunks_mut().0.fill(word.to_le_bytes());
    bytes
}

/// Returns all requests in order, always the same.
pub fn requests() -> Vec<Request> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut requests: Vec<Request> = Vec::new();
    while requests.len() < REQUESTS {
        let start = random.u64(..SECTORS - SECTORS_MAX);
        let sectors = start..start + random.u64(1..=SECTORS_MAX);
        let request = match random.u8(..16) {
            0..10 => Request::Write(sectors),
            10 => Request::Zero(sectors, true),
            11 => Request::Zero(sectors, false),
            12 => Request::Discard(sectors),
            _ => Request::Flush,
        };
        let sectors = request.sectors();
        let is_apart = |other: &Request| {
            let other = other.sectors();
            other.end <= sectors.start || sectors.end <= other.start
        };
        if requests.iter().rev().take(WINDOW).all(is_apart) {
            requests.push(request);
        }
    }
    requests
}

/// Guest memory of a request.
#[derive(Clone, Copy)]
struct Slot {
    header: GuestBuffer,
    payload: GuestBuffer,
    status: GuestBuffer,
}

struct Guest {
    queue: DriverQueue,
    slots: Vec<Slot>,
    /// Chain and number; for a flush also the requests that it covers.
    under_way: Vec<(u16, usize, Vec<usize>)>,
    answered: Vec<usize>,
    durable: HashSet<usize>,
}

impl Guest {
    fn perform(&mut self, flushes: bool) {
        mark("begun");
        for (number, request) in requests().iter().enumerate() {
            if !flushes && matches!(request, Request::Flush) {
                continue;
            }
            while self.under_way.iter().any(|(_, other, _)| other + WINDOW <= number) {
                self.wait();
            }
            let covers = match request {
                Request::Flush => self.answered.clone(),
                _ if flushes => Vec::new(),
                _ => vec![number],
            };
            let chain = self.submit(number, request);
            self.under_way.push((chain, number, covers));
        }
        while !self.under_way.is_empty() {
            self.wait();
        }
    }

    fn submit(&mut self, number: usize, request: &Request) -> u16 {
        let slot = self.slots[number % WINDOW];
        let (header, payload) = request.encode(number);
        self.queue.write(slot.header, &header);
        self.queue.write(slot.payload, &payload);
        self.queue.write(slot.status, &[0xff]);
        let mut parts = vec![slot.header.readable(), slot.status.first(1).writable()];
        if !payload.is_empty() {
            parts.insert(1, slot.payload.first(payload.len() as u32).readable());
        }
        self.queue.submit(&parts).expect("room")
    }

    /// Waits for an answer, and marks the requests that it makes durable.
    fn wait(&mut self) {
        let used = self.queue.wait_used(PATIENCE).expect("an answer");
        let place = self.under_way.iter().position(|(chain, ..)| *chain == used.head).expect("asked for");
        let (_, number, covers) = self.under_way.swap_remove(place);
        let mut status = [0xff];
        self.queue.read(self.slots[number % WINDOW].status, &mut status);
        assert_eq!(status, [0], "request {number}");
        self.answered.push(number);
        let fresh: Vec<String> = covers
            .into_iter()
            .filter(|number| self.durable.insert(*number))
            .map(|number| number.to_string())
            .collect();
        if !fresh.is_empty() {
            mark(&fresh.join(" "));
        }
    }
}

/// Performs all requests as a guest whose driver has accepted these features, and marks which of them it may
/// regard as durable, by their numbers.
pub fn work(disk: Arc<dyn BlockDevice>, features: Features) {
    assert!(disk.profile().has_cache, "a disk in memory has no durable state");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let make = move |_| {
        let options = Options { name: "disk".into(), serial: String::new(), queues: 1 };
        Ok(Arc::new(VirtioBlk::new(disk.clone(), options, SessionId(1))?) as Arc<dyn Device>)
    };
    let listener = UnixListener::bind(&path).expect("a socket");
    let _server = Server::start(listener, Settings::default(), Box::new(make)).expect("a server");
    let settings = DriverSettings { device_features: features.bits(), ..DriverSettings::default() };
    let (_driver, queues) = Driver::connect(&path, settings).expect("connected");
    let mut queue = queues.into_iter().next().expect("a queue");
    let mut buffer = |len| queue.alloc(len).expect("room");
    let slots = (0..WINDOW)
        .map(|_| Slot {
            header: buffer(16),
            payload: buffer(SECTORS_MAX as u32 * SECTOR_BYTES as u32),
            status: buffer(8),
        })
        .collect();
    let mut guest =
        Guest { queue, slots, under_way: Vec::new(), answered: Vec::new(), durable: HashSet::new() };
    guest.perform(features.contains(Features::FLUSH));
}
