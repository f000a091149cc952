//! A guest with a server of its own.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo_core::SessionId;
use tombolo_front_virtio_blk::{Features, Options, VirtioBlk};
use tombolo_host_vhost::{Device, Server, Settings};
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer, Part, Used};

use crate::ram_disk::RamDisk;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub const OK: u8 = 0;
pub const IO_ERROR: u8 = 1;
pub const UNSUPPORTED: u8 = 2;
/// Marks a status byte that was not written.
pub const UNTOUCHED: u8 = 0xee;

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub struct Guest {
    pub driver: Driver,
    pub queues: Vec<DriverQueue>,
    pub disk: Arc<RamDisk>,
    out: GuestBuffer,
    back: GuestBuffer,
    _server: Server,
    _dir: TempDir,
}

impl Guest {
    pub fn new() -> Guest {
        Guest::of(RamDisk::new(|_| ()), Features::all())
    }

    /// Creates a guest whose driver accepts these features.
    pub fn of(disk: Arc<RamDisk>, features: Features) -> Guest {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let served = disk.clone();
        let make = move |_| {
            let options = Options { name: "disk".into(), serial: "0123456789".into(), queues: 2 };
            Ok(Arc::new(VirtioBlk::new(served.clone(), options, SessionId(1))?) as Arc<dyn Device>)
        };
        let listener = UnixListener::bind(&path).unwrap();
        let server = Server::start(listener, Settings::default(), Box::new(make)).unwrap();
        let settings =
            DriverSettings { queues: 2, device_features: features.bits(), ..DriverSettings::default() };
        let (driver, mut queues) = Driver::connect(&path, settings).unwrap();
        let out = queues[0].alloc(1 << 20).unwrap();
        let back = queues[0].alloc(1 << 20).unwrap();
        Guest { driver, queues, disk, out, back, _server: server, _dir: dir }
    }

    /// Submits a chain: `out` split into pieces of these lengths, then space for the reply in such pieces.
    pub fn submit(&mut self, out: &[u8], out_pieces: &[usize], back_pieces: &[usize]) -> u16 {
        let queue = &mut self.queues[0];
        queue.write(self.out, out);
        queue.write(self.back, &vec![UNTOUCHED; back_pieces.iter().sum()]);
        let parts: Vec<Part> = pieces(self.out, out_pieces)
            .map(GuestBuffer::readable)
            .chain(pieces(self.back, back_pieces).map(GuestBuffer::writable))
            .collect();
        queue.submit(&parts).unwrap()
    }

    pub fn wait(&mut self) -> Used {
        self.queues[0].wait_used(PATIENCE).unwrap()
    }

    /// Returns the first `len` bytes of the reply.
    pub fn back(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.queues[0].read(self.back, &mut bytes);
        bytes
    }

    /// Submits a chain; returns the whole reply: data, and the status last.
    pub fn raw(&mut self, out: &[u8], out_pieces: &[usize], back_pieces: &[usize]) -> Vec<u8> {
        let head = self.submit(out, out_pieces, back_pieces);
        assert_eq!(self.wait().head, head);
        self.back(back_pieces.iter().sum())
    }

    /// Sends a request in Linux's layout; returns data and status.
    pub fn ask(&mut self, kind: u32, sector: u64, payload: &[u8], back_bytes: usize) -> (Vec<u8>, u8) {
        let out = [&header(kind, sector)[..], payload].concat();
        let pieces = [16, payload.len()];
        let out_pieces = if payload.is_empty() { &pieces[..1] } else { &pieces };
        let back_pieces: &[usize] = if back_bytes == 0 { &[1] } else { &[back_bytes, 1] };
        let mut back = self.raw(&out, out_pieces, back_pieces);
        let status = back.pop().unwrap();
        (back, status)
    }

    pub fn status(&mut self, kind: u32, sector: u64, payload: &[u8]) -> u8 {
        self.ask(kind, sector, payload, 0).1
    }
}

fn pieces(buffer: GuestBuffer, lengths: &[usize]) -> impl Iterator<Item = GuestBuffer> {
    let mut at = 0;
    lengths.iter().map(move |&len| {
        let piece = GuestBuffer { address: buffer.address + at, len: len as u32 };
        at += len as u64;
        piece
    })
}

pub fn header(kind: u32, sector: u64) -> [u8; 16] {
    (u128::from(kind) | u128::from(sector) << 64).to_le_bytes()
}

/// Encodes a range to discard or to zero.
pub fn segment(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    (u128::from(sector) | u128::from(sectors) << 64 | u128::from(flags) << 96).to_le_bytes()
}
