//! Absent file capabilities, which a session with change notices need not request again.

use std::time::Duration;

use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::Error;
use tombolo_core::fs::{Create, Exclusive, FileSystem, Name, NodeId, XattrName, XattrSet};
use tombolo_test_support::until;
use tombolo_vrpc_tests::site::root;

use crate::openings::Told;

fn capability() -> XattrName<'static> {
    XattrName::new(b"security.capability").expect("a name")
}

/// Requests the capability; returns its value and the number of requests sent. Waits first until the request
/// for notices, which each notice ends, is sent again.
fn get(fs: &VrpcFileSystem, node: NodeId) -> (Option<Vec<u8>>, u64) {
    until("the request for notices is sent", || fs.counts().in_flight == 1);
    let before = fs.counts().calls;
    let value = match fs.xattrs().expect("attributes").get(&root(), node, capability(), 100).wait() {
        Ok(value) => Some(value),
        Err(Error::NoAttribute) => None,
        Err(error) => panic!("{error}"),
    };
    (value, fs.counts().calls - before)
}

fn set(fs: &VrpcFileSystem, node: NodeId) {
    let xattrs = fs.xattrs().expect("attributes");
    xattrs.set(&root(), node, capability(), b"value", XattrSet::Any, false).wait().expect("set");
}

fn create(fs: &VrpcFileSystem, exclusive: Exclusive) -> NodeId {
    let (name, how) = (Name::new(b"file").expect("a name"), Create { exclusive, ..Create::default() });
    fs.create(&root(), NodeId::ROOT, name, &how).wait().expect("create").entry.node
}

#[test]
fn capability_of_created_file_is_not_requested() {
    let told = Told::new();
    let file = create(&told.fs, Exclusive::Yes);
    assert_eq!(get(&told.fs, file), (None, 0));
    set(&told.fs, file);
    assert_eq!(get(&told.fs, file), (Some(b"value".to_vec()), 1));
}

/// Requests the capability until the outcome is as given: the notices of earlier changes may be on their way.
fn await_outcome(fs: &VrpcFileSystem, node: NodeId, is_it: impl Fn(&(Option<Vec<u8>>, u64)) -> bool) {
    until("the outcome is as given", || is_it(&get(fs, node)));
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
    let theirs = create(&told.other, Exclusive::Yes);
    set(&told.other, theirs);
    // A notice during the create would have the capability requested in any case.
    await_quiet(&told.fs);
    let file = create(&told.fs, Exclusive::No);
    assert!(get(&told.fs, file).0.is_some(), "it may have existed");
    let others = told.other.xattrs().expect("attributes");
    others.remove(&root(), theirs, capability()).wait().expect("removed");
    await_outcome(&told.fs, file, |outcome| *outcome == (None, 0));
    set(&told.other, theirs);
    await_outcome(&told.fs, file, |outcome| outcome.0.is_some());
}
