//! Why a call has no answer.

use std::fmt;
use std::sync::Arc;

use thiserror::Error as ThisError;
use tombolo_sys::Errno;
use tombolo_wire_rpc::{Accepted, RecordError, Rejected};

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
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum CallError {
    /// No connection could be made (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: cannot be reached: {source}")]
    Unreachable {
        /// Whose call it was.
        callee: Callee,
        /// Why the last attempt failed.
        source: Errno,
    },
    /// There is no link to the server (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: there is no link: {why}")]
    NoLink {
        /// Whose call it was.
        callee: Callee,
        /// Why the last attempt failed.
        why: Arc<str>,
    },
    /// The server did not answer in time (with [`Recovery::Soft`](super::Recovery::Soft) only).
    #[error("{callee}: does not answer")]
    TimedOut {
        /// Whose call it was.
        callee: Callee,
    },
    /// The caller wished it. Whether the server carried it out is not known.
    #[error("{callee}: the call was interrupted")]
    Interrupted {
        /// Whose call it was.
        callee: Callee,
    },
    /// The server does not believe the caller, or speaks another RPC.
    #[error("{callee}: the call was refused: {why:?}")]
    Refused {
        /// Whose call it was.
        callee: Callee,
        /// What the server says.
        why: Rejected,
    },
    /// The server has no such program, version or procedure, or cannot make sense of the arguments.
    #[error("{callee}: the call was not carried out: {why:?}")]
    NotServed {
        /// Whose call it was.
        callee: Callee,
        /// What the server says.
        why: Accepted,
    },
    /// The reply makes no sense.
    #[error("{callee}: a reply that makes no sense: {why}")]
    Garbage {
        /// Whose call it was.
        callee: Callee,
        /// What is wrong.
        why: Garbage,
    },
    /// The call is longer than the transport takes.
    #[error("{callee}: a call of {len_bytes} bytes is too long")]
    TooLong {
        /// Whose call it was.
        callee: Callee,
        /// Its length.
        len_bytes: usize,
    },
    /// The client ended before the answer came.
    #[error("{callee}: the client has ended")]
    Ended {
        /// Whose call it was.
        callee: Callee,
    },
}

/// What is wrong with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Garbage {
    /// Its header.
    #[error("its header: {0}")]
    Header(tombolo_wire_xdr::Error),
    /// It is longer than [`Options::reply_bytes_max`](super::Options::reply_bytes_max).
    #[error("{0}")]
    Record(RecordError),
    /// It answers another call.
    #[error("it answers another call")]
    OtherCall,
    /// It is longer than any reply to this call, and was not sent for that reason.
    #[error("it is longer than there is room for")]
    NoRoom,
    /// The server says that it will not answer.
    #[error("there is none")]
    Silence,
    /// It breaks the rules of the link.
    #[error("it breaks the rules of the link")]
    Link,
    /// Data lie where the reply ends or beyond, or they are more than were asked for.
    #[error("{len_bytes} bytes of data at {start} of {results_bytes}, where {room_bytes} were asked for")]
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
