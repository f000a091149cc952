//! Visible state of a tree.

use std::collections::BTreeMap;

use tombolo_core::fs::{RenameFlags, SetAttr, SetTime, Timestamp};
use tombolo_test_support::Session;
use tombolo_test_support::history::{self, Shown};

/// Prefix of hidden names at the origin.
pub const HIDDEN: &str = ".tombolo-wb-";

/// Returns the state of all names but hidden ones, by path; with modification times if `times`.
pub fn tree(session: &Session, times: bool) -> BTreeMap<String, Shown> {
    history::tree(session, times, Some(HIDDEN))
}

/// Returns the hidden names in a root.
pub fn hidden(session: &Session) -> Vec<String> {
    session.names("").into_iter().filter(|name| name.starts_with(HIDDEN)).collect()
}

/// Puts files that contain their paths.
pub fn put_named(session: &Session, paths: &[&str]) {
    paths.iter().for_each(|path| session.put(path, path.as_bytes()));
}

/// Asserts the contents of files, by path.
pub fn assert_contents(session: &Session, files: &[(&str, &str)]) {
    files.iter().for_each(|(path, data)| assert_eq!(session.contents(path), data.as_bytes(), "{path}"));
}

/// Renames, over what has that name.
pub fn rename(session: &Session, from: &str, to: &str) {
    session.rename(from, to, RenameFlags::empty()).unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
}

/// Sets a node's modification time.
pub fn set_mtime(session: &Session, path: &str, secs: i64) -> tombolo_core::Result<()> {
    let mtime = Some(SetTime::At(Timestamp { secs, nanos: 5 }));
    session.setattr(path, SetAttr { mtime, ..SetAttr::default() }).map(drop)
}
