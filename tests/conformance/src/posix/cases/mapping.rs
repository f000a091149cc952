//! Files mapped into memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use tombolo_mem::Region;

use super::cases;
use crate::pattern;
use crate::posix::World;
use crate::report::{Skip, Verdict};

cases! { "mapping":
    a_store_is_seen_by_read,
    a_write_is_seen_by_a_mapping,
    a_store_outlives_its_mapping,
    a_store_through_an_appending_descriptor_stays_in_place,
    a_store_through_a_direct_descriptor_is_kept_to_the_last_byte,
    two_processes_share_a_mapping,
}

fn map(file: &File, len: usize) -> Result<Region, Skip> {
    match Region::map(file, 0, len) {
        Ok(region) => Ok(region),
        // Opens that bypass the page cache have no pages to share (FUSE, direct I/O).
        Err(tombolo_mem::MapError::System(error)) if error.raw_os_error() == Some(19) => {
            Err(Skip("shared mappings are not supported here".into()))
        }
        Err(error) => panic!("{error}"),
    }
}

fn a_store_is_seen_by_read(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(&pattern(10_000, 0), 0).expect("write");
    let region = map(&file, 10_000)?;
    region.write_at(5000, b"stored").expect("in bounds");
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, 5000).expect("read");
    assert_eq!(&bytes, b"stored");
    Ok(())
}

fn a_write_is_seen_by_a_mapping(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(&pattern(10_000, 0), 0).expect("write");
    let region = map(&file, 10_000)?;
    let mut bytes = [0; 7];
    region.read_at(4090, &mut bytes).expect("in bounds");
    assert_eq!(bytes[..], pattern(7, 4090)[..]);
    file.write_all_at(b"written", 4090).expect("write");
    region.read_at(4090, &mut bytes).expect("in bounds");
    assert_eq!(&bytes, b"written");
    Ok(())
}

fn a_store_outlives_its_mapping(w: &World) -> Verdict {
    let file = w.file("file");
    file.set_len(100_000).expect("ftruncate");
    let region = map(&file, 100_000)?;
    region.write_at(99_994, b"stored").expect("in bounds");
    drop(region);
    file.sync_all().expect("fsync");
    drop(file);
    let bytes = fs::read(w.path("file")).expect("read");
    assert_eq!((&bytes[99_994..], bytes.len()), (&b"stored"[..], 100_000));
    Ok(())
}

/// Verifies that the write-back of the last page ends at the end of the file.
fn a_store_through_a_direct_descriptor_is_kept_to_the_last_byte(w: &World) -> Verdict {
    use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
    const LEN: usize = 3 * 4096 + 1234;
    let path = w.file_with("file", &[b'.'; LEN]);
    for round in 0..2 {
        let file = match open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::INVAL) => return Err(Skip("there is no O_DIRECT here".into())),
            Err(error) => panic!("open: {error}"),
        };
        let stored = pattern(LEN, round);
        let region = map(&file, LEN)?;
        region.write_at(0, &stored).expect("in bounds");
        if round == 0 {
            // In the other round the last close writes it back.
            file.sync_all().expect("fsync");
        }
        drop((region, file));
        let again = File::open(&path).expect("open");
        // Read from the file, not from the page cache.
        fadvise(&again, 0, None, Advice::DontNeed).expect("fadvise");
        let mut bytes = vec![0; LEN];
        again.read_exact_at(&mut bytes, 0).expect("read");
        assert!(bytes == stored, "round {round}");
    }
    Ok(())
}

/// Verifies that write-back of a mapped page ignores O_APPEND.
fn a_store_through_an_appending_descriptor_stays_in_place(w: &World) -> Verdict {
    let path = w.file_with("file", &[b'.'; 10_000]);
    let file = fs::OpenOptions::new().read(true).append(true).open(&path).expect("open");
    let region = map(&file, 10_000)?;
    region.write_at(5000, b"stored").expect("in bounds");
    drop(region);
    file.sync_all().expect("fsync");
    drop(file);
    let bytes = fs::read(&path).expect("read");
    assert_eq!((bytes.len(), &bytes[5000..5006]), (10_000, &b"stored"[..]));
    Ok(())
}

fn two_processes_share_a_mapping(w: &World) -> Verdict {
    let file = w.file("file");
    file.set_len(10_000).expect("ftruncate");
    let region = map(&file, 10_000)?;
    let path = w.path("file").to_string_lossy().into_owned();
    w.helper(&["map-write", &path, "4094", "from the other"]);
    let mut bytes = [0; 14];
    region.read_at(4094, &mut bytes).expect("in bounds");
    assert_eq!(&bytes, b"from the other");
    region.write_at(0, b"from us").expect("in bounds");
    assert_eq!(w.helper(&["map-read", &path, "0", "7"]), "from us");
    Ok(())
}
