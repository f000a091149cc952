//! All conformance cases of the block waist over the NBD client.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tombolo_back_memory::MemoryDisk;
use tombolo_conformance::disk::Wanted;
use tombolo_core::Stability;
use tombolo_core::block::{Allocation, BlockDevice, Range};

use crate::common::{Bed, SIZE, cx, every_case, extents, read, write};

/// Runs the cases on a disk behind `chain` servers, each a client of the one before.
fn over_our_servers(chain: usize) {
    every_case(|Wanted { size_bytes, read_only }| {
        let new = if read_only { MemoryDisk::read_only } else { MemoryDisk::new };
        let mut disk: Arc<dyn BlockDevice> = Arc::new(new(size_bytes).unwrap());
        let mut kept = Vec::new();
        for _ in 0..chain {
            let bed = Bed::new();
            let server = bed.serve(disk);
            disk = bed.connect();
            kept.push((server, bed));
        }
        (disk, kept)
    });
}

#[test]
fn every_case_over_our_server() {
    over_our_servers(1);
}

#[test]
fn every_case_over_two_chained_servers() {
    over_our_servers(2);
}

#[test]
fn every_case_over_an_image() {
    every_case(|wanted| {
        let bed = Bed::new();
        let server = bed.serve(bed.opened_as(wanted.read_only));
        (bed.connect(), (server, bed))
    });
}

#[test]
fn every_case_over_qemu_nbd() {
    every_case(|wanted| {
        let bed = Bed::new();
        let read_only = if wanted.read_only { &["-r"][..] } else { &[] };
        let server = bed.qemu_nbd(&[read_only, &["-e", "4", "--discard=unmap"]].concat());
        (bed.connect(), (server, bed))
    });
}

#[test]
fn long_requests_are_split() {
    let bed = Bed::new();
    let image = bed.opened();
    image.resize().unwrap().set_size(&cx(), 80 << 20).wait().unwrap();
    let _server = bed.serve(image);
    let disk = bed.connect();
    let bytes: Vec<u8> = (0..70 << 20).map(|at: u32| (at / 4099) as u8).collect();
    write(&*disk, 512, Stability::Unstable, &bytes).unwrap();
    assert!(read(&*disk, 512, bytes.len()).unwrap() == bytes);
}

#[test]
fn holes_are_reported_and_created_by_discard() {
    let bed = Bed::new();
    let _server = bed.serve(bed.opened());
    let disk = bed.connect();
    write(&*disk, 1 << 20, Stability::DataSync, &[7; 64 << 10]).unwrap();
    let range = Range { offset: 0, len_bytes: SIZE };
    let lengths = |disk: &dyn BlockDevice| -> Vec<(u64, Allocation)> {
        extents(disk, range, 7).iter().map(|extent| (extent.len_bytes, extent.allocation)).collect()
    };
    let rest = SIZE - (1 << 20) - (64 << 10);
    let hole = |len| (len, Allocation::Hole);
    assert_eq!(lengths(&*disk), [hole(1 << 20), (64 << 10, Allocation::Data), hole(rest)]);
    disk.discard(&cx(), Range { offset: 1 << 20, len_bytes: 64 << 10 }).wait().unwrap();
    assert!(lengths(&*disk).iter().all(|(_, allocation)| *allocation != Allocation::Data));
}

/// Writes every other block of an image of 40 MiB: 10,240 extents, more than a reply has or a client decodes.
fn fragment(bed: &Bed) {
    let image = File::options().write(true).open(bed.image()).unwrap();
    image.set_len(FRAGMENTED).unwrap();
    (0..FRAGMENTED).step_by(8192).for_each(|at| image.write_all_at(&[7; 4096], at).unwrap());
}

const FRAGMENTED: u64 = 40 << 20;

fn assert_fragmented(disk: &dyn BlockDevice) {
    let found = extents(disk, Range { offset: 0, len_bytes: FRAGMENTED }, 8192);
    assert_eq!(found.len() as u64, FRAGMENTED / 4096);
    for (index, extent) in found.iter().enumerate() {
        let found = (extent.len_bytes, extent.allocation == Allocation::Data);
        assert_eq!(found, (4096, index % 2 == 0), "{index}");
    }
}

#[test]
fn thousands_of_extents_are_reported_by_our_server() {
    let bed = Bed::new();
    fragment(&bed);
    let _server = bed.serve(bed.opened());
    assert_fragmented(&*bed.connect());
}

#[test]
fn thousands_of_extents_are_reported_by_qemu_nbd() {
    let bed = Bed::new();
    fragment(&bed);
    let _server = bed.qemu_nbd(&[]);
    assert_fragmented(&*bed.connect());
}
