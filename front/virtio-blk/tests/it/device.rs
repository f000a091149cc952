//! Behaviour with well-behaved drivers.

use std::io::Read;
use std::time::Duration;

use tombolo_core::block::{BlockDevice, Profile, Range, Zeroing};
use tombolo_core::{Ctx, SessionId, Stability};
use tombolo_front_virtio_blk::Features;
use tombolo_vhost_driver::GUEST_BASE;

use crate::guest::*;
use crate::ram_disk::{Asked, DISK_BYTES, RamDisk};

#[test]
fn written_sectors_are_read_back() {
    let mut guest = Guest::new();
    let data: Vec<u8> = (0..4096u32).map(|n| (n * 7 + n / 256) as u8).collect();
    assert_eq!(guest.status(OUT, 3, &data), OK);
    let disk = guest.disk.bytes();
    assert_eq!(disk[3 * 512..][..4096], data);
    assert!(disk[..3 * 512].iter().chain(&disk[3 * 512 + 4096..]).all(|byte| *byte == 0xaa));
    assert_eq!(guest.ask(IN, 3, &[], 4096), (data.clone(), OK));
    assert_eq!(guest.ask(IN, 4, &[], 512), (data[512..1024].to_vec(), OK));
    let last = DISK_BYTES as u64 / 512 - 1;
    assert_eq!(guest.status(OUT, last, &[5; 512]), OK);
    assert_eq!(guest.ask(IN, last, &[], 512), (vec![5; 512], OK));
}

#[test]
fn a_request_may_be_cut_into_any_pieces() {
    let mut guest = Guest::new();
    let out = [&header(OUT, 8)[..], &[1; 512], &[2; 512]].concat();
    for cut in [&[1040][..], &[1, 15, 1024], &[16, 100, 924], &[7, 600, 433], &[16, 512, 512]] {
        assert_eq!(guest.status(WRITE_ZEROES, 0, &segment(8, 2, 0)), OK);
        assert_eq!(guest.raw(&out, cut, &[1]), [OK], "{cut:?}");
        assert_eq!(guest.disk.bytes()[8 * 512..][..1024], out[16..], "{cut:?}");
    }
    let expected = [&out[16..], &[OK]].concat();
    for cut in [&[1025][..], &[1024, 1], &[3, 1022], &[1, 1023, 1]] {
        assert_eq!(guest.raw(&header(IN, 8), &[16], cut), expected, "{cut:?}");
    }
}

#[test]
fn a_flush_is_answered_by_the_disk() {
    let mut guest = Guest::new();
    assert_eq!(guest.status(FLUSH, 0, &[]), OK);
    assert_eq!(guest.disk.asked(), [Asked::Flush]);
    guest.disk.fail(true);
    assert_eq!(guest.status(FLUSH, 0, &[]), IO_ERROR);
}

/// Expects stable writes for a driver that cannot flush or has turned the cache off.
#[test]
fn writes_are_stable_unless_the_driver_flushes() {
    let stability = |guest: &mut Guest| {
        assert_eq!(guest.status(OUT, 0, &[1; 512]), OK);
        assert_eq!(guest.status(WRITE_ZEROES, 0, &segment(0, 1, 0)), OK);
        match guest.disk.asked()[..] {
            [Asked::Write(0, 512, write), Asked::Zeroes(_, Zeroing { stability, .. })] => {
                assert_eq!(write, stability);
                write
            }
            ref asked => panic!("{asked:?}"),
        }
    };
    let mut guest = Guest::of(RamDisk::new(|_| ()), Features::empty());
    assert_eq!(stability(&mut guest), Stability::DataSync);
    let mut guest = Guest::of(RamDisk::new(|_| ()), Features::FLUSH);
    assert_eq!(stability(&mut guest), Stability::Unstable);
    let mut guest = Guest::new();
    assert_eq!(stability(&mut guest), Stability::Unstable);
    for (writeback, expected) in [(0, Stability::DataSync), (1, Stability::Unstable)] {
        guest.driver.front.set_config(32, &[writeback]).unwrap();
        assert_eq!(guest.driver.config(32, 1).unwrap(), [writeback]);
        assert_eq!(stability(&mut guest), expected);
    }
}

#[test]
fn ranges_are_discarded_and_zeroed_as_said() {
    let mut guest = Guest::new();
    assert_eq!(guest.status(DISCARD, 0, &segment(8, 16, 0)), OK);
    let range = Range { offset: 4096, len_bytes: 8192 };
    assert_eq!(guest.disk.asked(), [Asked::Discard(range)]);
    for (flags, may_unmap) in [(0, false), (1, true)] {
        assert_eq!(guest.status(WRITE_ZEROES, 0, &segment(8, 16, flags)), OK);
        let how = Zeroing { may_unmap, only_fast: false, stability: Stability::Unstable };
        assert_eq!(guest.disk.asked(), [Asked::Zeroes(range, how)]);
    }
    assert_eq!(guest.ask(IN, 8, &[], 8192), (vec![0; 8192], OK));
}

#[test]
fn the_serial_number_is_padded_with_zeroes() {
    let mut guest = Guest::new();
    assert_eq!(guest.ask(GET_ID, 0, &[], 20), (b"0123456789\0\0\0\0\0\0\0\0\0\0".to_vec(), OK));
    assert_eq!(guest.ask(GET_ID, 0, &[], 4), (b"0123".to_vec(), OK));
}

#[test]
fn the_configuration_space_tells_what_the_disk_is() {
    let mut guest = Guest::of(RamDisk::new(|disk| disk.block_bytes = 1024), Features::all());
    let config = guest.driver.config(0, 60).unwrap();
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!(config[..8], (DISK_BYTES as u64 / 512).to_le_bytes(), "capacity");
    assert_eq!((word(8), word(12)), (128 << 10, 126), "size_max, seg_max");
    assert_eq!(word(20), 1024, "blk_size");
    assert_eq!((config[24], config[25], word(26) as u16, word(28)), (2, 0, 4, 0), "topology");
    assert_eq!((config[32], word(34) as u16), (1, 2), "writeback, num_queues");
    assert_eq!((word(36), word(40), word(44)), (1 << 22, 1, 8), "discard");
    assert_eq!((word(48), word(52), config[56]), (1 << 22, 1, 1), "write zeroes");
    // Not a whole block.
    assert_eq!(guest.ask(IN, 1, &[], 1024).1, IO_ERROR);
    assert_eq!(guest.ask(IN, 2, &[], 1024).1, OK);
}

#[test]
fn features_match_the_disks_abilities() {
    let profile = Profile { read_only: false, has_cache: false, discards: false, zeroes_fast: false };
    let mut guest = Guest::of(RamDisk::new(|disk| disk.profile = profile), Features::all());
    let features = Features::from_bits_truncate(guest.driver.features());
    assert!(!features.intersects(Features::FLUSH | Features::CONFIG_WCE | Features::DISCARD));
    assert_eq!(guest.status(DISCARD, 0, &segment(0, 8, 0)), UNSUPPORTED);
    assert_eq!(guest.disk.asked(), []);
}

#[test]
fn a_disk_that_is_read_only_says_so() {
    let guest = Guest::of(RamDisk::new(|disk| disk.profile.read_only = true), Features::all());
    let features = Features::from_bits_truncate(guest.driver.features());
    assert!(features.contains(Features::READ_ONLY));
    assert!(!features.intersects(Features::DISCARD | Features::WRITE_ZEROES | Features::FLUSH));
}

#[test]
fn guest_is_notified_of_resize() {
    let mut guest = Guest::new();
    let mut way_back = guest.driver.front.open_way_back().unwrap();
    way_back.set_read_timeout(Some(PATIENCE)).unwrap();
    // The message that opens the channel has been handled once the next is answered.
    guest.driver.config(0, 8).unwrap();
    let resized = guest.disk.resize().unwrap().set_size(&Ctx::root(SessionId(1)), 2 << 20);
    resized.wait().unwrap();
    let mut message = [0; 12];
    way_back.read_exact(&mut message).unwrap();
    // CONFIG_CHANGE_MSG of version 1, without payload and without reply.
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(guest.driver.config(0, 8).unwrap(), (2u64 << 20 >> 9).to_le_bytes());
    assert_eq!(guest.ask(IN, 4095, &[], 512), (vec![0; 512], OK));
}

#[test]
fn guest_sees_no_status_before_the_data() {
    let mut guest = Guest::new();
    guest.disk.hold();
    let head = guest.submit(&header(IN, 0), &[16], &[512, 1]);
    assert!(guest.queues[0].wait_used(Duration::from_millis(50)).is_err());
    assert_eq!(guest.back(513), [UNTOUCHED; 513]);
    guest.disk.release();
    assert_eq!(guest.wait().head, head);
    assert_eq!(guest.back(513), [&[0xaa; 512][..], &[OK]].concat());
}

#[test]
fn gathering_disk_is_told_of_batch_end() {
    let mut guest = Guest::of(RamDisk::new(|disk| disk.gathers = true), Features::all());
    for _ in 0..10 {
        assert_eq!(guest.ask(IN, 0, &[], 512), (vec![0xaa; 512], OK));
    }
}

/// Compares guest memory before and after, page by page, with the dirty log of a live migration.
#[test]
fn a_read_marks_the_pages_that_it_has_changed() {
    const PAGE: usize = 4096;
    let mut guest = Guest::new();
    for sectors in [1, 7, 8, 9, 100] {
        let data: Vec<u8> = (0..sectors * 512).map(|n| (n % 251) as u8 | 1).collect();
        assert_eq!(guest.status(OUT, 16, &data), OK);
        let memory = |guest: &Guest| {
            let mut bytes = vec![0; guest.driver.region().len()];
            guest.driver.region().read_at(0, &mut bytes).unwrap();
            bytes
        };
        guest.disk.hold();
        let head = guest.submit(&header(IN, 16), &[16], &[100, sectors * 512 - 100, 1]);
        while guest.disk.asked().last() != Some(&Asked::Read(16 * 512, sectors * 512)) {
            std::thread::yield_now();
        }
        // Under way when logging begins.
        guest.driver.share_log().unwrap();
        let (first, second) = (&guest.queues[0], &guest.queues[1]);
        guest.driver.set_logging(true, &[first, second]).unwrap();
        guest.driver.share_log().unwrap();
        let before = memory(&guest);
        guest.disk.release();
        assert_eq!(guest.wait().head, head);
        guest.driver.stop_queue(0).unwrap();
        let after = memory(&guest);
        let changed = before.chunks(PAGE).zip(after.chunks(PAGE)).map(|(before, after)| before != after);
        let changed = (0..).zip(changed).filter_map(|(page, changed)| changed.then_some(page * PAGE as u64));
        let changed: Vec<u64> = changed.map(|at| GUEST_BASE + at).collect();
        let marked: Vec<u64> = guest.driver.dirty_pages().into_iter().collect();
        // The second queue's used ring was marked when logging began.
        let rings = guest.queues.iter().map(|queue| queue.used_ring().address / PAGE as u64 * PAGE as u64);
        let rings: Vec<u64> = rings.collect();
        let of_data =
            |pages: &[u64]| pages.iter().copied().filter(|page| !rings.contains(page)).collect::<Vec<_>>();
        assert_eq!(of_data(&marked), of_data(&changed), "{sectors} sectors");
        assert!(of_data(&marked).len() >= (sectors * 512).div_ceil(PAGE) && marked.contains(&rings[0]));
        assert_eq!(guest.back(sectors * 512), data);
        guest.driver.set_logging(false, &[]).unwrap();
        let base = guest.queues[0].used_index();
        guest.driver.restart_queue(0, base, &guest.queues[0]).unwrap();
    }
}
