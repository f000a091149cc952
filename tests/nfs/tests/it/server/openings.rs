//! The server keeps files open between calls, and no more than it may.

use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::{Memory, Options as MemoryOptions};
use tombolo_core::Limits;
use tombolo_core::fs::Export;
use tombolo_nfs_tests::fixture::{Fixture, scratch};
use tombolo_nfs_tests::test_server::Plan;

const LIMITS: Limits = Limits { nodes: 1000, opens: 4, bytes_in_flight: 256 << 20, pending: 4096 };

fn work_on_many(export: Arc<dyn Export>) {
    let fixture = Fixture::new(Plan::over(export), None);
    let files: Vec<_> = (0..40).map(|number| fixture.file(&format!("{number}"), &[number])).collect();
    for (number, file) in files.iter().enumerate() {
        assert_eq!(fixture.contents(file), [number as u8]);
    }
    let dirs: Vec<_> = (0..10).map(|number| fixture.dir(&format!("dir-{number}"))).collect();
    dirs.iter().for_each(|dir| assert!(fixture.list(dir).is_empty()));
    assert_eq!(fixture.names().len(), 50);
}

#[test]
fn more_files_than_opening_limit_are_created_and_read() {
    let options = MemoryOptions { session_limits: LIMITS, ..MemoryOptions::default() };
    work_on_many(Arc::new(Memory::new(options)));
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let in_memory = scratch();
    for tree in [on_disk.path(), in_memory.path()] {
        work_on_many(served(tree));
    }
}

fn served(tree: &Path) -> Arc<dyn Export> {
    let options = DirOptions { limits: LIMITS, ..DirOptions::default() };
    Arc::new(LocalDir::open(tree, options).expect("the export"))
}
