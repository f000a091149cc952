//! Failures of calls to the server.

use tombolo_core::Error;
use tombolo_host_rpc::client::CallError;
use tombolo_sys::Errno;
use tombolo_wire_nfs3::Procedure;

/// Failure of a call to the server. Its text, with that of its sources, names host and operation. Except for
/// interrupts and time-outs, the waist reports "input/output error", with this as the source.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The RPC call failed: no reply, or one by which the server rejects the call.
    #[error("{procedure:?}")]
    Call {
        procedure: Procedure,
        /// The outcome of the call, which names the server.
        source: CallError,
    },
    /// The reply does not decode.
    #[error("{server}: {procedure:?}: malformed reply")]
    Malformed {
        /// Host and export.
        server: String,
        procedure: Procedure,
        source: tombolo_wire_xdr::Error,
    },
    /// The reply violates the protocol.
    #[error("{server}: {procedure:?}: invalid server reply: {what}")]
    InvalidReply {
        /// Host and export.
        server: String,
        procedure: Procedure,
        /// The violation.
        what: &'static str,
    },
    /// The server reports a failure of its own: IO, SERVERFAULT or REMOTE.
    #[error("{server}: {procedure:?}: server replied {status:?}")]
    Broken {
        /// Host and export.
        server: String,
        procedure: Procedure,
        status: tombolo_wire_nfs3::Status,
    },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match &failure {
            Failure::Call { source: CallError::Interrupted { .. }, .. } => Self::Interrupted,
            Failure::Call {
                source: CallError::TimedOut { .. } | CallError::Unreachable { source: Errno::TIMEDOUT, .. },
                ..
            } => Self::TimedOut,
            _ => Self::io(failure),
        }
    }
}
