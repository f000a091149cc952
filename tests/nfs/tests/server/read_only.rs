//! An export that nobody may change.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::fs::Export;
use tombolo_layer::readonly;
use tombolo_nfs_tests::bed::Plan;
use tombolo_nfs_tests::client::{Expect, changes_of_names, mode};
use tombolo_nfs_tests::place::Place;
use tombolo_wire_nfs3::args::{AccessBits, StableHow};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandleBuf, Sattr3, Status};

/// A tree of one file, which was made before.
fn place() -> (Place, FileHandleBuf) {
    let memory: Arc<Memory> = Arc::default();
    let plan = Plan::over(memory.clone());
    let keys = plan.keys.clone();
    let before = Place::new(plan, None);
    let file = before.file("file", b"kept");
    before.dir("dir");
    let inner: Arc<dyn Export> = memory;
    let mut plan = Plan::over(Arc::new(readonly::over(inner)));
    plan.keys = keys;
    (Place::new(plan, None), file)
}

#[test]
fn every_change_of_a_read_only_export_is_refused() {
    let (place, file) = place();
    for name in [&b"new"[..], b"file"] {
        for call in changes_of_names(place.root.as_handle(), name) {
            let status = place.nfs.send(&place.nfs.message(&call, b"")).status();
            assert_eq!(status, Err(Status::RoFs), "{call:?}");
        }
    }
    place.nfs.rmdir(&place.root, b"dir").failed(Status::RoFs);
    place.nfs.link(&file, &place.root, b"new").failed(Status::RoFs);
    let cut = Sattr3 { size: Some(0), ..Sattr3::default() };
    for set in [mode(0o600), cut] {
        let wcc = place.nfs.setattr(&file, set, None).failed(Status::RoFs);
        assert_eq!(wcc.after, Some(place.attr(&file)));
    }
    for stable in [StableHow::Unstable, StableHow::FileSync] {
        let wcc = place.nfs.write(&file, 0, b"changed", stable).failed(Status::RoFs);
        assert_eq!(wcc.after, Some(place.attr(&file)));
    }
    assert_eq!((place.names(), place.contents(&file)), (vec!["dir".into(), "file".into()], b"kept".to_vec()));
}

#[test]
fn a_read_only_export_says_what_may_be_done() {
    let (place, file) = place();
    let access = place.nfs.access(&file, AccessBits::all()).done().access;
    assert_eq!(access, AccessBits::READ);
    let access = place.nfs.access(&place.root, AccessBits::all()).done().access;
    assert_eq!(access, AccessBits::READ | AccessBits::LOOKUP);
    let page = place.nfs.readdirplus(&place.root, Cookie3(0), CookieVerifier::default(), 4096, 8192).done();
    assert_eq!(page.names().len(), 2);
    place.nfs.fsstat(&place.root).done();
}
