//! Arrival of changes, and the number of requests to the origin.

use std::sync::mpsc;
use std::time::Duration;

use tombolo_layer_write_back::Options;

use crate::world::{Origin, on_request};

#[test]
fn a_flush_brings_what_was_changed_before_it() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    proxy.mkdir("dir").expect("a directory");
    proxy.put("dir/file", b"hello");
    assert!(origin.direct.lookup("dir").is_err(), "nothing is there before it is time");
    let status = proxy.write_back.status();
    assert_eq!((status.dirty_bytes, status.dirty_nodes), (5, 3));
    assert_eq!(proxy.write_back.flush().expect("a flush").change, status.change);
    assert_eq!(origin.direct.contents("dir/file"), b"hello");
    assert_eq!(proxy.write_back.status().at_origin, status.change);
    assert_eq!(proxy.write_back.status().dirty_bytes, 0);
}

#[test]
fn a_file_that_is_written_ten_times_goes_once() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    for round in 0..10 {
        proxy.put("file", &[round; 1000]);
    }
    proxy.write_back.flush().expect("a flush");
    assert_eq!(["create", "write", "fsync", "rename"].map(|op| origin.asked(op)), [1, 1, 1, 1]);
    assert_eq!(origin.direct.contents("file"), [9; 1000]);
}

#[test]
fn created_and_removed_file_is_never_sent() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    proxy.mkdir("dir").expect("a directory");
    proxy.put("dir/file", b"hello");
    proxy.unlink("dir/file").expect("removed");
    proxy.rmdir("dir").expect("removed");
    proxy.write_back.flush().expect("a flush");
    assert_eq!(["create", "mkdir", "write", "unlink", "rmdir", "rename"].map(|op| origin.asked(op)), [0; 6]);
}

#[test]
fn writers_of_what_never_goes_wait_for_no_room() {
    let origin = Origin::new();
    let proxy = origin.proxy_with(Options { dirty_bytes_max: 10_000, ..on_request() });
    let file = proxy.file("file");
    proxy.unlink("file").expect("removed");
    let (session, (done, all_done)) = (proxy.session.clone(), mpsc::channel());
    std::thread::spawn(move || {
        (0..10).for_each(|n| session.write_all(file, n * 5000, &[7; 5000]));
        done.send(session.read_all(file, 0, usize::MAX)).expect("a receiver");
    });
    let read = all_done.recv_timeout(Duration::from_secs(60)).expect("a writer waits for ever");
    assert!(read == [7; 50_000]);
}
