//! The waist's cases with every change sent twice, over the layer that performs it once.

mod twice;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::{Export, PermissionCheck};
use tombolo_layer_basic::{delay, fault};
use tombolo_layer_replies as replies;
use tombolo_layer_replies::Options;

use twice::Twice;

const SETUP: Setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: Needs::empty() };

fn check(title: &str, bottom: Arc<dyn Export>) {
    let state = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    let replies = replies::open(bottom, &Options::default(), &state.path().join("replies"));
    let replies = replies.expect("the state file");
    let counters = replies.counters();
    let export: Arc<dyn Export> = Arc::new(Twice(Arc::new(replies)));
    let report = run(&export, SETUP);
    report.expect(title, &[]);
    let counted = counters.read();
    let hits = counted.hits_done + counted.hits_in_progress;
    // Each case makes its directory, at least.
    let cases = report.passed.len() as u64;
    assert!(hits >= cases && counted.recorded >= cases, "{title}: {counted:?}");
}

fn on_disk(scratch: &Path) -> Arc<dyn Export> {
    Arc::new(
        LocalDir::open(scratch, DirOptions { watch_host: true, ..DirOptions::default() })
            .expect("the export"),
    )
}

fn later(export: Arc<dyn Export>) -> Arc<dyn Export> {
    Arc::new(delay::over(export, Duration::from_micros(20)).expect("a timer"))
}

#[test]
fn memory() {
    check("memory, sent twice", Arc::new(Memory::default()));
}

#[test]
fn memory_answering_later() {
    // With a layer in between that does nothing, as in real stacks.
    let slow = later(Arc::new(Memory::default()));
    check("memory under delay, sent twice", Arc::new(fault::over(slow, fault::Plan::default())));
}

#[test]
fn a_directory() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    check("local-dir, sent twice", on_disk(scratch.path()));
}

#[test]
fn a_directory_answering_later() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    check("local-dir under delay, sent twice", later(on_disk(scratch.path())));
}
