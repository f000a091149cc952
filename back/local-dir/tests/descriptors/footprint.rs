//! A hundred thousand live nodes: at most 1,024 descriptors and 64 MB.

#![allow(clippy::print_stdout, reason = "it says what it measured")]

use std::fs;

use super::ALONE;
use super::common::{descriptors, resident_bytes, serve};
use tombolo_back_local_dir::Options;
use tombolo_mem::{Region, Sink};

const DIRECTORIES: usize = 100;
const FILES_EACH: usize = 1000;

#[test]
fn hundred_thousand_nodes_take_few_descriptors() {
    let _alone = ALONE.lock();
    // In memory if possible: making and removing so many files takes a busy disk minutes.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    for d in 0..DIRECTORIES {
        fs::create_dir(dir.path().join(format!("d{d}"))).unwrap();
        for f in 0..FILES_EACH {
            fs::write(dir.path().join(format!("d{d}/a-file-with-a-name-{f}")), b"text").unwrap();
        }
    }
    let before = resident_bytes();
    let world = serve(dir.path(), Options::default());
    let buffer = Region::heap(4096);
    let mut most = 0;
    let mut nodes = Vec::with_capacity(DIRECTORIES * FILES_EACH);
    for d in 0..DIRECTORIES {
        let parent = world.lookup(&format!("d{d}")).unwrap().node;
        for f in 0..FILES_EACH {
            let text = format!("a-file-with-a-name-{f}");
            let node = world.lookup((parent, &text)).unwrap().node;
            let open = world.reader(node);
            let done = world.fs.read(&world.cx, open, 0, Sink::from(&buffer)).wait().unwrap();
            assert_eq!(done.count, 4);
            world.release(open);
            nodes.push(node);
        }
        most = most.max(descriptors());
    }
    // All of them are still valid.
    for &node in nodes.iter().step_by(7) {
        assert_eq!(world.attr(node).size, 4);
    }
    most = most.max(descriptors());
    let grown = resident_bytes() - before;
    println!("{} nodes: {most} descriptors, {} KiB", nodes.len(), grown >> 10);
    assert!(most <= 1024, "{most} descriptors");
    assert!(grown <= 64_000_000, "{grown} bytes");
    // The kernel sends forgets in batches.
    let look_ups: Vec<_> = nodes.iter().map(|&node| (node, 1)).collect();
    look_ups.chunks(64).for_each(|batch| world.fs.forget(&world.cx, batch));
    assert!(descriptors() < 200, "{} descriptors are left", descriptors());
}
