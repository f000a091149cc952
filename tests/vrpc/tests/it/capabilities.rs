//! Absent file capabilities, which a session with change notices need not request again.

use std::time::Duration;

use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::Error;
use tombolo_core::fs::NodeId;
use tombolo_test_support::{plain, until};

use crate::openings::Told;

const CAPABILITY: &str = "security.capability";

/// Requests the capability; returns its value and the number of requests sent. Waits first until the request
/// for notices, which each notice ends, is sent again.
fn get(told: &Told, node: NodeId) -> (Option<Vec<u8>>, u64) {
    until("the request for notices is sent", || told.fs.counts().in_flight == 1);
    let before = told.fs.counts().calls;
    let value = match told.root.xattr(node, CAPABILITY) {
        Ok(value) => Some(value),
        Err(Error::NoAttribute) => None,
        Err(error) => panic!("{error}"),
    };
    (value, told.fs.counts().calls - before)
}

#[test]
fn capability_of_created_file_is_not_requested() {
    let told = Told::new();
    let file = told.root.file("file").node;
    assert_eq!(get(&told, file), (None, 0));
    told.root.set_xattr(file, CAPABILITY, b"value").expect("set");
    assert_eq!(get(&told, file), (Some(b"value".to_vec()), 1));
}

/// Requests the capability until the outcome is as given: the notices of earlier changes may be on their way.
fn await_outcome(told: &Told, node: NodeId, is_it: impl Fn(&(Option<Vec<u8>>, u64)) -> bool) {
    until("the outcome is as given", || is_it(&get(told, node)));
}

/// Waits until no notice has arrived for a while: each one has the request for notices sent again.
fn await_quiet(fs: &VrpcFileSystem) {
    let mut before = None;
    while before != Some(fs.counts().calls) {
        before = Some(fs.counts().calls);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn absent_capability_is_requested_after_a_notice() {
    let told = Told::new();
    let theirs = told.other.file("file").node;
    told.other.set_xattr(theirs, CAPABILITY, b"value").expect("set");
    // A notice during the create would have the capability requested in any case.
    await_quiet(&told.fs);
    let file = told.root.file_as("file", &plain()).expect("create").node;
    assert!(get(&told, file).0.is_some(), "it may have existed");
    told.other.remove_xattr(theirs, CAPABILITY).expect("removed");
    await_outcome(&told, file, |outcome| *outcome == (None, 0));
    told.other.set_xattr(theirs, CAPABILITY, b"value").expect("set");
    await_outcome(&told, file, |outcome| outcome.0.is_some());
}
