//! Why a call has no answer.

use std::fmt;
use std::sync::Arc;

use thiserror::Error as ThisError;
use tombolo_host_tls::TlsError;
use tombolo_sys::Errno;
use tombolo_wire_rpc::{Accepted, RecordError, Rejected};

use super::tunnel::TunnelFault;

/// Whose call it was: [`Options::label`](super::Options::label) and the procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    pub(super) label: Arc<str>,
    /// The procedure that was called.
    pub procedure: u32,
}

impl Callee {
    /// [`Options::label`](super::Options::label).
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

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum CallError {
    /// No connection could be made (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: cannot connect: {source}")]
    Unreachable {
        /// Whose call it was.
        callee: Callee,
        /// Why the last attempt failed.
        source: Errno,
    },
    /// No connection could be made that is secure (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: no secure connection: {source}")]
    Insecure {
        /// Whose call it was.
        callee: Callee,
        /// Why the last attempt failed.
        source: TlsError,
    },
    /// The program that is the connection has ended (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: {source}")]
    NoTunnel {
        /// Whose call it was.
        callee: Callee,
        /// Why the last one ended.
        source: TunnelFault,
    },
    /// There is no link to the server (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: no link: {why}")]
    NoLink {
        /// Whose call it was.
        callee: Callee,
        /// Why the last attempt failed.
        why: Arc<str>,
    },
    /// The server did not answer in time (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: timed out")]
    TimedOut {
        /// Whose call it was.
        callee: Callee,
    },
    /// The caller wished it. Whether the server carried it out is not known.
    #[error("{callee}: interrupted")]
    Interrupted {
        /// Whose call it was.
        callee: Callee,
    },
    /// The server does not believe the caller, or speaks another RPC.
    #[error("{callee}: call denied: {why:?}")]
    Refused {
        /// Whose call it was.
        callee: Callee,
        /// What the server says.
        why: Rejected,
    },
    /// The server has no such program, version or procedure, or cannot make sense of the arguments.
    #[error("{callee}: call not executed: {why:?}")]
    NotServed {
        /// Whose call it was.
        callee: Callee,
        /// What the server says.
        why: Accepted,
    },
    /// The reply makes no sense.
    #[error("{callee}: invalid reply: {why}")]
    Garbage {
        /// Whose call it was.
        callee: Callee,
        /// What is wrong.
        why: Garbage,
    },
    /// The call is longer than the transport takes.
    #[error("{callee}: call of {len_bytes} bytes is too long")]
    TooLong {
        /// Whose call it was.
        callee: Callee,
        /// Its length.
        len_bytes: usize,
    },
    /// The client ended before the answer came.
    #[error("{callee}: client stopped")]
    Ended {
        /// Whose call it was.
        callee: Callee,
    },
}

/// Why a connection is of no use, where that is not the system's word.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum Fault {
    /// That of TLS.
    #[error("no secure connection: {0}")]
    Tls(TlsError),
    /// That of a program.
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

/// What is wrong with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Garbage {
    /// Its header.
    #[error("header: {0}")]
    Header(tombolo_wire_xdr::Error),
    /// It is longer than [`Options::reply_bytes_max`](super::Options::reply_bytes_max).
    #[error("{0}")]
    Record(RecordError),
    /// It answers another call.
    #[error("wrong xid")]
    OtherCall,
    /// It is longer than any reply to this call, and was not sent for that reason.
    #[error("longer than its buffer")]
    BufferTooSmall,
    /// The server says that it will not answer.
    #[error("empty")]
    Silence,
    /// It breaks the rules of the link.
    #[error("link protocol violation")]
    Link,
    /// Data lie where the reply ends or beyond, or they are more than were asked for.
    #[error("{len_bytes} bytes of data at {start} of {results_bytes}, {room_bytes} requested")]
    Data {
        /// Where the data begin in the results.
        start: usize,
        /// How many there are.
        len_bytes: usize,
        /// How long the results are.
        results_bytes: usize,
        /// How many were asked for.
        room_bytes: usize,
    },
}

/// Why a reply is no answer, before it is known whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Refused(Rejected),
    NotServed(Accepted),
    Garbage(Garbage),
}

impl Failure {
    pub(super) fn of(self, callee: Callee) -> CallError {
        match self {
            Self::Refused(why) => CallError::Refused { callee, why },
            Self::NotServed(why) => CallError::NotServed { callee, why },
            Self::Garbage(why) => CallError::Garbage { callee, why },
        }
    }
}
