//! Operations on ranges of files.

use tombolo_core::fs::{AllocateMode, File, OpenFlags, Whence};
use tombolo_core::{Error, Result};

use super::cases;
use crate::waist::world::supported;
use crate::waist::{Verdict, World};
use crate::{pattern, refused};

cases! { "ranges":
    allocation_grows_the_file_with_zeros needs RANGES,
    allocation_may_leave_the_size_alone needs RANGES,
    a_punched_hole_reads_as_zeros needs RANGES,
    a_zeroed_range_reads_as_zeros needs RANGES,
    a_collapsed_range_is_gone needs RANGES,
    an_inserted_range_is_zeros needs RANGES,
    bad_ranges_are_refused needs RANGES,
    data_and_holes_are_found needs RANGES,
    nothing_is_found_past_the_end needs RANGES,
    a_copy_is_exact needs RANGES,
    a_copy_stops_at_the_end needs RANGES,
    a_copy_within_a_file_moves_bytes needs RANGES,
    a_copy_does_not_append needs RANGES,
}

/// A multiple of every host's block size.
const BLOCK: u64 = 65_536;

fn allocate(w: &World, file: File, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
    w.ranges().allocate(&w.cx, file, offset, len, mode).wait()
}

fn seek(w: &World, file: File, offset: u64, whence: Whence) -> Result<u64> {
    w.ranges().seek(&w.cx, file, offset, whence).wait()
}

/// Creates a file of four blocks.
fn four_blocks(w: &World) -> (File, Vec<u8>) {
    let (file, bytes) = (w.file("file"), pattern(4 * BLOCK as usize, 1));
    w.write_all(file, 0, &bytes);
    (file, bytes)
}

fn allocation_grows_the_file_with_zeros(w: &World) -> Verdict {
    let file = w.file("file");
    w.write_all(file, 0, b"kept");
    supported(allocate(w, file, 0, 100_000, AllocateMode::empty()))?;
    let attr = w.open_attr(file);
    assert_eq!(attr.size, 100_000);
    assert!(attr.blocks * 512 >= 100_000, "space was set aside");
    let bytes = w.read_all(file, 0, 100_000);
    assert!(bytes.starts_with(b"kept") && bytes[4..].iter().all(|byte| *byte == 0));
    w.release(file);
    Ok(())
}

fn allocation_may_leave_the_size_alone(w: &World) -> Verdict {
    let file = w.file("file");
    w.write_all(file, 0, b"kept");
    supported(allocate(w, file, 0, 100_000, AllocateMode::KEEP_SIZE))?;
    assert_eq!((w.open_attr(file).size, w.read_all(file, 0, 10)), (4, b"kept".to_vec()));
    w.release(file);
    Ok(())
}

fn a_punched_hole_reads_as_zeros(w: &World) -> Verdict {
    let (file, mut bytes) = four_blocks(w);
    let before = w.open_attr(file).blocks;
    let mode = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    supported(allocate(w, file, BLOCK - 10, 2 * BLOCK + 20, mode))?;
    bytes[BLOCK as usize - 10..3 * BLOCK as usize + 10].fill(0);
    assert!(w.read_all(file, 0, bytes.len()) == bytes);
    assert!(w.open_attr(file).blocks < before, "its space is free again");
    assert_eq!(w.open_attr(file).size, 4 * BLOCK);
    w.release(file);
    Ok(())
}

fn a_zeroed_range_reads_as_zeros(w: &World) -> Verdict {
    let (file, mut bytes) = four_blocks(w);
    supported(allocate(w, file, 100, BLOCK, AllocateMode::ZERO_RANGE))?;
    bytes[100..100 + BLOCK as usize].fill(0);
    assert!(w.read_all(file, 0, bytes.len()) == bytes);
    allocate(w, file, 4 * BLOCK - 5, 10, AllocateMode::ZERO_RANGE).expect("beyond the end");
    assert_eq!(w.open_attr(file).size, 4 * BLOCK + 5);
    w.release(file);
    Ok(())
}

fn a_collapsed_range_is_gone(w: &World) -> Verdict {
    let (file, mut bytes) = four_blocks(w);
    supported(allocate(w, file, BLOCK, BLOCK, AllocateMode::COLLAPSE_RANGE))?;
    bytes.drain(BLOCK as usize..2 * BLOCK as usize);
    assert_eq!(w.open_attr(file).size, 3 * BLOCK);
    assert!(w.read_all(file, 0, bytes.len() + 1) == bytes);
    refused!(allocate(w, file, BLOCK, 2 * BLOCK, AllocateMode::COLLAPSE_RANGE), Error::InvalidArgument);
    refused!(allocate(w, file, 1, BLOCK, AllocateMode::COLLAPSE_RANGE), Error::InvalidArgument);
    w.release(file);
    Ok(())
}

fn an_inserted_range_is_zeros(w: &World) -> Verdict {
    let (file, mut bytes) = four_blocks(w);
    supported(allocate(w, file, BLOCK, BLOCK, AllocateMode::INSERT_RANGE))?;
    let at = BLOCK as usize;
    bytes.splice(at..at, std::iter::repeat_n(0, at));
    assert!(w.read_all(file, 0, bytes.len() + 1) == bytes);
    refused!(allocate(w, file, 5 * BLOCK, BLOCK, AllocateMode::INSERT_RANGE), Error::InvalidArgument);
    w.release(file);
    Ok(())
}

fn bad_ranges_are_refused(w: &World) -> Verdict {
    let file = w.file("file");
    supported(allocate(w, file, 0, 10, AllocateMode::empty()))?;
    refused!(allocate(w, file, 0, 0, AllocateMode::empty()), Error::InvalidArgument);
    refused!(
        allocate(w, file, u64::MAX - 5, 10, AllocateMode::empty()),
        Error::FileTooLarge | Error::InvalidArgument
    );
    // PUNCH_HOLE requires KEEP_SIZE (fallocate(2)).
    refused!(
        allocate(w, file, 0, 10, AllocateMode::PUNCH_HOLE),
        Error::NotSupported | Error::InvalidArgument
    );
    let reader = w.open(file.node, OpenFlags::READ).expect("open");
    refused!(allocate(w, reader, 0, 10, AllocateMode::empty()), Error::BadOpen);
    assert_eq!(w.open_attr(file).size, 10);
    w.release(file);
    w.release(reader);
    Ok(())
}

fn data_and_holes_are_found(w: &World) -> Verdict {
    let file = w.file("file");
    w.write_all(file, 4 * BLOCK, b"data");
    w.truncate(file.node, 8 * BLOCK).expect("truncate");
    let data = supported(seek(w, file, 0, Whence::Data))?;
    assert_eq!(data, 4 * BLOCK);
    assert_eq!(seek(w, file, 0, Whence::Hole).expect("hole"), 0);
    assert_eq!(seek(w, file, data + 1, Whence::Data).expect("data"), data + 1);
    let hole = seek(w, file, data, Whence::Hole).expect("hole");
    assert!(hole >= data + 4 && hole <= 5 * BLOCK, "a hole begins at {hole}");
    refused!(seek(w, file, hole, Whence::Data), Error::NoDevice);
    w.release(file);
    Ok(())
}

fn nothing_is_found_past_the_end(w: &World) -> Verdict {
    let file = w.file("file");
    w.write_all(file, 0, b"data");
    assert_eq!(supported(seek(w, file, 0, Whence::Hole))?, 4, "every file ends with a hole");
    refused!(seek(w, file, 4, Whence::Data), Error::NoDevice);
    refused!(seek(w, file, 4, Whence::Hole), Error::NoDevice);
    refused!(seek(w, file, 1 << 40, Whence::Data), Error::NoDevice);
    w.release(file);
    Ok(())
}

fn copy(w: &World, from: File, from_offset: u64, to: File, to_offset: u64, len: u64) -> Result<u64> {
    w.ranges().copy(&w.cx, from, from_offset, to, to_offset, len).wait()
}

/// Copies the whole range in as many calls as needed.
fn copy_all(
    w: &World,
    from: (File, u64),
    to: (File, u64),
    len: u64,
) -> std::result::Result<u64, crate::waist::Skip> {
    let mut done = 0;
    while done < len {
        let count = supported(copy(w, from.0, from.1 + done, to.0, to.1 + done, len - done))?;
        if count == 0 {
            break;
        }
        done += count;
    }
    Ok(done)
}

fn a_copy_is_exact(w: &World) -> Verdict {
    let (from, bytes) = four_blocks(w);
    let to = w.file("to");
    assert_eq!(copy_all(w, (from, 13), (to, 7), 100_000)?, 100_000);
    let copied = w.read_all(to, 0, 200_000);
    assert!(copied[..7].iter().all(|byte| *byte == 0) && copied[7..] == bytes[13..100_013]);
    w.release(from);
    w.release(to);
    Ok(())
}

fn a_copy_stops_at_the_end(w: &World) -> Verdict {
    let (from, to) = (w.file("from"), w.file("to"));
    w.write_all(from, 0, b"0123456789");
    assert_eq!(copy_all(w, (from, 4), (to, 0), 100)?, 6);
    assert_eq!(w.read_all(to, 0, 100), b"456789");
    assert_eq!(supported(copy(w, from, 10, to, 0, 100))?, 0);
    w.release(from);
    w.release(to);
    Ok(())
}

fn a_copy_within_a_file_moves_bytes(w: &World) -> Verdict {
    let file = w.file("file");
    w.write_all(file, 0, b"0123456789");
    assert_eq!(copy_all(w, (file, 0), (file, 10), 5)?, 5);
    assert_eq!(w.read_all(file, 0, 100), b"012345678901234");
    refused!(copy(w, file, 0, file, 2, 5), Error::InvalidArgument);
    w.release(file);
    Ok(())
}

/// Verifies EBADF, as by copy_file_range(2): the offset and O_APPEND contradict each other.
fn a_copy_does_not_append(w: &World) {
    let (from, bytes) = four_blocks(w);
    let flags = OpenFlags::WRITE | OpenFlags::APPEND;
    let to = w.open(w.file_with("to", b"kept"), flags).expect("open");
    refused!(copy(w, from, 0, to, 0, 10), Error::BadOpen);
    assert_eq!((w.open_attr(to).size, bytes.len() as u64), (4, 4 * BLOCK));
    w.release(from);
    w.release(to);
}
