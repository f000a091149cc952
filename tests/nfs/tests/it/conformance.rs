//! The waist's cases over the wire: a client of NFS, the server, and each back end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::Op;
use tombolo_core::fs::{Export, PermissionCheck};
use tombolo_front_nfs_server::Durability;
use tombolo_layer_basic::delay;
use tombolo_layer_basic::fault::{self, Rule, What, When};
use tombolo_layer_replies as replies;
use tombolo_nfs_tests::client::Transport;
use tombolo_nfs_tests::file_system::NfsExport;
use tombolo_nfs_tests::test_server::{PATH, Plan};

/// What NFS version 3 has no word for.
const LACKS: Needs =
    Needs::OPENINGS.union(Needs::RIGHTS).union(Needs::APPENDS).union(Needs::KILLS).union(Needs::OLD_TIMES);

/// Reasons to skip that follow from it.
const MAY_SKIP: &[&str] = &[
    "needs Needs(OPENINGS)",
    "needs Needs(RIGHTS)",
    "needs Needs(APPENDS)",
    "needs Needs(KILLS)",
    "needs Needs(OLD_TIMES)",
    "needs Needs(XATTRS)",
    "needs Needs(LOCKS)",
    "needs Needs(RANGES)",
    // Renames with flags, unnamed files.
    "the file system beneath does not support it",
];

fn run_over(title: &str, export: Arc<dyn Export>) {
    run_with(Transport::Tcp, title, export);
}

fn run_with(transport: Transport, title: &str, export: Arc<dyn Export>) {
    let mut plan = Plan::over(export);
    // What is stable is tested by itself; ten thousand creates with an fsync each take their time.
    plan.durability = Durability::Relaxed;
    let server = plan.start();
    let export: Arc<dyn Export> = Arc::new(NfsExport::new(transport, server.address(), PATH));
    let setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: LACKS };
    run(&export, setup).expect(title, MAY_SKIP);
}

fn directory_in(parent: &Path) -> (tempfile::TempDir, Arc<dyn Export>) {
    let dir = tempfile::tempdir_in(parent).expect("a scratch directory");
    let export = LocalDir::open(dir.path(), Options::default()).expect("the export");
    (dir, Arc::new(export))
}

#[test]
fn nfs_over_memory() {
    run_over("NFS over memory", Arc::new(Memory::default()));
}

#[test]
fn nfs_over_memory_in_datagrams() {
    run_with(Transport::Udp, "NFS in datagrams over memory", Arc::new(Memory::default()));
}

#[test]
fn nfs_over_memory_that_answers_later() {
    let export = delay::over(Arc::new(Memory::default()), Duration::from_micros(20)).expect("a timer");
    run_over("NFS over memory under delay", Arc::new(export));
}

#[test]
fn nfs_over_memory_whose_writes_are_cut_short() {
    let rule = Rule { op: Some(Op::Write), when: When::Every(3), what: What::Short(1000) };
    let export = fault::over(Arc::new(Memory::default()), fault::Plan { rules: vec![rule], seed: 1 });
    run_over("NFS over memory under short writes", Arc::new(export));
}

#[test]
fn nfs_over_a_directory_on_tmpfs() {
    let (_dir, export) = directory_in(Path::new("/dev/shm"));
    run_over("NFS over a directory on tmpfs", export);
}

/// As `tombolo serve` puts it together.
#[test]
fn nfs_over_a_directory_where_each_request_is_done_once() {
    let (_dir, export) = directory_in(Path::new("/dev/shm"));
    let once = replies::over(export, &replies::Options::default());
    run_over("NFS over a directory where each request is done once", Arc::new(once));
}

#[test]
fn nfs_over_a_directory_on_disk() {
    let (_dir, export) = directory_in(&std::env::temp_dir());
    run_over("NFS over a directory on disk", export);
}
