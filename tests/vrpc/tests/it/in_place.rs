//! The link's memory itself, as programs that call the library use it.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::Error;
use tombolo_core::fs::Write;
use tombolo_test_support::Session;
use tombolo_vrpc_tests::site::{Plan, Site, client, root};

#[test]
fn data_in_link_memory_are_accessed_in_place() {
    let host = Site::serving(Arc::new(Memory::default()), Plan { bulk_bytes: 1 << 20, ..Plan::default() });
    let fs = host.export().attach_session(&client()).expect("a session");
    let file = Session::of(fs.clone()).file("file");
    let bytes: Vec<u8> = (0..70_000_u32).map(|at| at as u8).collect();
    // More rounds than fit at a time: all memory must be returned.
    for round in 0..100_u64 {
        let lent = fs.lend(bytes.len()).expect("there is room");
        assert_eq!(lent.sink().expect("memory").write_at(0, &bytes), bytes.len());
        let how = Write { offset: round, ..Write::default() };
        let written = fs.write_in_place(&root(), file, &how, lent, bytes.len()).wait().expect("write");
        assert_eq!(written.count, bytes.len());
        let found = fs.read_in_place(&root(), file, round, bytes.len()).wait().expect("read");
        assert!(found.data().to_vec(bytes.len()) == bytes, "the data came back changed");
    }
    assert!(matches!(fs.lend(2 << 20).map(drop), Err(Error::NoMemory)));
    let other = host.export().attach_session(&client()).expect("a session");
    let lent = other.lend(100).expect("there is room");
    let refused = fs.write_in_place(&root(), file, &Write::default(), lent, 100).wait();
    assert!(matches!(refused, Err(Error::InvalidArgument)), "memory of another link");
}
