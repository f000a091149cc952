//! Absence of allocations in frequent operations, on client, link, server and back end together.

use std::sync::Arc;

use tombolo_allocations::{Counting, of_all_threads};
use tombolo_back_memory::Memory;
use tombolo_core::Answer;
use tombolo_core::fs::{FileSystem, Write};
use tombolo_mem::Buffer;
use tombolo_shm::doorbell::Mode;
use tombolo_test_support::Session;
use tombolo_vrpc_tests::site::{Plan, Site, client, root};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the fewest allocations of many tries: an answer that is slightly late pends, which allocates its
/// future.
fn fewest(mut call: impl FnMut() -> bool) -> Option<u64> {
    let mut fewest = None;
    for _ in 0..2000 {
        let before = of_all_threads();
        if call() {
            let count = of_all_threads() - before;
            fewest = Some(fewest.map_or(count, |fewest: u64| fewest.min(count)));
        }
    }
    fewest
}

fn done<T>(answer: Answer<T>) -> bool {
    let is_done = answer.is_done();
    answer.wait().expect("it succeeds");
    is_done
}

#[test]
fn null_getattr_read_and_write_allocate_nothing() {
    let host = Site::serving(Arc::new(Memory::default()), Plan { mode: Mode::Poll, ..Plan::default() });
    let fs = host.export().attach_session(&client()).expect("a session");
    let cx = root();
    let file = Session::of(fs.clone()).file("file");
    let data = Buffer::new(65536);
    let write = |len: usize| fs.write(&cx, file, &Write::default(), data.source(0..len));
    let read = |len: usize| fs.read(&cx, file, 0, data.sink(0..len));
    assert!(done(write(65536)) || host.end().is_none());
    let rows: [(&str, &dyn Fn() -> bool); 6] = [
        ("null", &|| done(fs.null(&cx))),
        ("getattr", &|| done(fs.getattr(&cx, file.node, None))),
        ("read 100", &|| done(read(100))),
        ("read 64 KiB", &|| done(read(65536))),
        ("write 100", &|| done(write(100))),
        ("write 64 KiB", &|| done(write(65536))),
    ];
    for (what, call) in rows {
        assert_eq!(fewest(call), Some(0), "{what}");
    }
}
