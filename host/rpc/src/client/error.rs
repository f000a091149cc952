//! Errors of calls.

use std::fmt;
use std::sync::Arc;

use thiserror::Error as ThisError;
use tombolo_host_tls::TlsError;
use tombolo_sys::Errno;
use tombolo_wire_rpc::{Accepted, RecordError, Rejected};

use super::tunnel::TunnelFault;

/// The callee, as named in errors: [`Options::label`](super::Options::label) and the procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    pub(super) label: Arc<str>,
    /// Procedure number.
    pub procedure: u32,
}

impl Callee {
    /// Returns [`Options::label`](super::Options::label).
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }
}

impl fmt::Display for Callee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

/// Reason why a call has no results.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum CallError {
    /// No connection could be made, or the last connection or datagram failed (only with
    /// [`Recovery::Soft`](super::Recovery::Soft)).
    #[error("{callee}: cannot connect: {source}")]
    Unreachable {
        /// The callee.
        callee: Callee,
        /// The last system error.
        source: Errno,
    },
    /// No secure connection could be made, or the last one failed (only with
    /// [`Recovery::Soft`](super::Recovery::Soft)).
    #[error("{callee}: no secure connection: {source}")]
    Insecure {
        /// The callee.
        callee: Callee,
        /// Error of the last connection.
        source: TlsError,
    },
    /// The command that connects to the server (a tunnel, such as `ssh`) has ended (only with
    /// [`Recovery::Soft`](super::Recovery::Soft)).
    #[error("{callee}: {source}")]
    NoTunnel {
        /// The callee.
        callee: Callee,
        /// Reason why the last command ended.
        source: TunnelFault,
    },
    /// No shared-memory link to the server could be made (only with
    /// [`Recovery::Soft`](super::Recovery::Soft)).
    #[error("{callee}: no link: {why}")]
    NoLink {
        /// The callee.
        callee: Callee,
        /// Error of the last attempt, or end of the last link.
        why: Arc<str>,
    },
    /// The server did not answer in time (only with [`Recovery::Soft`](super::Recovery::Soft)).
    #[error("{callee}: timed out")]
    TimedOut {
        /// The callee.
        callee: Callee,
    },
    /// The caller interrupted the call. The server may or may not have executed it.
    #[error("{callee}: interrupted")]
    Interrupted {
        /// The callee.
        callee: Callee,
    },
    /// The server rejected the credential or the RPC version.
    #[error("{callee}: call denied: {why:?}")]
    Refused {
        /// The callee.
        callee: Callee,
        /// Reason given by the server.
        why: Rejected,
    },
    /// The server accepted the call but did not execute it (`accept_stat` of RFC 5531 §9 other than SUCCESS).
    #[error("{callee}: call not executed: {why:?}")]
    NotServed {
        /// The callee.
        callee: Callee,
        /// Reason given by the server.
        why: Accepted,
    },
    /// The reply is malformed, too long or missing.
    #[error("{callee}: invalid reply: {why}")]
    InvalidReply {
        /// The callee.
        callee: Callee,
        /// Fault of the reply.
        why: InvalidReply,
    },
    /// The call exceeds the transport's maximum length, or a link's bulk memory.
    #[error("{callee}: call of {len_bytes} bytes is too long")]
    TooLong {
        /// The callee.
        callee: Callee,
        /// Length of the call.
        len_bytes: usize,
    },
    /// The client ended before the call was answered.
    #[error("{callee}: client stopped")]
    Ended {
        /// The callee.
        callee: Callee,
    },
}

/// Reason, other than a system error, why a connection is unusable.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum Fault {
    /// The TLS session could not be established, or has failed.
    #[error("no secure connection: {0}")]
    Tls(TlsError),
    /// The command that connects to the server has ended.
    #[error("{0}")]
    Tunnel(TunnelFault),
}

impl Fault {
    pub(super) fn of(self, callee: Callee) -> CallError {
        match self {
            Self::Tls(source) => CallError::Insecure { callee, source },
            Self::Tunnel(source) => CallError::NoTunnel { callee, source },
        }
    }
}

/// Fault of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum InvalidReply {
    /// The header is malformed.
    #[error("header: {0}")]
    Header(tombolo_wire_xdr::Error),
    /// The reply exceeds [`Options::reply_bytes_max`](super::Options::reply_bytes_max).
    #[error("{0}")]
    Record(RecordError),
    /// The transaction id is that of another call.
    #[error("wrong xid")]
    OtherCall,
    /// The reply exceeds the buffer for this call over a shared-memory link, and was not sent.
    #[error("longer than its buffer")]
    BufferTooSmall,
    /// The server sends no reply to this call; over a shared-memory link it reports that.
    #[error("empty")]
    Silence,
    /// The reply violates the protocol of shared-memory links.
    #[error("link protocol violation")]
    Link,
    /// The file data in the reply extend beyond the results, or exceed the requested length.
    #[error("{len_bytes} bytes of data at {start} of {results_bytes}, {requested_bytes} requested")]
    Data {
        /// Start of the data in the results.
        start: usize,
        /// Length of the data.
        len_bytes: usize,
        /// Length of the results.
        results_bytes: usize,
        /// Requested length.
        requested_bytes: usize,
    },
}

/// Reason why a reply is a failure, before the callee is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Refused(Rejected),
    NotServed(Accepted),
    InvalidReply(InvalidReply),
}

impl Failure {
    pub(super) fn of(self, callee: Callee) -> CallError {
        match self {
            Self::Refused(why) => CallError::Refused { callee, why },
            Self::NotServed(why) => CallError::NotServed { callee, why },
            Self::InvalidReply(why) => CallError::InvalidReply { callee, why },
        }
    }
}
