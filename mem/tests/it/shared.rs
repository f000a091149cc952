//! Memory shared by two sides: a peer's read-only file, and words loaded and stored atomically.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tombolo_mem::{LINE_BYTES, Lines, LinesMut, OutOfBounds, Region, Sink, Source, Word, WordMut};

use crate::{PAGE, memfd};

/// Returns a peer's memory, sealed so that only the owner can write it.
fn sealed(len: usize) -> (File, Region) {
    let file = memfd(c"sealed", len);
    let own = Region::map(&file, 0, len).unwrap();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open; the call takes a number.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    (file, own)
}

#[test]
fn sealed_peer_memory_is_readable_and_never_written() {
    let (file, own) = sealed(2 * PAGE);
    assert!(Region::map(&file, 0, PAGE).is_err(), "the seal forbids a mapping for writing");
    let peer = Region::map_read_only(&file, 0, 2 * PAGE).unwrap();
    own.write_at(100, b"told").unwrap();
    assert_eq!(Source::from(&peer).to_vec(104)[100..], *b"told");
    assert!(own.is_writable() && !peer.is_writable());

    let refused = |len| Err(OutOfBounds { offset: 100, len, region_len: 0 });
    assert_eq!(peer.write_at(100, b"tell"), refused(4));
    assert_eq!(peer.store_u16(100, 1, Relaxed), refused(2));
    assert_eq!(peer.store_u32(100, 1, Relaxed), refused(4));
    assert_eq!(peer.store_u64(100, 1, Relaxed), refused(8));
    let mut sink = Sink::from(&Region::heap(10));
    assert_eq!(sink.push(&peer, 100, 4), refused(4));
    assert_eq!(sink.len(), 10);
    assert!(Sink::from(&peer).is_empty());
    assert!(WordMut::new(&peer, 0).is_err() && LinesMut::new(&peer, 0, 1).is_err());
}

#[test]
fn a_descriptor_for_reading_is_enough_to_read() {
    let file = memfd(c"read", PAGE);
    file.write_all_at(b"seen", 0).unwrap();
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert!(Region::map(&read_only, 0, PAGE).is_err());
    let peer = Region::map_read_only(&read_only, 0, PAGE).unwrap();
    assert_eq!(Source::from(&peer).to_vec(4), b"seen");
}

#[test]
fn truncated_peer_file_poisons_its_read_only_region() {
    let file = memfd(c"shrinks", 4 * PAGE);
    file.write_all_at(&[7; 4 * PAGE], 0).unwrap();
    let peer = Region::map_read_only(&file, 0, 4 * PAGE).unwrap();
    let word = Word::new(&peer, 3 * PAGE).unwrap();
    let lines = Lines::new(&peer, 2 * PAGE, 64).unwrap();
    assert_eq!((word.load(Relaxed), lines.load(63, 7, Relaxed)), (0x0707_0707, 0x0707_0707_0707_0707));
    file.set_len(0).unwrap();
    assert_eq!(lines.load(0, 0, Acquire), 0);
    assert!(peer.is_poisoned() && word.is_poisoned() && lines.is_poisoned());
    assert_eq!((word.load(Acquire), peer.load_u64(0, Acquire)), (0, Ok(0)));
}

#[test]
fn words_are_loaded_and_stored_inside_and_aligned_only() {
    let region = Region::heap(64);
    region.store_u32(4, 0x0102_0304, Release).unwrap();
    region.store_u64(8, 5, Release).unwrap();
    assert_eq!(region.load_u32(4, Acquire), Ok(0x0102_0304));
    assert_eq!(region.load_u64(0, Acquire).map(u64::from_le), Ok(0x0102_0304 << 32));
    assert_eq!(region.load_u16(8, Acquire).map(u16::from_le), Ok(5));
    for offset in [1, 2, 62, 64, usize::MAX, usize::MAX - 3] {
        assert!(region.load_u32(offset, Relaxed).is_err(), "{offset}");
        assert!(Word::new(&region, offset).is_err(), "{offset}");
    }
    for offset in [4, 60, 63, 64, usize::MAX - 7] {
        assert!(region.load_u64(offset, Relaxed).is_err(), "{offset}");
        assert!(region.store_u64(offset, 0, Relaxed).is_err(), "{offset}");
    }
    let word = WordMut::new(&region, 60).unwrap();
    word.store(u32::MAX, Relaxed);
    word.add(2, Relaxed);
    assert_eq!(region.load_u32(60, Relaxed), Ok(1));
}

#[test]
fn lines_lie_inside_on_lines_and_wrap() {
    let region = Region::heap(6 * LINE_BYTES);
    let lines = LinesMut::new(&region, LINE_BYTES, 4).unwrap();
    for line in 0..8 {
        (0..8).for_each(|word| lines.store(line, word, (line * 8 + word) as u64, Relaxed));
    }
    assert_eq!(lines.load(1, 3, Relaxed), 5 * 8 + 3, "the fifth line is the first again");
    assert_eq!(lines.load(usize::MAX, 15, Relaxed), 7 * 8 + 7);
    assert_eq!(region.load_u64(0, Relaxed), Ok(0), "before them");
    assert_eq!(region.load_u64(5 * LINE_BYTES, Relaxed), Ok(0), "behind them");
    assert_eq!(region.load_u64(LINE_BYTES, Relaxed), Ok(32));
    for (offset, count) in
        [(0, 0), (0, 3), (0, 8), (4 * LINE_BYTES, 4), (8, 1), (0, usize::MAX), (usize::MAX, 1)]
    {
        assert!(Lines::new(&region, offset, count).is_err(), "{offset} {count}");
    }
}
