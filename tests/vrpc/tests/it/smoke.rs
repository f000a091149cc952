//! Smoke test: a file created, written, read back and listed over an in-memory link.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_test_support::Session;
use tombolo_vrpc_tests::site::{Plan, Site, client};

#[test]
fn files_written_over_link_are_read_and_listed() {
    let host = Site::serving(Arc::new(Memory::default()), Plan::default());
    let fs = host.export().attach_session(&client()).expect("a session");
    let session = Session::of(fs.clone());
    fs.null(&session.cx).wait().expect("null");
    let file = session.file("file");
    for (offset, len) in [(0_u64, 100_usize), (100, 5000), (5100, 1 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|at| (at + len) as u8).collect();
        assert_eq!(session.write(file, offset, &bytes).expect("write"), len);
        let read = session.read(file, offset, len).expect("read");
        assert_eq!(read.len(), len);
        assert!(read == bytes, "{len} bytes came back changed");
    }
    assert_eq!(session.open_attr(file).size, 5100 + (1 << 20));
    assert_eq!(session.names(""), ["file"]);
}
