//! Retained write data: nothing overwrites data that a file system retains after its answer.

use crate::common::{Mounted, OneFile, Shared};
use std::fs::File as HostFile;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tombolo_front_fuse::dev::Options;
use tombolo_mem::Source;

const PIECE: usize = 256 << 10;

fn piece(number: u64) -> Vec<u8> {
    (0..PIECE as u64).map(|at| (at.wrapping_mul(number + 7) >> 3) as u8).collect()
}

fn write_pieces(file: &HostFile, numbers: std::ops::Range<u64>) {
    for number in numbers {
        file.write_all_at(&piece(number), number * PIECE as u64).expect("written");
    }
}

fn check(retained: &[(u64, Source)]) {
    for (offset, source) in retained {
        assert!(source.to_vec(PIECE) == piece(offset / PIECE as u64), "the data at {offset} changed");
    }
}

fn keeps(later: bool) {
    let one_file = Arc::new(OneFile { later, ..OneFile::default() });
    let mounted = Mounted::new(&Shared(one_file.clone()), &Options::default());
    let file = HostFile::options().write(true).open(mounted.at("file")).expect("open");
    write_pieces(&file, 0..200);
    let mut retained = std::mem::take(&mut *one_file.retained.lock().unwrap());
    assert_eq!(retained.len(), 64, "as many as the mount lends, and no more");
    check(&retained);
    retained.truncate(30);
    write_pieces(&file, 200..400);
    let more = std::mem::take(&mut *one_file.retained.lock().unwrap());
    assert_eq!(more.len(), 34, "what was let go is lent again");
    check(&retained);
    check(&more);
    drop((retained, more));
    for (len_bytes, is_retained) in [(4096, false), (60 << 10, false), (64 << 10, true)] {
        file.write_all_at(&vec![7; len_bytes], 0).expect("written");
        let retained = std::mem::take(&mut *one_file.retained.lock().unwrap());
        assert_eq!(!retained.is_empty(), is_retained, "a sixteenth of the buffer or more: {len_bytes}");
    }
}

#[test]
fn retained_payloads_do_not_change_and_are_bounded() {
    keeps(false);
}

#[test]
fn retained_payloads_of_writes_answered_later_do_not_change() {
    keeps(true);
}
