//! Failures of file operations, in words.

use std::fmt;

use libtombolo::Tree;
use tombolo_core::Error;

use crate::failure::Failure;

/// `cannot DOING: REASON`, with what to do where that is not plain.
pub fn cannot(doing: impl fmt::Display, error: &Error, tree: &Tree) -> Failure {
    let failure = Failure::cannot(doing, error);
    match remedy(error, tree) {
        Some(remedy) => failure.remedy(remedy),
        None => failure,
    }
}

/// Root on this machine is another user to most servers, which is what surprises users most.
pub const SQUASHED: &str = "most servers take root for a user without rights (root squash): run as the owner of the files, \
                            or export with no_root_squash (`tombolo serve --squash none`)";

fn remedy(error: &Error, tree: &Tree) -> Option<&'static str> {
    let is_remote = tree.realm() != "local";
    match error {
        Error::AccessDenied | Error::NotPermitted if is_remote && tree.identity().uid == 0 => Some(SQUASHED),
        Error::TimedOut if is_remote => {
            Some("the server does not answer: look at it and at the network, or --wait forever")
        }
        Error::Stale if is_remote => Some("it was removed, or the server has lost its handles: try again"),
        _ => None,
    }
}
