//! Images opened for direct I/O.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tombolo_back_image_file::{ImageFile, OpenError};
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::{Answer, Error, Result, Stability};
use tombolo_mem::{Buffer, Source};

use crate::{Bed, MIB};

fn open(bed: &Bed) -> Option<Arc<ImageFile>> {
    match ImageFile::open_direct(&bed.dir.path().join("disk.img"), &OpenOptions::default(), bed.pool.lane()) {
        Ok(disk) => Some(disk),
        Err(OpenError::NotDirect { .. }) => {
            tombolo_skip::skip!("the file system of {} has no direct transfers", bed.dir.path().display());
        }
        Err(error) => panic!("{error}"),
    }
}

/// Waits for an answer after submitting the batch.
fn submitted<T>(disk: &ImageFile, answer: Answer<T>) -> Result<T> {
    disk.submit();
    answer.wait()
}

#[test]
fn batched_direct_requests_get_their_own_data() {
    let bed = Bed::new();
    let path = bed.image(4 * MIB);
    let Some(disk) = open(&bed) else { return };
    let block = disk.geometry().block_bytes as usize;
    let places = |_| (0..700_usize).map(|number| (number, number as u64 * 4096));
    let writes: Vec<_> = places(())
        .map(|(number, offset)| {
            let bytes = Buffer::new(block);
            bytes.sink(0..block).write_at(0, &vec![number as u8; block]);
            disk.write(&bed.cx, offset, Stability::Unstable, bytes.source(0..block))
        })
        .collect();
    disk.submit();
    writes.into_iter().for_each(|answer| answer.wait().expect("written"));
    let reads: Vec<_> = places(())
        .map(|(number, offset)| {
            let buffer = Buffer::new(block);
            let answer = disk.read(&bed.cx, offset, buffer.sink(0..block));
            (number, buffer, answer)
        })
        .collect();
    disk.submit();
    for (number, mut buffer, answer) in reads {
        answer.wait().expect("read");
        assert!(buffer.as_slice().expect("ours alone").iter().all(|byte| *byte == number as u8), "{number}");
    }
    submitted(&disk, disk.flush(&bed.cx)).expect("flushed");
    // Direct I/O and the page cache show the same file.
    let mut found = [0; 1];
    File::open(path).expect("open").read_exact_at(&mut found, 699 * 4096).expect("read");
    assert_eq!(found, [699_u32 as u8]);
}

#[test]
fn direct_io_accepts_unaligned_and_large_memory() {
    let bed = Bed::new();
    bed.image(8 * MIB);
    let Some(disk) = open(&bed) else { return };
    let len = 3 * MIB as usize;
    let bytes: Vec<u8> = (0..len).map(|at| (at / 4099) as u8).collect();
    let outgoing = Buffer::new(len + 1);
    outgoing.sink(1..len + 1).write_at(0, &bytes);
    let answer = disk.write(&bed.cx, 4096, Stability::DataSync, outgoing.source(1..len + 1));
    submitted(&disk, answer).expect("written");
    let mut incoming = Buffer::new(len + 3);
    let answer = disk.read(&bed.cx, 4096, incoming.sink(3..len + 3));
    submitted(&disk, answer).expect("read");
    assert!(incoming.as_slice().expect("ours alone")[3..] == bytes);
}

#[test]
fn truncated_direct_image_fails_and_is_unlocked_on_drop() {
    let bed = Bed::new();
    let path = bed.image(MIB);
    let Some(disk) = open(&bed) else { return };
    // Also within a block, and with aligned and unaligned memory.
    for len_bytes in [MIB / 2, MIB / 2 + 100] {
        File::options().write(true).open(&path).expect("open").set_len(len_bytes).expect("cut");
        for (offset, skip) in [(MIB / 2 - 4096, 0), (MIB / 2, 0), (MIB / 2 - 4096, 3), (MIB / 2, 3)] {
            let buffer = Buffer::new(8192 + skip);
            let answer = disk.read(&bed.cx, offset, buffer.sink(skip..8192 + skip));
            assert!(
                matches!(submitted(&disk, answer), Err(Error::Io { .. })),
                "{len_bytes}: {offset} {skip}"
            );
        }
    }
    let buffer = Buffer::new(100);
    let odd = disk.read(&bed.cx, 0, buffer.sink(0..100));
    assert!(matches!(submitted(&disk, odd), Err(Error::InvalidArgument)));
    let odd = disk.write(&bed.cx, 0, Stability::Unstable, buffer.source(0..100));
    assert!(matches!(submitted(&disk, odd), Err(Error::InvalidArgument)));
    let beyond = disk.write(&bed.cx, MIB, Stability::Unstable, Source::from(vec![0; 4096]));
    assert!(matches!(submitted(&disk, beyond), Err(Error::InvalidArgument)));
    assert!(matches!(bed.open(&path, &OpenOptions::default()), Err(OpenError::InUse { .. })));
    drop(disk);
    drop(bed.open(&path, &OpenOptions::default()).expect("free again"));
}
