//! Mapping between the waist's errors and Linux error numbers.

use crate::errno::Errno;
use tombolo_core::Error;

/// Declares the pairs, those that are lossless in both directions first.
macro_rules! pairs {
    (both: [$($error:ident = $errno:ident,)+], out: [$($lossy:ident = $lossy_errno:ident,)+]) => {
        /// Returns the number that represents `error` in a reply.
        ///
        /// `BadCookie`, `NotSync` and `BadType` have no number of their own: the kernel's FUSE client cannot
        /// cause them; they occur only in layers that also serve other protocols.
        #[must_use]
        pub fn to_errno(error: &Error) -> Errno {
            match error {
                $(Error::$error => Errno::$errno,)+
                $(Error::$lossy => Errno::$lossy_errno,)+
                Error::Io { .. } => Errno::EIO,
            }
        }

        /// Returns the waist's error for `errno`. Numbers unused by file operations become [`Error::Io`].
        #[must_use]
        pub fn from_errno(errno: Errno) -> Error {
            match errno {
                $(Errno::$errno => Error::$error,)+
                Errno::EMFILE => Error::TooManyOpen,
                Errno::ETIME => Error::TimedOut,
                Errno::ENODEV => Error::NoDevice,
                Errno::ECONNABORTED => Error::Disconnected,
                Errno::ECANCELED => Error::Interrupted,
                _ => Error::Io { source: None },
            }
        }

        #[cfg(test)]
        fn both_ways() -> Vec<(Error, Errno)> {
            vec![$((Error::$error, Errno::$errno)),+]
        }

        #[cfg(test)]
        fn out_only() -> Vec<(Error, Errno)> {
            vec![$((Error::$lossy, Errno::$lossy_errno)),+]
        }
    };
}

pairs! {
    both: [
        NotPermitted = EPERM,
        AccessDenied = EACCES,
        NotFound = ENOENT,
        Exists = EEXIST,
        NotDirectory = ENOTDIR,
        IsDirectory = EISDIR,
        NotEmpty = ENOTEMPTY,
        CrossDevice = EXDEV,
        InvalidArgument = EINVAL,
        NameTooLong = ENAMETOOLONG,
        SymlinkLoop = ELOOP,
        TooManyLinks = EMLINK,
        FileTooLarge = EFBIG,
        NoSpace = ENOSPC,
        QuotaExceeded = EDQUOT,
        ReadOnly = EROFS,
        Busy = EBUSY,
        TextBusy = ETXTBSY,
        WouldBlock = EAGAIN,
        Deadlock = EDEADLK,
        NoLocks = ENOLCK,
        Interrupted = EINTR,
        TimedOut = ETIMEDOUT,
        Stale = ESTALE,
        BadOpen = EBADF,
        NoAttribute = ENODATA,
        OutOfRange = ERANGE,
        TooBig = E2BIG,
        Overflow = EOVERFLOW,
        NoDevice = ENXIO,
        NotSupported = EOPNOTSUPP,
        NotImplemented = ENOSYS,
        NotDevice = ENOTTY,
        NoMemory = ENOMEM,
        TooManyOpen = ENFILE,
        Disconnected = ENOTCONN,
    ],
    out: [
        BadCookie = EINVAL,
        NotSync = EAGAIN,
        BadType = EINVAL,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::discriminant;

    #[test]
    fn errors_with_their_own_errno_round_trip() {
        for (error, errno) in both_ways() {
            assert_eq!(to_errno(&error), errno);
            assert_eq!(discriminant(&from_errno(errno)), discriminant(&error), "{errno}");
        }
    }

    #[test]
    fn named_errnos_round_trip_or_map_to_nearest() {
        for &errno in Errno::ALL {
            let again = to_errno(&from_errno(errno));
            let nearest = match errno {
                Errno::EMFILE => Errno::ENFILE,
                Errno::ETIME => Errno::ETIMEDOUT,
                Errno::ENODEV => Errno::ENXIO,
                Errno::ECONNABORTED => Errno::ENOTCONN,
                Errno::ECANCELED => Errno::EINTR,
                Errno::EFAULT | Errno::ESPIPE | Errno::EPIPE | Errno::EPROTO => Errno::EIO,
                other => other,
            };
            assert_eq!(again, nearest);
        }
    }

    #[test]
    fn lossy_errors_map_to_errnos() {
        for (error, errno) in out_only() {
            assert_eq!(to_errno(&error), errno);
        }
        assert_eq!(to_errno(&Error::io("disk on fire")), Errno::EIO);
    }
}
