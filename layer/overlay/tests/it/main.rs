//! Tests specific to overlays: the base, and power failures. Requirements of all disks are in the conformance
//! suite.

mod in_blocks;
mod killed;
mod lossy;
mod merged;
mod sealed;

use std::sync::Arc;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{Allocation, BlockDevice, OpenOptions, Range, Zeroing};
use tombolo_core::{Ctx, SessionId, Stability, block_on};
use tombolo_layer_overlay::{Header, Overlay, OverlayError};
use tombolo_mem::{Buffer, Source};

use in_blocks::InBlocks;
use lossy::LossyDisk;

const BLOCK: usize = 4096;
/// Two segments and a partial block.
const SIZE: u64 = (64 << 20) + (1 << 20) + 512;
const BASE: u64 = SIZE - (512 << 10);

fn cx() -> Ctx {
    Ctx::root(SessionId(1))
}

fn header() -> Header {
    Header {
        size_bytes: SIZE,
        base_bytes: BASE,
        base_name: b"golden.img".to_vec(),
        base_mark: b"1".to_vec(),
        seal: None,
    }
}

fn write(disk: &dyn BlockDevice, offset: u64, bytes: &[u8]) {
    let answer = disk.write(&cx(), offset, Stability::Unstable, Source::from(bytes.to_vec()));
    disk.submit();
    answer.wait().expect("written");
}

fn read(disk: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buffer = Buffer::new(len);
    disk.read(&cx(), offset, buffer.sink(0..len)).wait().expect("read");
    buffer.as_slice().expect("ours alone").to_vec()
}

/// Returns the base's contents at a sector.
fn golden(sector: u64) -> u8 {
    (sector % 251) as u8 + 1
}

/// Creates a base that is non-zero only where tests look: around the end of the first segment, and at its own
/// end.
fn base() -> Arc<dyn BlockDevice> {
    let base = memory(BASE);
    for range in [0..1 << 20, (64 << 20) - (1 << 20)..BASE] {
        let bytes: Vec<u8> = range.clone().map(|at| golden(at / 512)).collect();
        write(&*base, range.start, &bytes);
    }
    base
}

fn memory(len_bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDisk::new(len_bytes).expect("a disk"))
}

fn opened_as(
    base: &Arc<dyn BlockDevice>,
    mark: &[u8],
    log: &Arc<dyn BlockDevice>,
    options: &OpenOptions,
) -> Result<Arc<Overlay>, OverlayError> {
    block_on(Overlay::open(&cx(), base.clone(), mark, log.clone(), options, None))
}

fn opened(base: &Arc<dyn BlockDevice>, log: &Arc<dyn BlockDevice>) -> Result<Arc<Overlay>, OverlayError> {
    opened_as(base, b"1", log, &OpenOptions::default())
}

fn redo_log_of(header: &Header) -> Arc<dyn BlockDevice> {
    let log = memory(header.log_bytes());
    block_on(header.write_to(&cx(), &*log)).expect("made");
    log
}

fn redo_log() -> Arc<dyn BlockDevice> {
    redo_log_of(&header())
}

#[test]
fn unwritten_blocks_read_from_unchanged_base() {
    let (base, log) = (base(), redo_log());
    let before = read(&*base, 0, 1 << 20);
    let disk = opened(&base, &log).expect("opened");
    let at = (64 << 20) - 1024;
    write(&*disk, at + 512, &[0xaa; 1024]);
    let sector = |n: u64| vec![golden((at + n * 512) / 512); 512];
    let expected = [sector(0), vec![0xaa; 1024], sector(3)].concat();
    assert!(read(&*disk, at, 2048) == expected, "over the end of a segment");
    write(&*disk, 1000 * 512, &[0xbb; 512]);
    assert_eq!(read(&*disk, 1000 * 512, 1024), [[0xbb; 512], [golden(1001); 512]].concat());
    // The remainder of the base's last block, and the part beyond its end.
    write(&*disk, BASE, &[0xcc; 512]);
    let expected = [[golden(BASE / 512 - 1); 512], [0xcc; 512], [0; 512]].concat();
    assert_eq!(read(&*disk, BASE - 512, 1536), expected);
    write(&*disk, SIZE - 512, &[0xdd; 512]);
    assert_eq!(read(&*disk, SIZE - 1024, 1024), [[0; 512], [0xdd; 512]].concat());
    assert!(
        read(&*base, 0, 1 << 20) == before && read(&*base, BASE - 512, 512) == [golden(BASE / 512 - 1); 512]
    );
}

#[test]
fn flushed_overlays_share_one_base() {
    let (base, logs) = (base(), [redo_log(), redo_log()]);
    for (log, byte) in logs.iter().zip([1, 2]) {
        let disk = opened(&base, log).expect("opened");
        write(&*disk, 3 * 512, &[byte; 512]);
        disk.write_zeroes(&cx(), Range { offset: 512, len_bytes: 512 }, Zeroing::default())
            .wait()
            .expect("zeroed");
        disk.flush(&cx()).wait().expect("flushed");
    }
    for (log, byte) in logs.iter().zip([1, 2]) {
        let disk = opened(&base, log).expect("opened");
        let expected = [[golden(0); 512], [0; 512], [golden(2); 512], [byte; 512], [golden(4); 512]].concat();
        assert_eq!(read(&*disk, 0, 5 * 512), expected);
    }
}

#[test]
fn zeroed_blocks_hide_base_and_take_no_space() {
    let (base, log) = (base(), redo_log());
    let disk = opened(&base, &log).expect("opened");
    write(&*disk, 0, &[7; 4 * BLOCK]);
    let range = Range { offset: 512, len_bytes: 4 * BLOCK as u64 };
    let how = Zeroing { may_unmap: true, ..Zeroing::default() };
    disk.write_zeroes(&cx(), range, how).wait().expect("zeroed");
    let whole = Range { offset: 0, len_bytes: 1 << 20 };
    let extents = disk.extents(&cx(), whole, 9).wait().expect("extents");
    let found: Vec<_> =
        extents.as_slice().iter().map(|extent| (extent.len_bytes, extent.allocation)).collect();
    let block = BLOCK as u64;
    assert_eq!(found[..2], [(block, Allocation::Data), (3 * block, Allocation::Hole)]);
    disk.flush(&cx()).wait().expect("flushed");
    let disk = opened(&base, &log).expect("opened again");
    assert!(read(&*disk, 0, 512) == [7; 512] && read(&*disk, 512, 4 * BLOCK) == vec![0; 4 * BLOCK]);
    assert_eq!(read(&*disk, 512 + 4 * block, 512), [golden(33); 512]);
}

#[test]
fn changed_base_and_invalid_redo_logs_are_refused() {
    let (base, log) = (base(), redo_log());
    let marked = |base, mark: &[u8], log| opened_as(base, mark, log, &OpenOptions::default());
    assert!(matches!(marked(&base, b"2", &log), Err(OverlayError::BaseChanged)));
    assert!(matches!(opened(&memory(BASE + 1024), &log), Err(OverlayError::BaseChanged)));
    // Earlier versions ignored a partial sector at the end, which is a whole sector now.
    let padded = memory(BASE + 512);
    opened(&padded, &log).expect("the same base");
    let log = redo_log_of(&Header { base_mark: Vec::new(), ..header() });
    assert!(matches!(marked(&padded, b"", &log), Err(OverlayError::BaseChanged)), "nothing tells that it is");
    assert!(matches!(opened(&base, &memory(1 << 20)), Err(OverlayError::NotAnOverlay)));
    let short = memory(header().log_bytes() - 4096);
    assert!(matches!(block_on(header().write_to(&cx(), &*short)), Err(OverlayError::TooShort { .. })));
}

#[test]
fn base_block_size_and_partial_end_are_respected() {
    let size_bytes = (1 << 20) + 1536;
    let header = Header { size_bytes, base_bytes: size_bytes, ..header() };
    let (log, base) = (redo_log_of(&header), memory(size_bytes));
    let bytes: Vec<u8> = (0..size_bytes).map(|at| golden(at / 512)).collect();
    write(&*base, 0, &bytes);
    let open = |base: &Arc<dyn BlockDevice>, block_bytes| {
        opened_as(base, b"1", &log, &OpenOptions { block_bytes, ..OpenOptions::default() })
    };
    let disk = open(&base, 1024).expect("opened");
    let shown = disk.geometry().size_bytes;
    assert_eq!(shown, size_bytes + 512);
    let last = [[golden(size_bytes / 512 - 1); 512], [0; 512]].concat();
    assert_eq!(read(&*disk, shown - 1024, 1024), last, "padded with zeroes");
    write(&*disk, shown - 2048, &[7; 1024]);
    disk.flush(&cx()).wait().expect("flushed");
    let disk = open(&base, 1024).expect("opened");
    assert_eq!(read(&*disk, shown - 2048, 2048), [vec![7; 1024], last].concat());
    write(&*disk, shown - 512, &[8; 512]);
    disk.flush(&cx()).wait().expect("flushed");
    let disk = open(&base, 1024).expect("opened");
    assert_eq!(read(&*disk, shown - 512, 512), [8; 512], "what was written to the padding");
    assert!(matches!(open(&base, 8192), Err(OverlayError::BlockSize(_))));
    let in_blocks = |block_bytes| -> Arc<dyn BlockDevice> { Arc::new(InBlocks(base.clone(), block_bytes)) };
    let whole = Header { size_bytes: 1 << 20, base_bytes: 1 << 20, ..header };
    block_on(whole.write_to(&cx(), &*log)).expect("made");
    assert_eq!(open(&in_blocks(4096), 512).expect("opened").geometry().block_bytes, 4096);
    assert!(matches!(open(&in_blocks(8192), 512), Err(OverlayError::BaseBlocks { found: 8192, .. })));
}

/// Checks random work with power failures: each sector is as of the last flush, or newer.
#[test]
fn power_loss_keeps_flushed_or_newer_sectors() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let base = base();
        let lossy = Arc::new(LossyDisk::new(header().log_bytes()));
        let log: Arc<dyn BlockDevice> = lossy.clone();
        block_on(header().write_to(&cx(), &*log)).expect("made");
        // Around the end of a segment, and of the base.
        let area = 64 * 512;
        let start = if rng.bool() { (64 << 20) - area / 2 } else { BASE / 4096 * 4096 - area / 2 };
        let first = |sector: u64| if sector * 512 < BASE { golden(sector) } else { 0 };
        let sectors = start / 512..(start + area) / 512;
        let mut possible: Vec<Vec<u8>> = sectors.clone().map(|sector| vec![first(sector)]).collect();
        for _ in 0..3 {
            let disk = opened(&base, &log).expect("opened");
            for _ in 0..rng.usize(1..40) {
                let from = rng.usize(0..possible.len());
                let count = rng.usize(1..=(possible.len() - from).min(20));
                let (offset, byte) = (start + from as u64 * 512, rng.u8(1..));
                let range = Range { offset, len_bytes: count as u64 * 512 };
                let how = Zeroing { may_unmap: rng.bool(), ..Zeroing::default() };
                match rng.u8(0..10) {
                    0 => {
                        disk.flush(&cx()).wait().expect("flushed");
                        possible.iter_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
                        continue;
                    }
                    1 | 2 => disk.write_zeroes(&cx(), range, how).wait().expect("zeroed"),
                    _ => write(&*disk, offset, &vec![byte; count * 512]),
                }
                let now = read(&*disk, offset, count * 512);
                for (values, now) in possible[from..from + count].iter_mut().zip(now.chunks(512)) {
                    assert!(now.iter().all(|byte| *byte == now[0]) && (now[0] == byte || now[0] == 0));
                    values.push(now[0]);
                }
            }
            // Every second failure is in the middle of a flush.
            if rng.bool() {
                lossy.fails_after(rng.u32(0..2));
                let _lost = disk.flush(&cx()).wait();
            }
            drop(disk);
            lossy.lose_power(&mut rng);
            let disk = opened(&base, &log).expect("opened after the loss");
            let found = read(&*disk, start, area as usize);
            for (values, found) in possible.iter_mut().zip(found.chunks(512)) {
                assert!(
                    found.iter().all(|byte| *byte == found[0]) && values.contains(&found[0]),
                    "seed {seed}: {} of {values:?}",
                    found[0]
                );
                *values = vec![found[0]];
            }
            // The data found is not durable yet: a second failure may leave another subset.
            disk.flush(&cx()).wait().expect("flushed");
        }
    }
}
