//! The waist's cases over directories of the host: on tmpfs, and on the file system of the temporary
//! directory.

use std::path::Path;

use tombolo_conformance::waist::{Setup, run};
use tombolo_core::fs::PermissionCheck;

use crate::common::{SETUP, directory};

/// Features that tmpfs lacks.
const TMPFS_LACKS: &[&str] = &["the file system beneath does not support it"];

fn run_in(parent: &Path, checks: PermissionCheck, may_skip: &[&str]) {
    let dir = tempfile::tempdir_in(parent).expect("a scratch directory");
    let title = format!("local-dir in {}, checked by {checks:?}", parent.display());
    run(&directory(dir.path(), true), Setup { checks, ..SETUP }).expect(&title, may_skip);
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
