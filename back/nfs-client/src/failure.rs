//! What goes wrong between the waist and the server.

use tombolo_core::Error;
use tombolo_host::rpc_client::CallError;
use tombolo_wire_nfs3::Procedure;

/// Why an operation failed, where the waist has only "input/output error" to say. It names host and operation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// There was no answer, or none from NFS.
    #[error("{procedure:?}")]
    Call {
        /// What was asked.
        procedure: Procedure,
        /// What became of it. It names the server.
        source: CallError,
    },
    /// The answer cannot be read.
    #[error("{server}: the answer to {procedure:?} is garbage")]
    Garbage {
        /// Host and export.
        server: String,
        /// What was asked.
        procedure: Procedure,
        /// What is wrong with it.
        source: tombolo_wire_xdr::Error,
    },
    /// The answer can be read and makes no sense.
    #[error("{server}: {procedure:?}: {what}")]
    Nonsense {
        /// Host and export.
        server: String,
        /// What was asked.
        procedure: Procedure,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The server says that something broke.
    #[error("{server}: {procedure:?}: the server answers {status:?}")]
    Broken {
        /// Host and export.
        server: String,
        /// What was asked.
        procedure: Procedure,
        /// In its own word.
        status: tombolo_wire_nfs3::Status,
    },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match &failure {
            Failure::Call { source: CallError::Interrupted { .. }, .. } => Self::Interrupted,
            Failure::Call { source: CallError::TimedOut { .. }, .. } => Self::TimedOut,
            _ => Self::io(failure),
        }
    }
}
