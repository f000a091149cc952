//! Holes, and copies inside the kernel.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::cases;
use crate::pattern;
use crate::posix::World;
use crate::report::{Skip, Verdict};

cases! { "ranges":
    a_punched_hole_reads_as_zeros,
    data_and_holes_are_found,
    copy_file_range_is_exact,
    sendfile_is_exact,
    splice_is_exact,
}

const BLOCK: u64 = 65_536;

fn allocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Skip> {
    match rustix::fs::fallocate(file, flags, offset, len) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(Skip("this fallocate is not supported here".into())),
        Err(error) => panic!("fallocate: {error}"),
    }
}

fn a_punched_hole_reads_as_zeros(w: &World) -> Verdict {
    let file = w.file("file");
    let mut bytes = pattern(4 * BLOCK as usize, 1);
    file.write_all_at(&bytes, 0).expect("write");
    // Read before the change, so that a stale cache would show.
    assert!(fs::read(w.path("file")).expect("read") == bytes);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    allocate(&file, flags, BLOCK - 10, 2 * BLOCK + 20)?;
    bytes[BLOCK as usize - 10..3 * BLOCK as usize + 10].fill(0);
    assert!(fs::read(w.path("file")).expect("read") == bytes);
    Ok(())
}

fn data_and_holes_are_found(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(b"data", 4 * BLOCK).expect("write");
    file.set_len(8 * BLOCK).expect("ftruncate");
    file.sync_all().expect("fsync");
    let seek = |whence| rustix::fs::seek(&file, whence);
    assert_eq!(seek(SeekFrom::Data(8 * BLOCK)).expect_err("past the end"), Errno::NXIO);
    // A file system may report everything as data, but a reported hole must be one.
    let data = seek(SeekFrom::Data(0)).expect("data");
    assert!(data == 0 || data == 4 * BLOCK, "data at {data}");
    if data == 0 {
        return Err(Skip("holes are not told from data here".into()));
    }
    assert_eq!(seek(SeekFrom::Hole(8 * BLOCK - 1)).expect("hole"), 8 * BLOCK - 1);
    let hole = seek(SeekFrom::Hole(data)).expect("hole");
    assert!(hole >= data + 4 && hole <= 5 * BLOCK, "a hole begins at {hole}");
    assert_eq!(seek(SeekFrom::Hole(0)).expect("hole"), 0);
    Ok(())
}

fn source(w: &World) -> (File, Vec<u8>) {
    let (file, bytes) = (w.file("from"), pattern(300_000, 5));
    file.write_all_at(&bytes, 0).expect("write");
    (file, bytes)
}

fn copy_file_range_is_exact(w: &World) -> Verdict {
    let (from, bytes) = source(w);
    let to = w.file("to");
    let (mut from_offset, mut to_offset) = (13, 7);
    while from_offset < 200_013 {
        let left = (200_013 - from_offset) as usize;
        match rustix::fs::copy_file_range(&from, Some(&mut from_offset), &to, Some(&mut to_offset), left) {
            Ok(count) => assert!(count > 0, "a copy that makes no progress"),
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOSYS) => {
                return Err(Skip("no copy_file_range here".into()));
            }
            Err(error) => panic!("{error}"),
        }
    }
    let copied = fs::read(w.path("to")).expect("read");
    assert!(copied.len() == 200_007 && copied[..7] == [0; 7] && copied[7..] == bytes[13..200_013]);
    let (mut end, mut start) = (300_000, 0);
    let none = rustix::fs::copy_file_range(&from, Some(&mut end), &to, Some(&mut start), 10);
    assert_eq!(none.expect("a copy from the end"), 0);
    Ok(())
}

fn sendfile_is_exact(w: &World) {
    let (from, bytes) = source(w);
    let to = w.file("to");
    let mut offset = 0;
    while offset < 300_000 {
        let count = rustix::fs::sendfile(&to, &from, Some(&mut offset), 100_000).expect("sendfile");
        assert!(count > 0, "a copy that makes no progress");
    }
    assert!(fs::read(w.path("to")).expect("read") == bytes);
}

fn splice_is_exact(w: &World) {
    let (from, bytes) = source(w);
    let to = w.file("to");
    let (out, into) = rustix::pipe::pipe().expect("pipe");
    let flags = rustix::pipe::SpliceFlags::empty();
    let (mut read, mut written) = (0, 0);
    while written < 300_000 {
        if read < 300_000 {
            rustix::pipe::splice(&from, Some(&mut read), &into, None, 32_768, flags).expect("splice in");
        }
        let count =
            rustix::pipe::splice(&out, None, &to, Some(&mut written), 32_768, flags).expect("splice out");
        assert!(count > 0, "a copy that makes no progress");
    }
    assert!(fs::read(w.path("to")).expect("read") == bytes);
}
