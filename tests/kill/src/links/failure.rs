//! What can go wrong: with the test, or with what is tested.

use std::io;

/// Why a run ends.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An operation failed that had to succeed.
    #[error("operation {number}, {doing}: {why}")]
    Refused {
        /// Which one of the log.
        number: u64,
        /// What it was.
        doing: String,
        /// What was answered.
        why: String,
    },
    /// What is there is not what was answered.
    #[error("in the tree: {0}")]
    Tree(String),
    /// A process does not start, does not go on, or does not end.
    #[error("{0}")]
    Process(String),
    /// Something is left over.
    #[error("left over: {0}")]
    Left(String),
    /// The machine.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What most functions here return.
pub type Result<T> = std::result::Result<T, Failure>;
