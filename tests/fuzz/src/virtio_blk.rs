//! Arbitrary bytes as a virtio-blk chain, split anywhere: the answer and the disk's contents must match an
//! independent reading of virtio 1.2, §5.2.6.

use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::SessionId;
use tombolo_core::block::BlockDevice;
use tombolo_front_virtio_blk::{Options, VirtioBlk};
use tombolo_host_vhost::{Device, Server, Settings};
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer, Part};

const DISK_BYTES: usize = 8 << 10;
const OUT_BYTES_MAX: usize = 2048;
const BACK_BYTES_MAX: usize = 1600;
const SERIAL: &[u8] = b"fuzz";
const PATIENCE: Duration = Duration::from_secs(60);

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;
/// Initial content of the guest's memory.
const UNTOUCHED: u8 = 0xee;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    thread_local! {
        static GUEST: RefCell<Option<Guest>> = const { RefCell::new(None) };
    }
    let Some((&[out_cut, back_cut, back_eighths], out)) = bytes.split_first_chunk::<3>() else { return };
    let out = &out[..out.len().min(OUT_BYTES_MAX)];
    let back_bytes = (usize::from(back_eighths) * 8).min(BACK_BYTES_MAX) + usize::from(back_cut & 1);
    if out.is_empty() && back_bytes == 0 {
        return;
    }
    GUEST.with_borrow_mut(|guest| {
        let guest = guest.get_or_insert_with(Guest::new);
        guest.ask(out, usize::from(out_cut), back_bytes, usize::from(back_cut));
    });
}

struct Guest {
    _driver: Driver,
    queue: DriverQueue,
    out: GuestBuffer,
    back: GuestBuffer,
    /// Expected contents of the disk.
    model: Vec<u8>,
    _server: Server,
}

impl Guest {
    fn new() -> Guest {
        let path = std::env::temp_dir().join(format!("tombolo-fuzz-blk.{}", std::process::id()));
        // Left by a process with the same id.
        let _ = std::fs::remove_file(&path);
        let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDisk::new(DISK_BYTES as u64).expect("a disk"));
        let make = move |_| {
            let serial = String::from_utf8_lossy(SERIAL).into();
            let options = Options { name: "fuzz".into(), serial, queues: 1 };
            Ok(Arc::new(VirtioBlk::new(disk.clone(), options, SessionId(1))?) as Arc<dyn Device>)
        };
        let listener = UnixListener::bind(&path).expect("bind");
        let server = Server::start(listener, Settings::default(), Box::new(make)).expect("a server");
        let (driver, mut queues) = Driver::connect(&path, DriverSettings::default()).expect("connect");
        std::fs::remove_file(&path).expect("unlink");
        let mut queue = queues.remove(0);
        let mut alloc = |len: usize| queue.alloc(len as u32).expect("guest memory");
        let (out, back) = (alloc(OUT_BYTES_MAX), alloc(BACK_BYTES_MAX + 1));
        Guest { _driver: driver, queue, out, back, model: vec![0; DISK_BYTES], _server: server }
    }

    fn ask(&mut self, out: &[u8], out_cut: usize, back_bytes: usize, back_cut: usize) {
        self.queue.write(self.out, out);
        self.queue.write(self.back, &[UNTOUCHED; BACK_BYTES_MAX + 1]);
        let parts: Vec<Part> = cut(self.out, out.len(), out_cut)
            .map(GuestBuffer::readable)
            .chain(cut(self.back, back_bytes, back_cut).map(GuestBuffer::writable))
            .collect();
        let head = self.queue.submit(&parts).expect("room");
        let used = self.queue.wait_used(PATIENCE).expect("an answer");
        assert_eq!((used.head, used.written as usize), (head, back_bytes));
        let mut back = vec![0; back_bytes];
        self.queue.read(self.back, &mut back);
        if let Some((status, data)) = back.split_last() {
            let expected = self.expected(out, data.len());
            assert_eq!(*status, expected.as_ref().map_or_else(|status| *status, |_| OK), "{out:02x?}");
            if let Ok(expected) = expected {
                assert!(data.starts_with(&expected), "{out:02x?}");
                assert!(data[expected.len()..].iter().all(|byte| *byte == UNTOUCHED));
            }
        }
        self.compare();
    }

    /// Returns the expected data, or the status of a failure; updates the model.
    fn expected(&mut self, out: &[u8], data_bytes: usize) -> Result<Vec<u8>, u8> {
        let Some((header, payload)) = out.split_first_chunk::<16>() else { return Err(IO_ERROR) };
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let sector = u64::from_le_bytes(std::array::from_fn(|i| header[8 + i]));
        match kind {
            0 => Ok(self.sectors(sector, data_bytes)?.to_vec()),
            1 => {
                self.sectors(sector, payload.len())?.copy_from_slice(payload);
                Ok(Vec::new())
            }
            4 => Ok(Vec::new()),
            8 => {
                let mut serial = SERIAL.to_vec();
                serial.resize(20, 0);
                serial.truncate(data_bytes);
                Ok(serial)
            }
            // The disk reads as zeroes where it was discarded: a disk in memory that frees its pages has no
            // other choice.
            11 | 13 => {
                let range: [u8; 16] = payload.try_into().map_err(|_| IO_ERROR)?;
                let flags = u32::from_le_bytes([range[12], range[13], range[14], range[15]]);
                if flags > u32::from(kind == 13) {
                    return Err(UNSUPPORTED);
                }
                let sector = u64::from_le_bytes(std::array::from_fn(|i| range[i]));
                let count = u32::from_le_bytes([range[8], range[9], range[10], range[11]]);
                self.sectors(sector, count as usize * 512)?.fill(0);
                Ok(Vec::new())
            }
            _ => Err(UNSUPPORTED),
        }
    }

    fn sectors(&mut self, sector: u64, len: usize) -> Result<&mut [u8], u8> {
        let start =
            usize::try_from(sector).ok().filter(|sector| *sector <= DISK_BYTES / 512).ok_or(IO_ERROR)?;
        let range = start * 512..start * 512 + len;
        if len.is_multiple_of(512) { self.model.get_mut(range).ok_or(IO_ERROR) } else { Err(IO_ERROR) }
    }

    /// Checks that the disk equals the model, and still answers.
    fn compare(&mut self) {
        let half = DISK_BYTES / 8;
        for at in (0..DISK_BYTES).step_by(half) {
            let mut header = [0; 16];
            header[8..].copy_from_slice(&(at as u64 / 512).to_le_bytes());
            self.queue.write(self.out, &header);
            let parts = [self.out.first(16).readable(), self.back.first(half as u32 + 1).writable()];
            self.queue.submit(&parts).expect("room");
            self.queue.wait_used(PATIENCE).expect("an answer");
            let mut back = vec![0; half + 1];
            self.queue.read(self.back, &mut back);
            assert_eq!(back[half], OK);
            assert_eq!(back[..half], self.model[at..at + half]);
        }
    }
}

/// Splits the first `len` bytes into up to three pieces.
fn cut(buffer: GuestBuffer, len: usize, at: usize) -> impl Iterator<Item = GuestBuffer> {
    let first = at.min(len);
    let second = (len - first) / 2;
    let mut from = 0;
    [first, second, len - first - second].into_iter().filter_map(move |piece| {
        let begin = from;
        from += piece as u64;
        (piece > 0).then_some(GuestBuffer { address: buffer.address + begin, len: piece as u32 })
    })
}
