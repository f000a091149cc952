//! Failures of procedures, mapped to NFS statuses.

use tombolo_core::Error;
use tombolo_core::fs::NameError;
use tombolo_wire_nfs3::{Reply, Status, status};
use tombolo_wire_xdr::{Encode, Encoder};

use crate::handle::Refused;

/// The status to reply. I/O errors, which no client can act upon, are logged on conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub Status);

/// Result of a procedure's step.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Converts an outcome to a reply; `contents` are those of the reply's failed arm.
pub(crate) fn reply<T, F>(outcome: Result<T>, contents: F) -> Reply<T, F> {
    match outcome {
        Ok(results) => Reply::Ok(results),
        Err(Failure(status)) => Reply::Failed(status, contents),
    }
}

/// Writes the reply if it is a failed one. The results of a successful one have been written already, because
/// they borrow from the work's variables.
pub(crate) fn write_failure<F: Encode>(written: &Reply<(), F>, results: &mut Encoder<'_>) {
    if written.status().is_some() {
        results.value(written);
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if let Error::Io { source: Some(source) } = &error {
            tracing::error!(error = %source, "I/O error");
        }
        Self(status::to_status(&error))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<NameError> for Failure {
    /// Maps to NAMETOOLONG (RFC 1813 §3.2), or INVAL for a string that cannot be a name.
    fn from(error: NameError) -> Self {
        match error {
            NameError::TooLong => Self(Status::NameTooLong),
            NameError::Empty | NameError::ForbiddenByte | NameError::Dots => Self(Status::Inval),
        }
    }
}

impl From<Refused> for Failure {
    /// Maps as in RFC 1813 §2.6: BADHANDLE for a handle that the server never issued, STALE for one that is
    /// no longer valid.
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Bad => Self(Status::BadHandle),
            Refused::Stale => Self(Status::Stale),
        }
    }
}
