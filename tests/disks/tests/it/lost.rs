//! Servers that die and restart.

use tombolo_core::block::BlockDevice;
use tombolo_core::{Error, Stability};

use crate::common::{Bed, cx, read, write};

#[test]
fn requests_wait_for_a_restarted_server() {
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
fn flush_fails_once_after_losing_undurable_writes() {
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
fn reconnect_refuses_another_disk_under_the_same_name() {
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
fn dropping_a_disconnected_disk_fails_pending_requests() {
    let bed = Bed::new();
    let server = bed.serve(bed.opened());
    let disk = bed.connect();
    drop(server);
    let buffer = tombolo_mem::Buffer::new(512);
    let answer = disk.read(&cx(), 0, buffer.sink(0..512));
    drop(disk);
    assert!(answer.wait().is_err());
}
