//! Reading and writing.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::cases;
use crate::pattern;
use crate::posix::World;

cases! { "data":
    eight_mebibytes_at_odd_offsets_are_exact,
    offsets_beyond_four_gibibytes_work,
    a_second_descriptor_sees_every_write,
    sync_succeeds,
    synchronous_writes_succeed,
    a_small_change_of_a_big_file_changes_nothing_else,
}

fn eight_mebibytes_at_odd_offsets_are_exact(w: &World) {
    const LEN: usize = 8 << 20;
    let file = w.file("file");
    for offset in [0_u64, 1, 4095, 1_048_577] {
        let bytes = pattern(LEN, offset as usize);
        file.write_all_at(&bytes, offset).expect("write");
        let mut read = vec![0; LEN];
        file.read_exact_at(&mut read, offset).expect("read");
        assert!(read == bytes, "8 MiB at {offset} came back changed");
    }
    drop(file);
    let all = fs::read(w.path("file")).expect("read");
    assert_eq!(all.len(), 1_048_577 + LEN);
    assert!(all[1_048_577..] == pattern(LEN, 1_048_577));
}

fn offsets_beyond_four_gibibytes_work(w: &World) {
    let file = w.file("file");
    let offset = (5 << 30) + 7;
    file.write_all_at(b"beyond", offset).expect("write");
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, offset).expect("read");
    assert_eq!(&bytes, b"beyond");
    assert_eq!(fs::metadata(w.path("file")).expect("stat").len(), offset + 6);
    file.read_exact_at(&mut bytes, 7).expect("read");
    assert_eq!(bytes, [0; 6], "offsets do not wrap");
}

fn a_second_descriptor_sees_every_write(w: &World) {
    let file = w.file("file");
    let other = OpenOptions::new().read(true).write(true).open(w.path("file")).expect("open");
    for round in 0..100_u64 {
        let text = format!("round {round}");
        file.write_all_at(text.as_bytes(), round * 3).expect("write");
        let mut bytes = vec![0; text.len()];
        other.read_exact_at(&mut bytes, round * 3).expect("read");
        assert_eq!(bytes, text.as_bytes());
        assert_eq!(fs::metadata(w.path("file")).expect("stat").len(), round * 3 + text.len() as u64);
    }
}

fn sync_succeeds(w: &World) {
    let mut file = w.file("file");
    file.write_all(b"data").expect("write");
    file.sync_data().expect("fdatasync");
    file.sync_all().expect("fsync");
    rustix::fs::syncfs(&file).expect("syncfs");
    fs::File::open(&w.dir).expect("open").sync_all().expect("fsync of a directory");
}

fn synchronous_writes_succeed(w: &World) {
    let path = w.file_with("file", b"");
    for flags in [rustix::fs::OFlags::SYNC, rustix::fs::OFlags::DSYNC] {
        let file =
            OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(&path).expect("open");
        file.write_all_at(b"stable", 0).expect("write");
    }
    assert_eq!(fs::read(&path).expect("read"), b"stable");
}

fn a_small_change_of_a_big_file_changes_nothing_else(w: &World) {
    const LEN: usize = 2 << 20;
    let path = w.file_with("file", &pattern(LEN, 0));
    let mut model = pattern(LEN, 0);
    // Fresh descriptors, so that no state is kept between steps.
    for (step, offset) in [5, 4095, 131_071, 1 << 20, LEN - 3].into_iter().enumerate() {
        let bytes = [step as u8; 3];
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        file.write_all_at(&bytes, offset as u64).expect("write");
        drop(file);
        model[offset..offset + 3].copy_from_slice(&bytes);
        let mut read = Vec::new();
        OpenOptions::new().read(true).open(&path).expect("open").read_to_end(&mut read).expect("read");
        assert!(read == model, "after a change at {offset}");
    }
}
