//! What goes wrong between the waist and the server.

use tombolo_core::Error;
use tombolo_host_rpc::client::CallError;
use tombolo_sys::Errno;
use tombolo_wire_nfs3::Procedure;

/// Why an operation failed, where the waist has only "input/output error" to say. It names host and
/// operation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No reply, or none from NFS.
    #[error("{procedure:?}")]
    Call {
        /// What was asked.
        procedure: Procedure,
        /// The outcome of the call. It names the server.
        source: CallError,
    },
    /// The reply does not decode.
    #[error("{server}: {procedure:?}: malformed reply")]
    Malformed {
        /// Host and export.
        server: String,
        /// What was asked.
        procedure: Procedure,
        /// What is wrong with it.
        source: tombolo_wire_xdr::Error,
    },
    /// The reply violates the protocol.
    #[error("{server}: {procedure:?}: invalid server reply: {what}")]
    InvalidReply {
        /// Host and export.
        server: String,
        /// What was asked.
        procedure: Procedure,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The server reports a failure of its own.
    #[error("{server}: {procedure:?}: server replied {status:?}")]
    Broken {
        /// Host and export.
        server: String,
        /// What was asked.
        procedure: Procedure,
        /// The status in its reply.
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
