//! Reading and writing.

use std::fs::{self, OpenOptions};
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::posix::world::{errno, pattern};
use crate::report::Verdict;

cases! { "data":
    written_bytes_are_read_back,
    eight_mebibytes_at_odd_offsets_are_exact,
    vectors_are_written_and_read_in_order,
    reading_stops_at_the_end,
    holes_read_as_zeros,
    offsets_beyond_four_gibibytes_work,
    append_goes_to_the_end,
    shrinking_discards_and_growing_adds_zeros,
    a_second_descriptor_sees_every_write,
    sync_succeeds,
    synchronous_writes_succeed,
    a_write_past_the_largest_size_is_refused,
    a_small_change_of_a_big_file_changes_nothing_else,
}

fn written_bytes_are_read_back(w: &World) -> Verdict {
    let file = w.file("file");
    let mut model = vec![0; 20_000];
    for (offset, len) in [(0, 10), (4090, 12), (4096, 4096), (100, 9000), (19_999, 1), (8191, 2)] {
        let bytes = pattern(len, offset);
        model[offset..offset + len].copy_from_slice(&bytes);
        file.write_all_at(&bytes, offset as u64).expect("write");
    }
    let mut bytes = vec![0; 20_000];
    file.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes == model);
    assert!(fs::read(w.path("file")).expect("read") == model);
    Ok(())
}

fn eight_mebibytes_at_odd_offsets_are_exact(w: &World) -> Verdict {
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
    Ok(())
}

fn vectors_are_written_and_read_in_order(w: &World) -> Verdict {
    let mut file = w.file("file");
    let bytes = pattern(30_000, 3);
    let slices = [IoSlice::new(&bytes[..1]), IoSlice::new(&bytes[1..9000]), IoSlice::new(&bytes[9000..])];
    assert_eq!(file.write_vectored(&slices).expect("writev"), 30_000);
    file.seek(SeekFrom::Start(0)).expect("seek");
    let (mut a, mut b) = (vec![0; 4097], vec![0; 25_903]);
    let count = file.read_vectored(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]).expect("readv");
    assert_eq!(count, 30_000);
    assert!([a, b].concat() == bytes);
    Ok(())
}

fn reading_stops_at_the_end(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(b"0123456789", 0).expect("write");
    let mut bytes = [0xAA; 32];
    assert_eq!(file.read_at(&mut bytes, 5).expect("read"), 5);
    assert_eq!(&bytes[..6], b"56789\xAA");
    assert_eq!(file.read_at(&mut bytes, 10).expect("read"), 0);
    assert_eq!(file.read_at(&mut bytes, 1 << 40).expect("read"), 0);
    Ok(())
}

fn holes_read_as_zeros(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(b"far", 3 << 20).expect("write");
    let bytes = fs::read(w.path("file")).expect("read");
    assert_eq!(bytes.len(), (3 << 20) + 3);
    assert!(bytes[..3 << 20].iter().all(|byte| *byte == 0));
    file.sync_all().expect("fsync");
    assert!(file.metadata().expect("fstat").blocks() * 512 < 3 << 20, "a hole takes no space");
    Ok(())
}

fn offsets_beyond_four_gibibytes_work(w: &World) -> Verdict {
    let file = w.file("file");
    let offset = (5 << 30) + 7;
    file.write_all_at(b"beyond", offset).expect("write");
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, offset).expect("read");
    assert_eq!(&bytes, b"beyond");
    assert_eq!(fs::metadata(w.path("file")).expect("stat").len(), offset + 6);
    file.read_exact_at(&mut bytes, 7).expect("read");
    assert_eq!(bytes, [0; 6], "offsets do not wrap");
    Ok(())
}

fn append_goes_to_the_end(w: &World) -> Verdict {
    let path = w.file_with("file", b"start");
    let mut file = OpenOptions::new().append(true).read(true).open(&path).expect("open");
    file.write_all(b", middle").expect("write");
    let other = OpenOptions::new().write(true).open(&path).expect("open");
    other.write_all_at(b", more", 13).expect("write");
    file.seek(SeekFrom::Start(0)).expect("seek");
    file.write_all(b", end").expect("write");
    assert_eq!(fs::read(&path).expect("read"), b"start, middle, more, end");
    Ok(())
}

fn shrinking_discards_and_growing_adds_zeros(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(&pattern(10_000, 1), 0).expect("write");
    file.set_len(5000).expect("ftruncate");
    file.set_len(10_000).expect("ftruncate");
    let mut expected = pattern(5000, 1);
    expected.resize(10_000, 0);
    assert!(fs::read(w.path("file")).expect("read") == expected, "what was cut off came back");
    rustix::fs::ftruncate(&file, 0).expect("ftruncate");
    file.set_len(1 << 20).expect("ftruncate");
    let bytes = fs::read(w.path("file")).expect("read");
    assert!(bytes.len() == 1 << 20 && bytes.iter().all(|byte| *byte == 0));
    let negative = rustix::fs::ftruncate(&file, u64::MAX).expect_err("no such size");
    assert!([Errno::INVAL, Errno::FBIG].contains(&negative));
    Ok(())
}

fn a_second_descriptor_sees_every_write(w: &World) -> Verdict {
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
    Ok(())
}

fn sync_succeeds(w: &World) -> Verdict {
    let mut file = w.file("file");
    file.write_all(b"data").expect("write");
    file.sync_data().expect("fdatasync");
    file.sync_all().expect("fsync");
    rustix::fs::syncfs(&file).expect("syncfs");
    fs::File::open(&w.dir).expect("open").sync_all().expect("fsync of a directory");
    Ok(())
}

fn synchronous_writes_succeed(w: &World) -> Verdict {
    let path = w.file_with("file", b"");
    for flags in [rustix::fs::OFlags::SYNC, rustix::fs::OFlags::DSYNC] {
        let file =
            OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(&path).expect("open");
        file.write_all_at(b"stable", 0).expect("write");
    }
    assert_eq!(fs::read(&path).expect("read"), b"stable");
    Ok(())
}

fn a_write_past_the_largest_size_is_refused(w: &World) -> Verdict {
    let file = w.file("file");
    let refused = errno(file.write_at(b"x", i64::MAX as u64));
    assert!([Errno::FBIG, Errno::INVAL].map(Errno::raw_os_error).contains(&refused), "{refused}");
    assert_eq!(file.metadata().expect("fstat").len(), 0);
    Ok(())
}

fn a_small_change_of_a_big_file_changes_nothing_else(w: &World) -> Verdict {
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
    Ok(())
}
