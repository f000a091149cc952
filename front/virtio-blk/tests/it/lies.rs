//! Invalid chains: each gets an error status, the disk is not accessed, and the next request is served.

use crate::guest::*;
use crate::ram_disk::{DISK_BYTES, RamDisk};
use tombolo_front_virtio_blk::Features;

const SECTORS: u64 = DISK_BYTES as u64 / 512;

fn is_well(guest: &mut Guest) {
    assert_eq!(guest.ask(IN, 0, &[], 512), (vec![0xaa; 512], OK));
}

#[test]
fn ranges_that_the_disk_does_not_have() {
    let mut guest = Guest::new();
    for sector in [SECTORS, SECTORS - 1, u64::MAX, u64::MAX / 512, u64::MAX / 512 + 2, 1 << 63] {
        assert_eq!(guest.ask(IN, sector, &[], 1024).1, IO_ERROR, "{sector}");
        assert_eq!(guest.status(OUT, sector, &[1; 1024]), IO_ERROR, "{sector}");
        for kind in [DISCARD, WRITE_ZEROES] {
            assert_eq!(guest.status(kind, 0, &segment(sector, 2, 0)), IO_ERROR, "{kind} {sector}");
        }
    }
    for kind in [DISCARD, WRITE_ZEROES] {
        assert_eq!(guest.status(kind, 0, &segment(0, u32::MAX, 0)), IO_ERROR);
    }
    assert_eq!(guest.disk.asked(), []);
    is_well(&mut guest);
}

#[test]
fn lengths_that_are_not_whole_blocks() {
    let mut guest = Guest::new();
    for len in [1, 511, 513, 1000] {
        assert_eq!(guest.ask(IN, 0, &[], len).1, IO_ERROR, "{len}");
        assert_eq!(guest.status(OUT, 0, &vec![1; len]), IO_ERROR, "{len}");
    }
    for kind in [DISCARD, WRITE_ZEROES] {
        // No segment, half a segment, and two instead of one.
        for payload in [&[][..], &[0; 8], &[0; 17], &[0; 32]] {
            assert_eq!(guest.status(kind, 0, payload), IO_ERROR, "{kind} {}", payload.len());
        }
    }
    assert_eq!(guest.disk.asked(), []);
    is_well(&mut guest);
}

#[test]
fn requests_and_flags_that_there_are_not() {
    let mut guest = Guest::new();
    for kind in [2, 3, 5, 9, 10, 12, 14, 15, 24, 0x100, u32::MAX] {
        assert_eq!(guest.status(kind, 0, &[]), UNSUPPORTED, "{kind}");
    }
    assert_eq!(guest.status(DISCARD, 0, &segment(0, 8, 1)), UNSUPPORTED, "unmap, of a discard");
    for kind in [DISCARD, WRITE_ZEROES] {
        assert_eq!(guest.status(kind, 0, &segment(0, 8, 2)), UNSUPPORTED);
    }
    assert_eq!(guest.disk.asked(), []);
    is_well(&mut guest);
}

#[test]
fn chains_that_are_no_requests() {
    let mut guest = Guest::new();
    // A truncated header.
    for len in [1, 8, 15] {
        assert_eq!(guest.raw(&header(FLUSH, 0)[..len], &[len], &[1]), [IO_ERROR], "{len}");
    }
    assert_eq!(guest.raw(&[], &[], &[513])[512], IO_ERROR, "none at all");
    // No space for a status: returned empty, without an effect.
    let write = [&header(OUT, 0)[..], &[1; 512]].concat();
    let head = guest.submit(&write, &[16, 512], &[]);
    let used = guest.wait();
    assert_eq!((used.head, used.written), (head, 0));
    assert_eq!(guest.disk.asked(), []);
    assert_eq!(guest.disk.bytes(), vec![0xaa; DISK_BYTES]);
    is_well(&mut guest);
}

#[test]
fn failing_disk_returns_errors_until_repaired() {
    let mut guest = Guest::new();
    guest.disk.fail(true);
    assert_eq!(guest.status(OUT, 0, &[1; 512]), IO_ERROR);
    guest.disk.fail(false);
    is_well(&mut guest);
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let mut guest = Guest::of(RamDisk::new(|disk| disk.profile.discards = false), Features::empty());
    let set_features = tombolo_vhost_driver::request::SET_FEATURES;
    let features = guest.driver.features() | Features::DISCARD.bits();
    assert!(guest.driver.front.post_u64(set_features, features).is_err());
}
