//! Failures of the test and of the program under test.

use std::fmt::Debug;
use std::io;

/// The cause of a failed run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A forbidden answer or a leftover of the server.
    #[error("{0}")]
    Wrong(String),
    /// No answer to a call despite repetition.
    #[error("no answer: {0}")]
    Silent(#[source] io::Error),
    /// A malformed answer.
    #[error("malformed answer: {0}")]
    Garbled(#[from] tombolo_wire_xdr::Error),
    /// A difference between the host's tree and what was acknowledged.
    #[error("in the tree: {0}")]
    Tree(String),
    /// A process that failed to start, continue or end.
    #[error("{0}")]
    Process(String),
    /// A failure of the machine.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Result of most functions in this crate.
pub type Result<T> = std::result::Result<T, Failure>;

/// Returns the failure of a wrong answer.
pub fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Failure::Wrong(what.into()))
}

/// Returns the failure of an operation that had to succeed.
pub fn refused<T>(doing: impl Into<String>, why: impl Debug) -> Result<T> {
    wrong(format!("{}: {why:?}", doing.into()))
}
