//! Failures of file operations.

use std::fmt;

use libtombolo::Tree;
use tombolo_core::Error;

use crate::failure::{Failure, Outcome};

/// Returns `cannot DOING: REASON`, with a remedy if one is known.
pub fn cannot(doing: impl fmt::Display, error: &Error, tree: &Tree) -> Failure {
    remedy(error, tree).into_iter().fold(Failure::cannot(doing, error), Failure::remedy)
}

/// Hint for root, whom most servers map to another user.
pub const SQUASHED: &str = "most servers map root to an unprivileged user (root squash): run as the owner of the files, \
                            or export with no_root_squash (`tombolo serve --squash none`)";

fn remedy(error: &Error, tree: &Tree) -> Option<&'static str> {
    let is_remote = tree.realm() != "local";
    match error {
        Error::AccessDenied | Error::NotPermitted if is_remote && tree.identity().uid == 0 => Some(SQUASHED),
        Error::TimedOut if is_remote => {
            Some("the server does not respond: check it and the network, or use --wait forever")
        }
        Error::Stale if is_remote => {
            Some("the file was removed, or the server was restarted with other handles: try again")
        }
        _ => None,
    }
}

/// Failures for single arguments of a command, which reports them and continues with the next argument.
#[derive(Default)]
pub struct Failures {
    has_any: bool,
}

impl Failures {
    /// Reports a failure; returns the result of a success.
    pub fn told<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        let report = |failure: &Failure| {
            failure.print();
            self.has_any = true;
        };
        result.inspect_err(report).ok()
    }

    /// Returns the outcome of the command, whose failures are reported.
    pub fn outcome(&self) -> Outcome {
        if self.has_any { Err(Failure::silent()) } else { Ok(()) }
    }
}
