//! What can go wrong: with the test, or with what is tested.

use std::fmt::Debug;
use std::io;

/// Why a run ends.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server answered what it must not, or left something over.
    #[error("{0}")]
    Wrong(String),
    /// No answer came, however often the call was sent.
    #[error("no answer: {0}")]
    Silent(#[source] io::Error),
    /// An answer that cannot be read.
    #[error("malformed answer: {0}")]
    Garbled(#[from] tombolo_wire_xdr::Error),
    /// The tree on the host is not what was acknowledged.
    #[error("in the tree: {0}")]
    Tree(String),
    /// A process does not start, does not go on, or does not end.
    #[error("{0}")]
    Process(String),
    /// The machine.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What most functions here return.
pub type Result<T> = std::result::Result<T, Failure>;

/// The failure that the server answered wrongly.
pub fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Failure::Wrong(what.into()))
}

/// The failure of an operation that had to succeed.
pub fn refused<T>(doing: impl Into<String>, why: impl Debug) -> Result<T> {
    wrong(format!("{}: {why:?}", doing.into()))
}
