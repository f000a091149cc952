//! Arbitrary bytes as damage to a redo log, as they are and with a valid checksum of the header: it is
//! refused, or each block read is one of the existing ones.

use std::sync::Arc;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::{Ctx, SessionId, Stability, block_on};
use tombolo_layer_overlay::{HEADER_BYTES, Header, Overlay};
use tombolo_mem::{Buffer, Source};

const BLOCK: usize = 4096;
const DISK_BYTES: usize = 5 * BLOCK - 512;
const MARK: &[u8] = b"mark";
/// Byte of the base, and of the blocks in the redo log.
const OF_BASE: u8 = 1;
const OF_LOG: u8 = 2;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&how, damages)) = bytes.split_first() else { return };
    let (sealed, summed) = (how & 1 != 0, how & 2 != 0);
    let sound = sound(sealed);
    let mut log = sound.clone();
    for damage in damages.as_chunks::<3>().0.iter().take(16) {
        let at = usize::from(u16::from_le_bytes([damage[0], damage[1]])) % log.len();
        log[at] ^= damage[2];
    }
    if summed {
        let (head, sum) = log[..HEADER_BYTES as usize].split_at_mut(HEADER_BYTES as usize - 4);
        sum.copy_from_slice(&crc32c::crc32c(head).to_le_bytes());
    }
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened = block_on(Overlay::open(&cx(), base(), MARK, disk(&log), &options, None));
    let Ok(overlay) = opened else {
        assert!(log != sound, "it is refused: {:?}", opened.err());
        return;
    };
    let found = read(&*overlay, overlay.geometry().size_bytes as usize);
    if log == sound {
        let expected = [OF_LOG, 0, OF_BASE, OF_LOG, OF_BASE];
        assert!(found.chunks(BLOCK).zip(expected).all(|(block, byte)| block.iter().all(|it| *it == byte)));
    }
    // A block's data may be damaged itself.
    let room = log.get(2 * BLOCK..).unwrap_or_default();
    for (block, room) in found.chunks(BLOCK).zip(room.chunks(BLOCK)) {
        let is_known = [0, OF_BASE].iter().any(|byte| block.iter().all(|it| it == byte));
        // The base may end within the block.
        assert!(is_known || room.starts_with(block) || block.iter().all(|it| [0, OF_BASE].contains(it)));
    }
}

fn cx() -> Ctx {
    Ctx::root(SessionId(0))
}

fn base() -> Arc<MemoryDisk> {
    disk(&[OF_BASE; DISK_BYTES])
}

fn disk(bytes: &[u8]) -> Arc<MemoryDisk> {
    let disk = MemoryDisk::new(bytes.len() as u64).expect("a disk");
    disk.write(&cx(), 0, Stability::Unstable, Source::from(bytes.to_vec())).wait().expect("written");
    Arc::new(disk)
}

fn read(disk: &dyn BlockDevice, len: usize) -> Vec<u8> {
    let mut buffer = Buffer::new(len);
    disk.read(&cx(), 0, buffer.sink(0..len)).wait().expect("read");
    buffer.as_slice().expect("ours alone").to_vec()
}

/// Returns a log with a block, zeroes, and another block.
fn sound(sealed: bool) -> Vec<u8> {
    let (size_bytes, base_mark) = (DISK_BYTES as u64, MARK.to_vec());
    let header =
        Header { size_bytes, base_bytes: size_bytes, base_name: b"base".to_vec(), base_mark, seal: None };
    let log = disk(&vec![0; header.log_bytes() as usize]);
    block_on(header.write_to(&cx(), &*log)).expect("made");
    let overlay = block_on(Overlay::open(&cx(), base(), MARK, log.clone(), &OpenOptions::default(), None));
    let overlay = overlay.expect("opened");
    for (block, byte) in [(0, OF_LOG), (1, 0), (3, OF_LOG)] {
        let written = Source::from(vec![byte; BLOCK]);
        overlay.write(&cx(), (block * BLOCK) as u64, Stability::Unstable, written).wait().expect("written");
    }
    overlay.flush(&cx()).wait().expect("flushed");
    if sealed {
        block_on(overlay.seal(&cx())).expect("sealed");
    }
    read(&*log, header.log_bytes() as usize)
}
