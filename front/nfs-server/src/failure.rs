//! Why a procedure fails, on its way to a status.

use tombolo_core::Error;
use tombolo_core::fs::NameError;
use tombolo_wire_nfs3::{Status, status};

use crate::handle::Refused;

/// The status that is answered. What no client can act upon is logged where it becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub Status);

/// What procedures come to.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

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
    /// RFC 1813 §3.2 has NAMETOOLONG; what can name no entry at all is an invalid argument.
    fn from(error: NameError) -> Self {
        match error {
            NameError::TooLong => Self(Status::NameTooLong),
            NameError::Empty | NameError::ForbiddenByte | NameError::Dots => Self(Status::Inval),
        }
    }
}

impl From<Refused> for Failure {
    /// RFC 1813 §2.6: BADHANDLE for what never was one of ours, STALE for what was and is not good any more.
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Bad => Self(Status::BadHandle),
            Refused::Stale => Self(Status::Stale),
        }
    }
}
