//! Absent file capabilities and access lists, which a session with change notices need not request again.

use std::time::Duration;

use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::Error;
use tombolo_core::fs::NodeId;
use tombolo_test_support::{plain, until};

use crate::openings::Told;

const CAPABILITY: &str = "security.capability";
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Requests an attribute; returns its value and the number of requests sent. Waits first until the request
/// for notices, which each notice ends, is sent again.
fn get(told: &Told, node: NodeId, name: &str) -> (Option<Vec<u8>>, u64) {
    until("the request for notices is sent", || told.fs.counts().in_flight == 1);
    let before = told.fs.counts().calls;
    let value = match told.root.xattr(node, name) {
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
    assert_eq!(get(&told, file, CAPABILITY), (None, 0));
    told.root.set_xattr(file, CAPABILITY, b"value").expect("set");
    assert_eq!(get(&told, file, CAPABILITY), (Some(b"value".to_vec()), 1));
}

/// Requests an attribute until the outcome is as given: the notices of earlier changes may be on their way.
fn await_outcome(told: &Told, node: NodeId, name: &str, is_it: impl Fn(&(Option<Vec<u8>>, u64)) -> bool) {
    until("the outcome is as given", || is_it(&get(told, node, name)));
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
    assert!(get(&told, file, CAPABILITY).0.is_some(), "it may have existed");
    told.other.remove_xattr(theirs, CAPABILITY).expect("removed");
    await_outcome(&told, file, CAPABILITY, |outcome| *outcome == (None, 0));
    told.other.set_xattr(theirs, CAPABILITY, b"value").expect("set");
    await_outcome(&told, file, CAPABILITY, |outcome| outcome.0.is_some());
}

/// Returns an access list that allows user 7 to read (acl(5)).
fn access_list() -> Vec<u8> {
    const UNDEFINED: u32 = u32::MAX;
    let entries =
        [(1, 7, UNDEFINED), (2, 4, 7), (4, 4, UNDEFINED), (0x10, 7, UNDEFINED), (0x20, 0, UNDEFINED)];
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2_u32.to_le_bytes().to_vec()].into_iter().chain(entries.map(entry)).flatten().collect()
}

#[test]
fn absent_access_list_is_not_requested_until_changed() {
    let told = Told::new();
    let theirs = told.other.dir("listed");
    let dir = told.root.node("listed").expect("found");
    await_outcome(&told, dir, ACCESS_LIST, |outcome| *outcome == (None, 0));
    // A change of names does not affect the list; one of the directory's mode may.
    told.root.file("listed/file");
    told.root.unlink("listed/file").expect("removed");
    assert_eq!(get(&told, dir, ACCESS_LIST), (None, 0));
    told.root.chmod(dir, 0o770).expect("changed");
    assert_eq!(get(&told, dir, ACCESS_LIST), (None, 1));
    assert_eq!(get(&told, dir, ACCESS_LIST), (None, 0));
    told.root.set_xattr(dir, ACCESS_LIST, &access_list()).expect("set");
    assert_eq!(get(&told, dir, ACCESS_LIST), (Some(access_list()), 1));
    told.root.remove_xattr(dir, ACCESS_LIST).expect("removed");
    assert_eq!(get(&told, dir, ACCESS_LIST), (None, 1));
    assert_eq!(get(&told, dir, ACCESS_LIST), (None, 0));
    told.other.set_xattr(theirs, ACCESS_LIST, &access_list()).expect("set");
    await_outcome(&told, dir, ACCESS_LIST, |outcome| outcome.0.is_some());
}
