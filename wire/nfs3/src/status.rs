//! Mapping between the waist's errors and `nfsstat3`.
//!
//! Both matches are exhaustive: a new error or status does not compile until it is mapped. The lossy mappings
//! are explained in `docs/decisions/wire-nfs-statuses.md`.

use tombolo_core::Error;

use crate::Status;

/// Returns the status that represents `error` in a reply.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    match error {
        Error::NotPermitted => Status::Perm,
        Error::AccessDenied => Status::Acces,
        Error::NotFound => Status::NoEnt,
        Error::Exists => Status::Exist,
        Error::NotDirectory => Status::NotDir,
        Error::IsDirectory => Status::IsDir,
        Error::NotEmpty => Status::NotEmpty,
        Error::CrossDevice => Status::XDev,
        Error::NameTooLong => Status::NameTooLong,
        Error::TooManyLinks => Status::MLink,
        Error::FileTooLarge | Error::TooBig => Status::FBig,
        Error::NoSpace => Status::NoSpc,
        Error::QuotaExceeded => Status::DQuot,
        Error::ReadOnly => Status::RoFs,
        Error::Stale => Status::Stale,
        Error::BadCookie => Status::BadCookie,
        Error::NotSync => Status::NotSync,
        Error::OutOfRange => Status::TooSmall,
        Error::NoDevice => Status::NxIo,
        Error::BadType => Status::BadType,
        Error::InvalidArgument | Error::SymlinkLoop | Error::Overflow | Error::NotDevice => Status::Inval,
        Error::NotSupported | Error::NotImplemented | Error::NoAttribute => Status::NotSupp,
        // The file is in use: the call is refused, and the client must not retry it until the file is free.
        Error::Busy | Error::TextBusy => Status::Acces,
        // Transient: the client should wait and retry.
        Error::WouldBlock
        | Error::NoLocks
        | Error::Interrupted
        | Error::TimedOut
        | Error::NoMemory
        | Error::TooManyOpen
        | Error::Disconnected => Status::Jukebox,
        // No procedure can cause these errors, so the server itself is faulty.
        Error::BadOpen | Error::Deadlock => Status::ServerFault,
        Error::Io { .. } => Status::Io,
    }
}

/// Returns the waist's error for `status`.
#[must_use]
pub fn from_status(status: Status) -> Error {
    match status {
        Status::Perm => Error::NotPermitted,
        Status::NoEnt => Error::NotFound,
        Status::NxIo | Status::NoDev => Error::NoDevice,
        Status::Acces => Error::AccessDenied,
        Status::Exist => Error::Exists,
        Status::XDev => Error::CrossDevice,
        Status::NotDir => Error::NotDirectory,
        Status::IsDir => Error::IsDirectory,
        Status::Inval => Error::InvalidArgument,
        Status::FBig => Error::FileTooLarge,
        Status::NoSpc => Error::NoSpace,
        Status::RoFs => Error::ReadOnly,
        Status::MLink => Error::TooManyLinks,
        Status::NameTooLong => Error::NameTooLong,
        Status::NotEmpty => Error::NotEmpty,
        Status::DQuot => Error::QuotaExceeded,
        Status::Stale | Status::BadHandle => Error::Stale,
        Status::NotSync => Error::NotSync,
        Status::BadCookie => Error::BadCookie,
        Status::NotSupp => Error::NotSupported,
        Status::TooSmall => Error::OutOfRange,
        Status::BadType => Error::BadType,
        Status::Jukebox => Error::WouldBlock,
        Status::Io | Status::Remote | Status::ServerFault => Error::Io { source: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::discriminant;

    #[test]
    fn every_status_survives_the_waist_or_becomes_its_nearest() {
        for &status in Status::ALL {
            let nearest = match status {
                Status::NoDev => Status::NxIo,
                Status::BadHandle => Status::Stale,
                Status::Remote | Status::ServerFault => Status::Io,
                other => other,
            };
            assert_eq!(to_status(&from_status(status)), nearest, "{status:?}");
        }
    }

    #[test]
    fn errors_with_their_own_status_round_trip() {
        let own = [
            Error::NotPermitted,
            Error::AccessDenied,
            Error::NotFound,
            Error::Exists,
            Error::NotDirectory,
            Error::IsDirectory,
            Error::NotEmpty,
            Error::CrossDevice,
            Error::InvalidArgument,
            Error::NameTooLong,
            Error::TooManyLinks,
            Error::FileTooLarge,
            Error::NoSpace,
            Error::QuotaExceeded,
            Error::ReadOnly,
            Error::WouldBlock,
            Error::Stale,
            Error::BadCookie,
            Error::NotSync,
            Error::OutOfRange,
            Error::NoDevice,
            Error::NotSupported,
            Error::BadType,
            Error::Io { source: None },
        ];
        for error in own {
            let again = from_status(to_status(&error));
            assert_eq!(discriminant(&again), discriminant(&error), "{error}");
        }
    }

    #[test]
    fn transient_errors_map_to_jukebox_and_busy_does_not() {
        for error in [Error::TimedOut, Error::NoMemory, Error::TooManyOpen, Error::Disconnected] {
            assert_eq!(to_status(&error), Status::Jukebox, "{error}");
        }
        for error in [Error::Busy, Error::TextBusy] {
            assert_eq!(to_status(&error), Status::Acces, "{error}");
        }
    }
}
