//! What can go wrong: with the test, or with the server.

use std::io;

use tombolo_wire_nfs3::Status;

/// Why a run ends.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server answered what it must not.
    #[error("{0}")]
    Wrong(String),
    /// A call failed that had to succeed.
    #[error("{doing}: {status:?}")]
    Refused {
        /// The call.
        doing: String,
        /// Its answer.
        status: Status,
    },
    /// No answer came, however often the call was sent.
    #[error("no answer: {0}")]
    Silent(#[source] io::Error),
    /// An answer that cannot be read.
    #[error("an answer that is none: {0}")]
    Garbled(#[from] tombolo_wire_xdr::Error),
    /// The tree on the host is not what was acknowledged.
    #[error("on the host: {0}")]
    Tree(String),
    /// The server does not start, or does not stay.
    #[error("the server: {0}")]
    Server(String),
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
