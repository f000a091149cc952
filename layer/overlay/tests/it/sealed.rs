//! Sealed redo logs, as copied to other hosts: read-only, stackable, and refused when incomplete.

use super::*;
use crate::merged::{content, empty_in, work};

fn sealed_over(
    base: &Arc<dyn BlockDevice>,
    log: &Arc<dyn BlockDevice>,
) -> Result<Arc<Overlay>, OverlayError> {
    opened_as(base, b"1", log, &OpenOptions { read_only: true, ..OpenOptions::default() })
}

#[test]
fn sealed_overlay_is_read_only() {
    let (base, log) = (base(), redo_log());
    let disk = opened(&base, &log).expect("opened");
    write(&*disk, 0, &[7; BLOCK]);
    block_on(disk.seal(&cx())).expect("sealed");
    assert!(matches!(opened(&base, &log), Err(OverlayError::Sealed)));
    let disk = sealed_over(&base, &log).expect("read");
    assert_eq!(read(&*disk, 0, BLOCK), [7; BLOCK]);
}

#[test]
fn sealed_overlay_with_changed_page_is_refused() {
    let (base, log) = (base(), redo_log());
    let disk = opened(&base, &log).expect("opened");
    // Both segments have data.
    write(&*disk, 0, &[7; 2 * BLOCK]);
    write(&*disk, 64 << 20, &[8; 3 * BLOCK]);
    block_on(disk.seal(&cx())).expect("sealed");
    let len = header().log_bytes();
    let whole = read(&*log, 0, len as usize);
    let second_page = (2 * BLOCK) as u64 + (64 << 20);
    // A sector of each page that was not copied, or is outdated.
    for (at, bytes) in [(4096, [0; 512]), (second_page, [0; 512]), (second_page + 512, [0x55; 512])] {
        let copy = memory(len);
        write(&*copy, 0, &whole);
        write(&*copy, at, &bytes);
        assert!(matches!(sealed_over(&base, &copy), Err(OverlayError::Torn)), "a sector at {at}");
    }
    // All but the header, which is written last.
    let copy = memory(len);
    write(&*copy, 4096, &whole[4096..]);
    assert!(matches!(sealed_over(&base, &copy), Err(OverlayError::NotAnOverlay)));
    for end in [0, 512, 4096, 8192, len - 4096] {
        let copy = memory(end.max(512));
        write(&*copy, 0, &whole[..end as usize]);
        assert!(
            matches!(
                sealed_over(&base, &copy),
                Err(OverlayError::TooShort { .. } | OverlayError::NotAnOverlay)
            ),
            "{end} bytes"
        );
    }
}

#[test]
fn chain_of_sealed_overlays_reads_as_one_disk() {
    for seed in 0..8 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut below = base();
        let model = empty_in(&below, SIZE).0;
        for _ in 0..rng.usize(1..5) {
            let (layer, log) = empty_in(&below, SIZE);
            // The same work on both.
            let mut again = rng.clone();
            work(&mut rng, &layer);
            work(&mut again, &model);
            block_on(layer.seal(&cx())).expect("sealed");
            drop(layer);
            below = sealed_over(&below, &log).expect("opened again");
        }
        let (top, _) = empty_in(&below, SIZE);
        let mut again = rng.clone();
        work(&mut rng, &top);
        work(&mut again, &model);
        assert!(content(&*top) == content(&*model), "seed {seed}");
    }
}
