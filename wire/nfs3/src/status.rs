//! Mapping between the waist's errors and `nfsstat3`.
//!
//! Both directions are exhaustive matches: a new error or status does not compile until it is mapped. The
//! lossy mappings are explained in `docs/decisions/wire-nfs-statuses.md`.

use tombolo_core::Error;

use crate::Status;

/// Declares the pairs that are lossless in both directions; the others are in the functions.
macro_rules! pairs {
    ($($error:ident = $status:ident,)+) => {
        /// Returns the status that represents `error` in a reply.
        #[must_use]
        pub fn to_status(error: &Error) -> Status {
            match error {
                $(Error::$error => Status::$status,)+
                Error::TooBig => Status::FBig,
                Error::SymlinkLoop | Error::Overflow | Error::NotDevice => Status::Inval,
                Error::NotImplemented | Error::NoAttribute => Status::NotSupp,
                // The file may stay in use for long, and after JUKEBOX the client would retry until it is
                // free: the call is refused.
                Error::Busy | Error::TextBusy => Status::Acces,
                // Transient: the client should wait and retry.
                Error::NoLocks
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
                $(Status::$status => Error::$error,)+
                Status::NoDev => Error::NoDevice,
                Status::BadHandle => Error::Stale,
                Status::Io | Status::Remote | Status::ServerFault => Error::Io { source: None },
            }
        }

        #[cfg(test)]
        fn lossless() -> Vec<Error> {
            vec![$(Error::$error,)+ Error::Io { source: None }]
        }
    };
}

pairs! {
    NotPermitted = Perm,
    AccessDenied = Acces,
    NotFound = NoEnt,
    Exists = Exist,
    NotDirectory = NotDir,
    IsDirectory = IsDir,
    NotEmpty = NotEmpty,
    CrossDevice = XDev,
    InvalidArgument = Inval,
    NameTooLong = NameTooLong,
    TooManyLinks = MLink,
    FileTooLarge = FBig,
    NoSpace = NoSpc,
    QuotaExceeded = DQuot,
    ReadOnly = RoFs,
    WouldBlock = Jukebox,
    Stale = Stale,
    BadCookie = BadCookie,
    NotSync = NotSync,
    OutOfRange = TooSmall,
    NoDevice = NxIo,
    NotSupported = NotSupp,
    BadType = BadType,
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
        for error in lossless() {
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
