//! Killed processes with retained states: acknowledged writes survive everything but a power failure, flushed
//! ones also that.

use tombolo_layer_overlay::{Identity, StateMemory};
use tombolo_mem::Region;

use super::*;

fn open(
    identity: u8,
    base: &Arc<dyn BlockDevice>,
    log: &Arc<dyn BlockDevice>,
    memory: &Region,
) -> Result<Arc<Overlay>, OverlayError> {
    let kept = Some(StateMemory { memory: memory.clone(), identity: Identity::from([identity; 24]) });
    let options = OpenOptions::default();
    block_on(Overlay::open(&cx(), base.clone(), b"1", log.clone(), &options, kept))
}

fn new_memory() -> Region {
    Region::heap(header().kept_bytes())
}

const AREA: usize = 64 * 512;
/// Offset around the end of a segment.
const START: u64 = (64 << 20) - AREA as u64 / 2;

/// Performs a few changes and flushes.
fn work(rng: &mut fastrand::Rng, disk: &Overlay, model: &mut [u8]) {
    for _ in 0..rng.usize(0..12) {
        let from = rng.usize(0..64);
        let count = rng.usize(1..=64 - from);
        let place = &mut model[from * 512..(from + count) * 512];
        let (offset, byte) = (START + from as u64 * 512, rng.u8(1..));
        let range = Range { offset, len_bytes: place.len() as u64 };
        let how = Zeroing { may_unmap: rng.bool(), ..Zeroing::default() };
        match rng.u8(0..8) {
            0 => disk.flush(&cx()).wait().expect("flushed"),
            1 | 2 => {
                disk.write_zeroes(&cx(), range, how).wait().expect("zeroed");
                place.fill(0);
            }
            _ => {
                place.fill(byte);
                write(disk, offset, place);
            }
        }
    }
}

#[test]
fn overlay_survives_kills_and_flushed_data_power_loss() {
    for seed in 0..25 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let base = base();
        let lossy = Arc::new(LossyDisk::new(header().log_bytes()));
        let log: Arc<dyn BlockDevice> = lossy.clone();
        block_on(header().write_to(&cx(), &*log)).expect("made");
        let mut model: Vec<u8> = (START..START + AREA as u64).map(|at| golden(at / 512)).collect();
        for _ in 0..3 {
            let memory = new_memory();
            for _ in 0..4 {
                let disk = open(1, &base, &log, &memory).expect("opened");
                assert!(read(&*disk, START, AREA) == model, "seed {seed}");
                work(&mut rng, &disk, &mut model);
                // Some are killed during a flush.
                if rng.bool() {
                    lossy.fails_after(rng.u32(0..2));
                    let _killed = disk.flush(&cx()).wait();
                    lossy.fails_after(u32::MAX);
                }
            }
            let disk = open(1, &base, &log, &memory).expect("opened");
            disk.flush(&cx()).wait().expect("flushed");
            drop(disk);
            // The keeper's memory is lost with the machine.
            lossy.lose_power(&mut rng);
        }
        let disk = opened(&base, &log).expect("opened");
        assert!(read(&*disk, START, AREA) == model, "seed {seed}");
    }
}

#[test]
fn memory_of_another_overlay_is_refused() {
    let (base, log, memory) = (base(), redo_log(), new_memory());
    drop(open(1, &base, &log, &memory).expect("opened"));
    drop(open(1, &base, &log, &memory).expect("opened again"));
    let short = Region::heap(header().kept_bytes() - 4096);
    assert!(matches!(open(1, &base, &log, &short), Err(OverlayError::OtherMemory)));
    assert!(matches!(open(2, &base, &log, &memory), Err(OverlayError::OtherMemory)));
}
