//! Servers that die and restart.

use tombolo_core::block::BlockDevice;
use tombolo_core::{Error, Stability};

use crate::common::{Bed, cx, read, write};

#[test]
fn requests_wait_for_a_server_that_is_away_and_are_answered_by_the_next() {
    let bed = Bed::new();
    let server = bed.serve(bed.opened());
    let disk = bed.connect();
    write(&*disk, 0, Stability::DataSync, &[1; 512]).unwrap();
    drop(server);
    let writing = std::thread::spawn({
        let disk = disk.clone();
        move || write(&*disk, 512, Stability::DataSync, &[2; 512])
    });
    let reading = std::thread::spawn({
        let disk = disk.clone();
        move || read(&*disk, 0, 512)
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(!writing.is_finished() && !reading.is_finished());
    let _server = bed.serve(bed.opened());
    writing.join().unwrap().unwrap();
    assert_eq!(reading.join().unwrap().unwrap(), [1; 512]);
    assert_eq!(read(&*disk, 512, 512).unwrap(), [2; 512]);
    disk.flush(&cx()).wait().expect("nothing is lost: all was durable when it was answered");
}

#[test]
fn a_flush_after_a_lost_connection_fails_once_if_something_was_not_durable() {
    let bed = Bed::new();
    let server = bed.serve(bed.opened());
    let disk = bed.connect();
    write(&*disk, 0, Stability::Unstable, &[1; 512]).unwrap();
    disk.flush(&cx()).wait().unwrap();
    write(&*disk, 0, Stability::Unstable, &[2; 512]).unwrap();
    drop(server);
    let _server = bed.serve(bed.opened());
    assert_eq!(read(&*disk, 0, 512).unwrap(), [2; 512], "connected again");
    assert!(matches!(disk.flush(&cx()).wait(), Err(Error::Io { .. })));
    disk.flush(&cx()).wait().expect("reported once");
}

#[test]
fn another_disk_under_the_same_name_is_not_taken_for_this_one() {
    let bed = Bed::new();
    let server = bed.serve(bed.opened());
    let disk = bed.connect();
    drop(server);
    let longer = bed.opened();
    longer.resize().unwrap().set_size(&cx(), 8 << 20).wait().unwrap();
    let server = bed.serve(longer);
    let reading = std::thread::spawn({
        let disk = disk.clone();
        move || read(&*disk, 0, 512)
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!reading.is_finished());
    drop((server, disk));
    std::fs::File::options().write(true).open(bed.image()).unwrap().set_len(crate::common::SIZE).unwrap();
    let _server = bed.serve(bed.opened());
    reading.join().unwrap().unwrap();
}

#[test]
fn what_is_under_way_fails_when_the_disk_is_dropped_and_the_server_never_comes() {
    let bed = Bed::new();
    let server = bed.serve(bed.opened());
    let disk = bed.connect();
    drop(server);
    let buffer = tombolo_mem::Buffer::new(512);
    let answer = disk.read(&cx(), 0, buffer.sink(0..512));
    drop(disk);
    assert!(answer.wait().is_err());
}
