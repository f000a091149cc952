//! Persistent handles: signed when issued, refused without a valid signature.

use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::Error;
use tombolo_core::fs::{Export, FileSystem, Name, NodeId};
use tombolo_vrpc_tests::site::{Plan, Site, client, root};

#[test]
fn unsigned_handle_is_stale() {
    let dir = tempfile::tempdir_in(Path::new("/dev/shm")).expect("a scratch directory");
    std::fs::write(dir.path().join("file"), "data").expect("a file");
    let export: Arc<dyn Export> =
        Arc::new(LocalDir::open(dir.path(), DirOptions::default()).expect("the export"));
    // A session that skips the signature, as name_to_handle_at(2) lets any program.
    let beside = export.attach(&client()).expect("a session");
    let name = Name::new(b"file").expect("a name");
    let node = beside.lookup(&root(), NodeId::ROOT, name).wait().expect("a file").node;
    let handles = beside.persistent_handles().expect("handles");
    let bare = handles.handle_of(&root(), node).wait().expect("a handle");
    handles.resolve(&root(), &bare).wait().expect("good in the process itself");

    let host = Site::serving(export.clone(), Plan::default());
    let fs = host.export().attach_session(&client()).expect("a session");
    let handles = fs.persistent_handles().expect("handles");
    let forged = handles.resolve(&root(), &bare).wait();
    assert!(matches!(forged, Err(Error::Stale)), "{forged:?}");

    let node = fs.lookup(&root(), NodeId::ROOT, name).wait().expect("a file").node;
    let given = handles.handle_of(&root(), node).wait().expect("a handle");
    let other = host.export().attach_session(&client()).expect("a session");
    let found = other.persistent_handles().expect("handles").resolve(&root(), &given).wait();
    assert_eq!(found.expect("what was given out").attr.size, 4, "in another session");
    let elsewhere =
        Site::serving(export, Plan::default()).export().attach_session(&client()).expect("a session");
    let found = elsewhere.persistent_handles().expect("handles").resolve(&root(), &given).wait();
    assert!(matches!(found, Err(Error::Stale)), "of another server: {found:?}");
}
