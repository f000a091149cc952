//! Persistent handles: signed when issued, refused without a valid signature.

use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::Error;
use tombolo_core::fs::Export;
use tombolo_test_support::Session;
use tombolo_vrpc_tests::site::{Plan, Site};

#[test]
fn unsigned_handle_is_stale() {
    let dir = tempfile::tempdir_in(Path::new("/dev/shm")).expect("a scratch directory");
    std::fs::write(dir.path().join("file"), "data").expect("a file");
    let export: Arc<dyn Export> =
        Arc::new(LocalDir::open(dir.path(), DirOptions::default()).expect("the export"));
    // A session that skips the signature, as name_to_handle_at(2) lets any program.
    let beside = Session::attach(&*export);
    let bare = beside.handle_of("file").expect("a handle");
    beside.resolve(&bare).expect("good in the process itself");

    let host = Site::serving(export.clone(), Plan::default());
    let session = Session::attach(&host.export());
    let forged = session.resolve(&bare);
    assert!(matches!(forged, Err(Error::Stale)), "{forged:?}");

    let given = session.handle_of("file").expect("a handle");
    let found = Session::attach(&host.export()).resolve(&given);
    assert_eq!(found.expect("what was given out").attr.size, 4, "in another session");
    let found = Session::attach(&Site::serving(export, Plan::default()).export()).resolve(&given);
    assert!(matches!(found, Err(Error::Stale)), "of another server: {found:?}");
}
