//! The POSIX cases through `/dev/fuse`, over exports that a mounted host directory cannot cover: the
//! reference model, delayed answers, and short writes. Needs root and `/dev/fuse`. `tests/mount/run` mounts
//! directories of the host.

use std::path::Path;
use std::process::Command;

use tombolo_conformance::is_long_run;
use tombolo_core::SessionId;
use tombolo_core::fs::{Export, Op};
use tombolo_front_fuse::dev::{Mount, Options};
use tombolo_front_fuse::session::Coherence;

use crate::common::{cut_short, directory, later, memory, scratch};

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

#[test]
fn memory_under_every_coherence() {
    // Later tests run the other two.
    let all = [Coherence::Push, Coherence::Always, Coherence::Strict, Coherence::Auto];
    for coherence in all.into_iter().take(if is_long_run() { 4 } else { 2 }) {
        run(&format!("memory, {coherence:?}"), &*memory(), coherence);
    }
}

#[test]
fn memory_or_directory_that_answers_later() {
    run("memory under delay", &*later(memory()), Coherence::Auto);
    // `tests/mount/run` mounts directories, and `layers` delays them without a mount.
    if is_long_run() {
        let tree = scratch();
        run("local-dir under delay", &*later(directory(tree.path(), false)), Coherence::Auto);
    }
}

#[test]
fn memory_whose_reads_and_writes_are_cut_short() {
    for (op, coherence) in [(Op::Write, Coherence::Strict), (Op::Read, Coherence::Auto)] {
        run(&format!("memory, {op:?} cut short"), &*cut_short(memory(), op), coherence);
    }
}
