//! Merging several redo logs into one.

use super::*;

const SECTOR: u64 = 512;

/// Creates an empty overlay, and its redo log.
pub fn empty_in(base: &Arc<dyn BlockDevice>, size_bytes: u64) -> (Arc<Overlay>, Arc<dyn BlockDevice>) {
    let log = redo_log_of(&Header { size_bytes, base_bytes: base.geometry().size_bytes, ..header() });
    (opened(base, &log).expect("opened"), log)
}

/// Performs some changes near the ends of segments and of the shorter overlays.
pub fn work(rng: &mut fastrand::Rng, disk: &Overlay) {
    let sectors = disk.geometry().size_bytes / SECTOR;
    for _ in 0..rng.usize(1..8) {
        let place = [0, (64 << 20) / SECTOR - 20, BASE / SECTOR - 20, SIZE / SECTOR - 60];
        let from = rng.choice(place).expect("one") + rng.u64(0..40);
        let count = rng.u64(1..30).min(sectors.saturating_sub(from));
        if count == 0 {
            continue;
        }
        let range = Range { offset: from * SECTOR, len_bytes: count * SECTOR };
        if rng.bool() {
            let how = Zeroing { may_unmap: rng.bool(), ..Zeroing::default() };
            disk.write_zeroes(&cx(), range, how).wait().expect("zeroed");
        } else {
            write(disk, range.offset, &vec![rng.u8(1..); range.len_bytes as usize]);
        }
    }
}

/// Returns the contents at these places.
pub fn content(disk: &dyn BlockDevice) -> Vec<u8> {
    let end = disk.geometry().size_bytes;
    let around = |at: u64| at.saturating_sub(64 * SECTOR).min(end)..(at + 96 * SECTOR).min(end);
    let ranges = [0, 64 << 20, BASE, SIZE].map(around);
    ranges.into_iter().flat_map(|range| read(disk, range.start, (range.end - range.start) as usize)).collect()
}

#[test]
fn merged_overlay_reads_as_uppermost_of_any_length() {
    for seed in 0..16 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let base = base();
        let (mut layers, mut below): (Vec<Arc<Overlay>>, _) = (Vec::new(), base.clone());
        for _ in 0..rng.usize(1..4) {
            let size_bytes = rng.choice([SIZE, BASE, BASE - 7 * SECTOR, SIZE + 9 * SECTOR]).expect("one");
            let (layer, _) = empty_in(&below, size_bytes);
            work(&mut rng, &layer);
            below = layer.clone();
            layers.insert(0, layer);
        }
        let (into, _) = empty_in(&base, layers[0].geometry().size_bytes);
        block_on(Overlay::merge(&cx(), &layers, &into, |_| ())).expect("merged");
        assert!(content(&*into) == content(&*layers[0]), "seed {seed}");
    }
}
