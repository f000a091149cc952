//! Reading and writing.

use tombolo_core::fs::{LockOwner, OpenFlags, SetAttr, SyncScope, Write};
use tombolo_core::{Error, Stability};
use tombolo_mem::{Buffer, Sink, Source};

use super::cases;
use crate::waist::World;
use crate::{is_long_run, pattern, refused};

cases! { "data":
    written_bytes_are_read_back,
    big_transfers_at_odd_offsets_are_exact,
    reading_stops_at_the_end,
    the_end_is_told,
    holes_read_as_zeros,
    append_ignores_the_offset,
    a_write_in_place_does_not_append,
    openings_do_what_they_were_opened_for,
    shrinking_discards_what_was_there,
    growing_adds_zeros,
    a_size_is_set_through_an_opening needs OPENINGS,
    nothing_written_is_nothing_changed,
    writes_past_the_largest_size_are_refused,
    scattered_memory_is_filled_in_order,
    memory_beyond_a_short_read_is_left_alone,
    stability_is_at_least_as_asked,
    sync_and_flush_succeed,
    reading_a_directory_is_refused,
}

fn written_bytes_are_read_back(w: &World) {
    let file = w.file("file");
    let mut model = vec![0; 20_000];
    for (offset, len) in [(0, 10), (4090, 12), (4096, 4096), (100, 9000), (19_999, 1), (8191, 2)] {
        let bytes = pattern(len, offset);
        model[offset..offset + len].copy_from_slice(&bytes);
        w.write_all(file, offset as u64, &bytes);
        assert_eq!(w.read_all(file, offset as u64, len), bytes);
    }
    assert_eq!(w.read_all(file, 0, 20_000), model);
    assert_eq!(w.open_attr(file).size, 20_000);
    w.release(file);
}

fn big_transfers_at_odd_offsets_are_exact(w: &World) {
    // The longest is split by every protocol: a transfer has at most 4 MiB. One is enough for the gate, since
    // a link with one page needs a request per 4 KiB.
    let (short, long) = if is_long_run() { (8 << 20, 8 << 20) } else { (300_000, 5 << 20) };
    let file = w.file("file");
    let bytes = pattern(long, 7);
    for (offset, len) in [(0_u64, short), (1, short), (4095, short), (1_048_577, long)] {
        w.write_all(file, offset, &bytes[..len]);
        assert!(w.read_all(file, offset, len) == bytes[..len], "{len} bytes at {offset} were changed");
    }
    assert_eq!(w.open_attr(file).size, 1_048_577 + long as u64);
    w.release(file);
}

fn reading_stops_at_the_end(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, b"0123456789");
    assert_eq!(w.read_all(file, 5, 100), b"56789");
    assert_eq!(w.read_all(file, 10, 100), b"");
    assert_eq!(w.read_all(file, 1 << 40, 100), b"");
    w.release(file);
}

fn the_end_is_told(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, &pattern(10_000, 0));
    let (_, eof) = w.read_eof(file, 0, 4096).expect("read");
    assert!(!eof, "more follows");
    let (bytes, eof) = w.read_eof(file, 20_000, 10).expect("read");
    assert!(bytes.is_empty() && eof, "nothing follows past the end");
    let tail = w.read_all(file, 9_990, 10);
    assert_eq!(tail, pattern(10, 9_990), "what lies before the end is all there");
    w.release(file);
}

fn holes_read_as_zeros(w: &World) {
    let file = w.file("file");
    w.write_all(file, 3 << 20, b"far");
    assert_eq!(w.open_attr(file).size, (3 << 20) + 3);
    assert!(w.read_all(file, 0, 3 << 20).iter().all(|byte| *byte == 0));
    assert!(w.open_attr(file).blocks * 512 < 3 << 20, "a hole takes no space");
    w.release(file);
}

fn append_ignores_the_offset(w: &World) {
    let node = w.file_with("file", b"start");
    let file = w.open(node, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
    w.write_all(file, 0, b", middle");
    w.write_all(file, 1_000_000, b", end");
    assert_eq!(w.read_all(file, 0, 100), b"start, middle, end");
    w.release(file);
}

fn a_write_in_place_does_not_append(w: &World) {
    let node = w.file_with("file", b"0123456789");
    let file = w.open(node, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
    let how = Write { offset: 3, in_place: true, ..Write::default() };
    assert_eq!(w.write_as(file, &how, b"xyz").expect("write").count, 3);
    assert_eq!(w.read_all(file, 0, 100), b"012xyz6789");
    w.write_all(file, 0, b"+");
    assert_eq!(w.read_all(file, 0, 100), b"012xyz6789+");
    w.release(file);
}

fn openings_do_what_they_were_opened_for(w: &World) {
    let node = w.file_with("file", b"data");
    let reader = w.open(node, OpenFlags::READ).expect("open");
    let writer = w.open(node, OpenFlags::WRITE).expect("open");
    refused!(w.write_as(reader, &Write::default(), b"x"), Error::BadOpen);
    refused!(w.read_eof(writer, 0, 4), Error::BadOpen);
    assert_eq!(w.read_all(reader, 0, 10), b"data");
    w.write_all(writer, 0, b"DA");
    assert_eq!(w.read_all(reader, 0, 10), b"DAta");
    w.release(reader);
    w.release(writer);
}

fn shrinking_discards_what_was_there(w: &World) {
    let node = w.file_with("file", &pattern(10_000, 1));
    assert_eq!(w.truncate(node, 5000).expect("truncate").size, 5000);
    assert_eq!(w.contents(node), pattern(5000, 1));
    w.truncate(node, 10_000).expect("truncate");
    let mut expected = pattern(5000, 1);
    expected.resize(10_000, 0);
    assert!(w.contents(node) == expected, "what was cut off came back");
}

fn growing_adds_zeros(w: &World) {
    let node = w.file_with("file", b"abc");
    assert_eq!(w.truncate(node, 1 << 20).expect("truncate").size, 1 << 20);
    let contents = w.contents(node);
    assert_eq!((&contents[..3], contents.len()), (&b"abc"[..], 1 << 20));
    assert!(contents[3..].iter().all(|byte| *byte == 0));
}

fn a_size_is_set_through_an_opening(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, b"0123456789");
    w.unlink("file").expect("unlink");
    let set = SetAttr { size: Some(4), ..SetAttr::default() };
    let (attr, _) = w.fs.setattr(&w.cx, file.node, Some(file), &set).wait().expect("setattr");
    assert_eq!(attr.size, 4);
    assert_eq!(w.read_all(file, 0, 10), b"0123");
    w.release(file);
}

fn nothing_written_is_nothing_changed(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, b"abc");
    let how = Write { offset: 100, ..Write::default() };
    assert_eq!(w.write_as(file, &how, b"").expect("a write of nothing").count, 0);
    assert_eq!(w.open_attr(file).size, 3);
    assert_eq!(w.read_eof(file, 0, 0).expect("a read of nothing").0, b"");
    w.release(file);
}

fn writes_past_the_largest_size_are_refused(w: &World) {
    let file = w.file("file");
    let largest = w.fs.profile().file_size_max;
    let how = Write { offset: largest, ..Write::default() };
    refused!(w.write_as(file, &how, b"x"), Error::FileTooLarge | Error::InvalidArgument);
    let how = Write { offset: u64::MAX, ..Write::default() };
    refused!(w.write_as(file, &how, b"x"), Error::FileTooLarge | Error::InvalidArgument);
    refused!(w.truncate(file.node, u64::MAX), Error::FileTooLarge | Error::InvalidArgument);
    assert_eq!(w.open_attr(file).size, 0);
    w.release(file);
}

fn scattered_memory_is_filled_in_order(w: &World) {
    let file = w.file("file");
    let bytes = pattern(9000, 3);
    let pieces = [Source::from(bytes[..1].to_vec()), Source::from(bytes[1..5000].to_vec())];
    let mut source = Source::from(bytes[5000..].to_vec());
    for piece in pieces.into_iter().rev() {
        let mut front = piece;
        front.append(source);
        source = front;
    }
    let mut written = 0;
    while written < bytes.len() {
        let mut rest = source.clone();
        rest.advance(written);
        let how = Write { offset: written as u64, ..Write::default() };
        written += w.fs.write(&w.cx, file, &how, rest).wait().expect("write").count;
    }
    assert_eq!(w.read_all(file, 0, 9000), bytes);
    let mut buffers = [Buffer::new(4097), Buffer::new(3), Buffer::new(4900)];
    let mut read = 0;
    while read < bytes.len() {
        let mut sink = Sink::new();
        buffers.iter().for_each(|buffer| sink.append(buffer.sink(0..buffer.len())));
        sink.advance(read);
        let done = w.fs.read(&w.cx, file, read as u64, sink).wait().expect("read");
        assert!(done.count > 0, "a read that makes no progress");
        read += done.count;
    }
    let together: Vec<u8> =
        buffers.iter_mut().flat_map(|buffer| buffer.as_slice().expect("free again").to_vec()).collect();
    assert!(together == bytes, "scattered pieces came back out of order");
    w.release(file);
}

fn memory_beyond_a_short_read_is_left_alone(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, b"short");
    let mut buffer = Buffer::new(64);
    buffer.as_mut_slice().expect("it is not held").fill(0xAA);
    let done = w.fs.read(&w.cx, file, 0, buffer.sink(0..64)).wait().expect("read");
    assert!(buffer.as_slice().expect("free again")[done.count.max(5)..].iter().all(|byte| *byte == 0xAA));
    w.release(file);
}

fn stability_is_at_least_as_asked(w: &World) {
    let file = w.file("file");
    for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
        let written = w.write_as(file, &Write { stability, ..Write::default() }, b"data").expect("write");
        assert!(written.stability >= stability);
    }
    w.release(file);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    for sync in [OpenFlags::SYNC, OpenFlags::DATA_SYNC] {
        let file = w.open(file.node, flags | sync).expect("open");
        w.write_all(file, 0, b"sync");
        w.release(file);
    }
}

fn sync_and_flush_succeed(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, b"data");
    w.fs.fsync(&w.cx, file, SyncScope::Data).wait().expect("fdatasync");
    w.fs.fsync(&w.cx, file, SyncScope::All).wait().expect("fsync");
    w.fs.flush(&w.cx, file, LockOwner(1)).wait().expect("flush");
    w.release(file);
    let dir = w.open(w.dir, OpenFlags::READ | OpenFlags::DIRECTORY).expect("open directory");
    w.fs.fsync(&w.cx, dir, SyncScope::All).wait().expect("fsync of a directory");
    w.release(dir);
    w.fs.syncfs(&w.cx).wait().expect("syncfs");
}

fn reading_a_directory_is_refused(w: &World) {
    let dir = w.open(w.dir, OpenFlags::READ | OpenFlags::DIRECTORY).expect("open directory");
    refused!(w.read_eof(dir, 0, 10), Error::IsDirectory | Error::InvalidArgument | Error::BadOpen);
    w.release(dir);
}
