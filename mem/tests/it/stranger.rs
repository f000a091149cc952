//! Memory that a peer changes, and truncates, while it is in use.

use std::os::unix::fs::FileExt;
use std::thread;
use tombolo_mem::{MapError, Region, Sink, Source};

use crate::{PAGE, memfd};

#[test]
fn copies_during_concurrent_writes_return_written_bytes_only() {
    let region = Region::heap(64 * 1024);
    let (sink, source) = (Sink::from(&region), Source::from(&region));
    let patterns = [vec![0x55u8; region.len()], vec![0xAAu8; region.len()]];
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for len in [1, 3, 7, 16, 100, 4000, 64 * 1024].into_iter().cycle().take(2000) {
                let bytes = source.to_vec(len);
                assert!(bytes.iter().all(|byte| matches!(byte, 0x00 | 0x55 | 0xAA)));
            }
        });
        for pattern in patterns.iter().cycle().take_while(|_| !reader.is_finished()) {
            sink.write_at(0, pattern);
        }
    });
}

#[test]
fn a_mapping_shows_the_file_at_an_unaligned_offset() {
    let file = memfd(c"mapped", 4 * PAGE);
    file.write_all_at(b"somewhere", 5000).unwrap();
    let region = Region::map(&file, 5000, PAGE).unwrap();
    assert_eq!(Source::from(&region).to_vec(9), b"somewhere");
    assert_eq!(Sink::from(&region).write_at(4, b"HERE"), 4);
    let mut bytes = [0; 9];
    file.read_exact_at(&mut bytes, 5000).unwrap();
    assert_eq!(&bytes, b"someHEREe");
}

#[test]
fn high_offset_of_sparse_file_can_be_mapped() {
    let far = 1u64 << 36;
    let file = memfd(c"sparse", 0);
    file.set_len(far + PAGE as u64).unwrap();
    let region = Region::map(&file, far, PAGE).unwrap();
    region.write_at(0, b"far away").unwrap();
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, far).unwrap();
    assert_eq!(&bytes, b"far away");
}

#[test]
fn mapping_past_end_of_file_is_refused() {
    let file = memfd(c"short", PAGE);
    assert!(matches!(Region::map(&file, 0, PAGE + 1), Err(MapError::PastEnd { end: 4097, file_len: 4096 })));
    assert!(matches!(Region::map(&file, u64::MAX, 2), Err(MapError::Span { .. })));
    assert!(matches!(Region::map(&file, 0, 0), Err(MapError::Span { .. })));
}

#[test]
fn truncation_during_copy_poisons_only_its_region() {
    let (file, other_file) = (memfd(c"shrinks", 16 * PAGE), memfd(c"stays", PAGE));
    let region = Region::map(&file, 0, 16 * PAGE).unwrap();
    let other = Region::map(&other_file, 0, PAGE).unwrap();
    region.write_at(0, &[7; 16 * PAGE]).unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    let source = Source::from(&region);
    assert!(!region.is_poisoned());
    let bytes = source.to_vec(usize::MAX);
    assert_eq!(bytes.len(), 16 * PAGE);
    assert!(bytes[8 * PAGE..].iter().all(|byte| *byte == 0), "nothing is left beyond the end");
    assert!(region.is_poisoned() && source.is_poisoned());
    assert_eq!(Sink::from(&region).write_at(15 * PAGE, b"nowhere"), 7);
    assert!(!other.is_poisoned());
    other.write_at(0, b"fine").unwrap();
}

#[test]
fn truncation_under_many_threads_ends_none_of_them() {
    for _ in 0..50 {
        let file = memfd(c"raced", 64 * PAGE);
        let region = Region::map(&file, 0, 64 * PAGE).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let (sink, source) = (Sink::from(&region), Source::from(&region));
                    while !region.is_poisoned() {
                        sink.write_at(1, &[1; 8 * PAGE]);
                        source.to_vec(usize::MAX);
                    }
                });
            }
            thread::yield_now();
            file.set_len(0).unwrap();
        });
    }
}

#[test]
fn places_for_mappings_are_given_back() {
    let file = memfd(c"again", PAGE);
    for _ in 0..tombolo_mem::REGION_LIMIT * 2 {
        let region = Region::map(&file, 0, PAGE).unwrap();
        assert!(!region.is_poisoned());
    }
}

/// Runs a child that accesses a truncated mapping of its own, unknown to the handler: it must die of SIGBUS
/// as without the handler.
#[test]
fn a_fault_outside_of_all_regions_still_kills() {
    let file = memfd(c"ours", PAGE);
    let _installed = Region::map(&file, 0, PAGE).unwrap();
    let foreign = memfd(c"foreign", 0);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        use std::os::fd::AsRawFd;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, foreign.as_raw_fd(), 0)
    };
    assert_ne!(address, libc::MAP_FAILED);
    // SAFETY: the child only reads one byte and exits, calling nothing that could need another thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: mapped above; the read faults intentionally.
        unsafe { address.cast::<u8>().read_volatile() };
        // SAFETY: exits the child without running any of the parent's destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "status {status:#x}");
}
