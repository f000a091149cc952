//! The waist's cases with every change sent twice, over the layer that performs it once.

mod twice;

use std::sync::Arc;

use tombolo_conformance::waist::run;
use tombolo_core::fs::Export;
use tombolo_layer_basic::fault;
use tombolo_layer_replies::{self as replies, Options};
use tombolo_test_support::wrapped;

use crate::common::{self, SETUP, directory, later};
use twice::Twice;

fn check(title: &str, bottom: Arc<dyn Export>) {
    let state = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    let replies = replies::open(bottom, &Options::default(), &state.path().join("replies"));
    let replies = replies.expect("the state file");
    let counters = replies.counters();
    let report = run(&wrapped(Arc::new(replies), Twice), SETUP);
    report.expect(title, &[]);
    let counted = counters.read();
    let hits = counted.hits_done + counted.hits_in_progress;
    // Each case makes its directory, at least.
    let cases = report.passed.len() as u64;
    assert!(hits >= cases && counted.recorded >= cases, "{title}: {counted:?}");
}

#[test]
fn memory() {
    check("memory, sent twice", common::memory());
}

#[test]
fn memory_answering_later() {
    // With a layer in between that does nothing, as in real stacks.
    let slow = fault::over(later(common::memory()), fault::Plan::default());
    check("memory under delay, sent twice", Arc::new(slow));
}

#[test]
fn a_directory() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    check("local-dir, sent twice", directory(scratch.path(), true));
}

#[test]
fn a_directory_answering_later() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    check("local-dir under delay, sent twice", later(directory(scratch.path(), true)));
}
