//! The waist's cases over directories of the host: on tmpfs, and on the file system of the temporary
//! directory.

use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::{Export, PermissionCheck};

/// Features that tmpfs lacks.
const TMPFS_LACKS: &[&str] = &["the file system beneath does not support it"];

fn run_in(parent: &Path, checks: PermissionCheck, may_skip: &[&str]) {
    let dir = tempfile::tempdir_in(parent).expect("a scratch directory");
    let export: Arc<dyn Export> = Arc::new(
        LocalDir::open(dir.path(), Options { watch_host: true, ..Options::default() }).expect("the export"),
    );
    let title = format!("local-dir in {}, checked by {checks:?}", parent.display());
    run(&export, Setup { owners: true, checks, lacks: Needs::empty() }).expect(&title, may_skip);
}

#[test]
fn a_directory_on_tmpfs_checked_by_the_kernel() {
    run_in(Path::new("/dev/shm"), PermissionCheck::BackEnd, TMPFS_LACKS);
}

#[test]
fn a_directory_on_tmpfs_checked_by_the_caller() {
    let lacks = [TMPFS_LACKS, &["needs Needs(CHECKS)"]].concat();
    run_in(Path::new("/dev/shm"), PermissionCheck::Caller, &lacks);
}

#[test]
fn a_directory_on_disk_checked_by_the_kernel() {
    run_in(&std::env::temp_dir(), PermissionCheck::BackEnd, &[]);
}

#[test]
fn a_directory_on_disk_checked_by_the_caller() {
    run_in(&std::env::temp_dir(), PermissionCheck::Caller, &["needs Needs(CHECKS)"]);
}
