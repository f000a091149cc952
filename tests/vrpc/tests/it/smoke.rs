//! Smoke test: a file created, written, read back and listed over an in-memory link.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Cookie, Create, DirBudget, DirPage, File, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags, Write,
};
use tombolo_mem::{Buffer, Source};
use tombolo_vrpc_tests::test_host::{Plan, TestHost, client, root};

#[test]
fn files_written_over_link_are_read_and_listed() {
    let host = TestHost::new(Arc::new(Memory::default()), Plan::default());
    let fs = host.export().attach_session(&client()).expect("a session");
    let cx = root();
    fs.null(&cx).wait().expect("null");
    let how = Create {
        mode: NewMode::settled(Mode::new(0o640)),
        flags: OpenFlags::READ | OpenFlags::WRITE,
        ..Create::default()
    };
    let name = Name::new(b"file").expect("a name");
    let created = fs.create(&cx, NodeId::ROOT, name, &how).wait().expect("create");
    let file = File { node: created.entry.node, open: created.open };
    for (offset, len) in [(0_u64, 100_usize), (100, 5000), (5100, 1 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|at| (at + len) as u8).collect();
        let how = Write { offset, ..Write::default() };
        let written = fs.write(&cx, file, &how, Source::from(bytes.clone())).wait().expect("write");
        assert_eq!(written.count, len);
        let mut buffer = Buffer::new(len);
        let done = fs.read(&cx, file, offset, buffer.sink(0..len)).wait().expect("read");
        assert_eq!(done.count, len);
        assert!(buffer.as_slice().expect("the read is over") == bytes, "{len} bytes came back changed");
    }
    assert_eq!(fs.getattr(&cx, file.node, Some(file)).wait().expect("getattr").size, 5100 + (1 << 20));
    let dir = fs.open(&cx, NodeId::ROOT, OpenFlags::READ | OpenFlags::DIRECTORY).wait().expect("open");
    let dir = File { node: NodeId::ROOT, open: dir.open };
    let page = DirPage::new(DirBudget { size_bytes: 4096, entry_bytes: 24, align: 8, plus: false });
    let page = fs.readdir(&cx, dir, Cookie::START, page).wait().expect("readdir");
    let names: Vec<_> = page.iter().map(|entry| entry.name.to_vec()).collect();
    assert!(names.contains(&b"file".to_vec()), "{names:?}");
    assert!(page.is_end());
}
