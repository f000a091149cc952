//! A read-only export.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::fs::Export;
use tombolo_layer_basic::readonly;
use tombolo_nfs_tests::client::{Expect, changes_of_names, mode};
use tombolo_nfs_tests::fixture::Fixture;
use tombolo_nfs_tests::test_server::Plan;
use tombolo_wire_nfs3::args::{AccessBits, StableHow};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandleBuf, Sattr3, Status};

/// Starts a server of a tree with one existing file.
fn fixture() -> (Fixture, FileHandleBuf) {
    let memory: Arc<Memory> = Arc::default();
    let plan = Plan::over(memory.clone());
    let keys = plan.keys.clone();
    let before = Fixture::new(plan, None);
    let file = before.file("file", b"kept");
    before.dir("dir");
    let inner: Arc<dyn Export> = memory;
    (Fixture::new(Plan { keys, ..Plan::over(Arc::new(readonly::over(inner))) }, None), file)
}

#[test]
fn every_change_of_a_read_only_export_is_refused() {
    let (fixture, file) = fixture();
    for name in [&b"new"[..], b"file"] {
        for call in changes_of_names(fixture.root.as_handle(), name) {
            let status = fixture.nfs.send(&fixture.nfs.message(&call, b"")).status();
            assert_eq!(status, Err(Status::RoFs), "{call:?}");
        }
    }
    fixture.nfs.rmdir(&fixture.root, b"dir").failed(Status::RoFs);
    fixture.nfs.link(&file, &fixture.root, b"new").failed(Status::RoFs);
    let cut = Sattr3 { size: Some(0), ..Sattr3::default() };
    for set in [mode(0o600), cut] {
        let wcc = fixture.nfs.setattr(&file, set, None).failed(Status::RoFs);
        assert_eq!(wcc.after, Some(fixture.attr(&file)));
    }
    for stable in [StableHow::Unstable, StableHow::FileSync] {
        let wcc = fixture.nfs.write(&file, 0, b"changed", stable).failed(Status::RoFs);
        assert_eq!(wcc.after, Some(fixture.attr(&file)));
    }
    assert_eq!(
        (fixture.names(), fixture.contents(&file)),
        (vec!["dir".into(), "file".into()], b"kept".to_vec())
    );
}

#[test]
fn read_only_export_reports_permitted_access() {
    let (fixture, file) = fixture();
    let access = fixture.nfs.access(&file, AccessBits::all()).done().access;
    assert_eq!(access, AccessBits::READ);
    let access = fixture.nfs.access(&fixture.root, AccessBits::all()).done().access;
    assert_eq!(access, AccessBits::READ | AccessBits::LOOKUP);
    let page =
        fixture.nfs.readdirplus(&fixture.root, Cookie3(0), CookieVerifier::default(), 4096, 8192).done();
    assert_eq!(page.names().len(), 2);
    fixture.nfs.fsstat(&fixture.root).done();
}
