//! Tombolo's virtio-blk device under a foreign driver, the crate virtio-driver.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::SessionId;
use tombolo_front_virtio_blk::{Options, VirtioBlk};
use tombolo_host_vhost::{Device, Server, Settings};
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

use crate::common::{Bed, SIZE};

const QUEUES: usize = 2;
/// Number of requests in flight per queue.
const DEPTH: usize = 32;
/// Maximum size of a request, and the memory reserved for each, in bytes.
const ROOM: usize = 64 << 10;
const BLOCK: usize = 512;

/// The expected result of a request in flight.
enum Expected {
    Bytes { slot: usize, bytes: Vec<u8> },
    Nothing,
}

/// Guest memory: the driver's memory is only an address range, which it translates to offsets in the file
/// that the device maps.
struct Memory {
    addresses: Vec<u8>,
    file: File,
}

impl Memory {
    fn new(transport: &mut VirtioBlkTransport) -> Self {
        let addresses = vec![0; QUEUES * DEPTH * ROOM];
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(addresses.len() as u64).unwrap();
        transport.map_mem_region(addresses.as_ptr() as usize, addresses.len(), file.as_raw_fd(), 0).unwrap();
        Self { addresses, file }
    }

    fn place(&mut self, slot: usize, len: usize) -> &mut [u8] {
        &mut self.addresses[slot * ROOM..][..len]
    }

    fn fill(&self, slot: usize, bytes: &[u8]) {
        self.file.write_all_at(bytes, (slot * ROOM) as u64).unwrap();
    }

    fn found(&self, slot: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, (slot * ROOM) as u64).unwrap();
        bytes
    }
}

fn served(bed: &Bed) -> Server {
    let disk = bed.opened();
    let make = move |_| {
        let options = Options { name: "disk".into(), serial: "1".into(), queues: QUEUES as u16 };
        Ok(Arc::new(VirtioBlk::new(disk.clone(), options, SessionId(1))?) as Arc<dyn Device>)
    };
    let listener = UnixListener::bind(bed.socket()).unwrap();
    Server::start(listener, Settings::default(), Box::new(make)).unwrap()
}

/// Returns offset and length of a request within its slot's part of the disk, so that the order of requests
/// in flight does not matter.
fn part_of(slot: usize) -> (usize, usize) {
    let room = SIZE as usize / (QUEUES * DEPTH);
    let len = BLOCK * fastrand::usize(1..=room.min(ROOM) / BLOCK);
    (slot * room + BLOCK * fastrand::usize(0..=(room - len) / BLOCK), len)
}

struct Guest {
    transport: Box<VirtioBlkTransport>,
    queues: Vec<VirtioBlkQueue<'static, Expected>>,
    memory: Memory,
    /// Expected contents of the disk.
    model: Vec<u8>,
}

impl Guest {
    fn new(bed: &Bed) -> Self {
        let blk =
            VirtioBlkFeatureFlags::FLUSH | VirtioBlkFeatureFlags::MQ | VirtioBlkFeatureFlags::WRITE_ZEROES;
        let ring = VirtioFeatureFlags::VERSION_1
            | VirtioFeatureFlags::RING_EVENT_IDX
            | VirtioFeatureFlags::RING_INDIRECT_DESC;
        let socket = bed.socket();
        let connected = VhostUser::new(socket.to_str().unwrap(), blk.bits() | ring.bits()).unwrap();
        let mut transport: Box<VirtioBlkTransport> = Box::new(connected);
        let queues = VirtioBlkQueue::setup_queues(&mut *transport, QUEUES, 4 * DEPTH as u16).unwrap();
        let memory = Memory::new(&mut *transport);
        Self { transport, queues, memory, model: vec![0; SIZE as usize] }
    }

    fn request(&mut self, slot: usize) {
        let (at, len) = part_of(slot);
        let (offset, queue) = (at as u64, &mut self.queues[slot / DEPTH]);
        let model = &mut self.model[at..][..len];
        match fastrand::u8(0..8) {
            0 => queue.flush(Expected::Nothing),
            1 => {
                model.fill(0);
                queue.write_zeroes(offset, len as u64, fastrand::bool(), Expected::Nothing)
            }
            2..=4 => {
                fastrand::Rng::new().fill(model);
                self.memory.fill(slot, model);
                queue.write(offset, self.memory.place(slot, len), Expected::Nothing)
            }
            _ => {
                let expected = Expected::Bytes { slot, bytes: model.to_vec() };
                queue.read(offset, self.memory.place(slot, len), expected)
            }
        }
        .unwrap();
    }

    /// Waits for all requests in flight of a queue.
    fn await_all(&mut self, number: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        let mut answered = 0;
        while answered < DEPTH {
            assert!(Instant::now() < end, "{answered} requests were answered");
            for completion in self.queues[number].completions() {
                assert_eq!(completion.ret, 0);
                if let Expected::Bytes { slot, bytes } = completion.context {
                    assert!(self.memory.found(slot, bytes.len()) == bytes, "slot {slot}");
                }
                answered += 1;
            }
            std::thread::yield_now();
        }
    }
}

#[test]
fn foreign_driver_reads_its_writes_on_two_queues() {
    let bed = Bed::new();
    let _server = served(&bed);
    let mut guest = Guest::new(&bed);
    for _ in 0..50 {
        (0..QUEUES * DEPTH).for_each(|slot| guest.request(slot));
        for number in 0..QUEUES {
            guest.transport.get_submission_notifier(number).notify().unwrap();
        }
        (0..QUEUES).for_each(|number| guest.await_all(number));
    }
    assert!(std::fs::read(bed.image()).unwrap() == guest.model, "the image differs");
}
