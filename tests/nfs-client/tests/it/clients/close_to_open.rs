//! Close-to-open consistency: an open sees what another client wrote and closed.

use std::time::{Duration, Instant};

use tombolo_core::fs::OpenFlags;
use tombolo_test_support::until;
use tombolo_wire_nfs3::Procedure;

use crate::clients::pair::{Pair, close};

#[test]
fn an_open_sees_what_another_client_closed() {
    let pair = Pair::new();
    let mut expected = Vec::new();
    for round in 0..50_usize {
        let (writer, reader) = if round % 2 == 0 { (&pair.one, &pair.two) } else { (&pair.two, &pair.one) };
        // Longer, then shorter, and equally long, where only the contents differ.
        expected = vec![b'a' + (round % 26) as u8; [10, 5000, 5000, 70_000, 3][round % 5]];
        let file = match round {
            0 => writer.file("file"),
            _ => writer.open("file", OpenFlags::WRITE | OpenFlags::TRUNCATE).expect("open"),
        };
        writer.write_all(file, 0, &expected);
        close(writer, file).expect("closed");

        let file = reader.reader("file");
        let read = reader.read_all(file, 0, 100_000);
        assert!(
            read == expected,
            "round {round}: {} bytes, where {} were written",
            read.len(),
            expected.len()
        );
        assert_eq!(reader.open_attr(file).size, expected.len() as u64);
        reader.release(file);
    }
    assert!(!expected.is_empty());
}

#[test]
fn open_revalidates_once_despite_fresh_attributes() {
    let pair = Pair::new();
    let node = pair.one.file_with("file", b"contents");
    for _ in 0..5 {
        let before = pair.server.count_of(Procedure::Getattr) + pair.server.count_of(Procedure::Access);
        pair.one.release(pair.one.reader(node));
        let asked =
            pair.server.count_of(Procedure::Getattr) + pair.server.count_of(Procedure::Access) - before;
        assert!((1..=2).contains(&asked), "{asked} calls for an open");
    }
}

#[test]
fn unclosed_data_are_visible_after_sync() {
    let pair = Pair::new();
    let file = pair.one.file("file");
    pair.one.write_all(file, 0, b"not closed");
    let what = tombolo_core::fs::SyncScope::Data;
    pair.one.fs.fsync(&pair.one.cx, file, what).wait().expect("synced");
    assert_eq!(pair.two.contents("file"), b"not closed");
    close(&pair.one, file).expect("closed");
}

/// Reads through any opening of the same client, before and after the data are sent.
#[test]
fn a_client_sees_its_own_writes_at_once() {
    let pair = Pair::new();
    let world = &pair.one;
    let writer = world.file("file");
    let reader = world.reader(writer.node);
    for round in 0..200_u64 {
        let line = format!("{round:07}\n");
        world.write_all(writer, round * 8, line.as_bytes());
        assert_eq!(world.read_all(reader, round * 8, 8), line.as_bytes());
        assert_eq!(world.open_attr(reader).size, (round + 1) * 8);
        assert_eq!(world.attr(writer.node).size, (round + 1) * 8);
    }
    // Overwrites a part, across the borders of earlier writes.
    world.write_all(writer, 3, b"across a border");
    let expected = b"000across a border00";
    assert_eq!(world.read_all(reader, 0, 20), expected);
    world.release(reader);
    close(world, writer).expect("closed");
}

#[test]
fn small_file_is_sent_before_close() {
    let pair = Pair::new();
    let mut number = 0;
    // While the machine is busy, a server may seem remote, and then the client waits for more data.
    until("a small file is sent before its close", || {
        let before = pair.server.count_of(Procedure::Write);
        let file = pair.one.file(&format!("file-{number}"));
        number += 1;
        pair.one.write_all(file, 0, &[7; 4096]);
        let begun = Instant::now();
        while pair.server.count_of(Procedure::Write) == before && begun.elapsed().as_secs() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_sent = pair.server.count_of(Procedure::Write) > before;
        close(&pair.one, file).expect("closed");
        is_sent
    });
}

#[test]
fn a_truncation_by_another_client_is_seen_at_open() {
    let pair = Pair::new();
    let node = pair.one.file_with("file", &[1; 300_000]);
    assert_eq!(pair.one.contents(node).len(), 300_000);
    let theirs = pair.two.node("file").expect("the file");
    pair.two.truncate(theirs, 1000).expect("truncated");
    pair.two.truncate(theirs, 200_000).expect("grown");
    let contents = pair.one.contents(node);
    assert_eq!(contents.len(), 200_000);
    assert!(contents[..1000].iter().all(|&byte| byte == 1) && contents[1000..].iter().all(|&byte| byte == 0));
}
