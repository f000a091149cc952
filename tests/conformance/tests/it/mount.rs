//! The POSIX cases through `/dev/fuse`, over exports that a mounted host directory cannot cover: the
//! reference model, delayed answers, and short writes. Needs root and `/dev/fuse`. `tests/mount/run` mounts
//! directories of the host.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_conformance::is_long_run;
use tombolo_core::SessionId;
use tombolo_core::fs::Export;
use tombolo_core::fs::Op;
use tombolo_front_fuse::dev::{Mount, Options};
use tombolo_front_fuse::session::Coherence;
use tombolo_layer_basic::fault::{Plan, Rule, What, When};
use tombolo_layer_basic::{delay, fault};

/// Runs the suite in a mount of `export` and expects every case to pass.
fn run(title: &str, export: &dyn Export, coherence: Coherence) {
    if !Path::new("/dev/fuse").exists() || !tombolo_sys::creds::may_assume() {
        tombolo_skip::skip!("{title} needs /dev/fuse and the superuser");
    }
    let target = scratch();
    let options = Options { coherence, devices: true, set_id: true, ..Options::default() };
    let mount = Mount::start(export, SessionId(1), target.path(), &options).expect("the mount");
    let suite = Command::new(env!("CARGO_BIN_EXE_tombolo-conformance")).arg(target.path()).output();
    mount.unmount().expect("unmount");
    mount.wait();
    let suite = suite.expect("the suite runs");
    let told = String::from_utf8_lossy(&suite.stdout);
    eprintln!("{title}:\n{told}");
    assert!(suite.status.success(), "{title}: {told}{}", String::from_utf8_lossy(&suite.stderr));
    assert!(told.trim_end().ends_with(" 0 failed, 0 skipped"), "{title}: {told}");
}

fn scratch() -> tempfile::TempDir {
    let mode = std::fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().permissions(mode).tempdir().expect("a scratch directory")
}

fn later(export: Arc<dyn Export>) -> impl Export {
    delay::over(export, Duration::from_micros(20)).expect("a timer")
}

#[test]
fn memory_under_every_coherence() {
    // Later tests run the other two.
    let all = [Coherence::Push, Coherence::Always, Coherence::Strict, Coherence::Auto];
    for coherence in all.into_iter().take(if is_long_run() { 4 } else { 2 }) {
        run(&format!("memory, {coherence:?}"), &Memory::default(), coherence);
    }
}

#[test]
fn memory_or_directory_that_answers_later() {
    run("memory under delay", &later(Arc::new(Memory::default())), Coherence::Auto);
    // `tests/mount/run` mounts directories, and `layers` delays them without a mount.
    if is_long_run() {
        let tree = scratch();
        let local = LocalDir::open(tree.path(), DirOptions::default()).expect("the export");
        run("local-dir under delay", &later(Arc::new(local)), Coherence::Auto);
    }
}

#[test]
fn memory_whose_reads_and_writes_are_cut_short() {
    let rule = |op| Rule { op: Some(op), when: When::Every(3), what: What::Short(1000) };
    for (op, coherence) in [(Op::Write, Coherence::Strict), (Op::Read, Coherence::Auto)] {
        let export = fault::over(Arc::new(Memory::default()), Plan { rules: vec![rule(op)], seed: 1 });
        run(&format!("memory, {op:?} cut short"), &export, coherence);
    }
}
