//! Mapping of system-call error numbers to the waist's errors.

use tombolo_sys::Errno;

use crate::Error;

impl From<Errno> for Error {
    /// Maps unlisted numbers to I/O errors that retain the number for the log.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PERM => Self::NotPermitted,
            Errno::ACCESS => Self::AccessDenied,
            Errno::NOENT => Self::NotFound,
            Errno::EXIST => Self::Exists,
            Errno::NOTDIR => Self::NotDirectory,
            Errno::ISDIR => Self::IsDirectory,
            Errno::NOTEMPTY => Self::NotEmpty,
            Errno::XDEV => Self::CrossDevice,
            // EILSEQ: a name in an encoding that the file system cannot store.
            Errno::INVAL | Errno::ILSEQ => Self::InvalidArgument,
            Errno::NAMETOOLONG => Self::NameTooLong,
            Errno::LOOP => Self::SymlinkLoop,
            Errno::MLINK => Self::TooManyLinks,
            Errno::FBIG => Self::FileTooLarge,
            Errno::NOSPC => Self::NoSpace,
            Errno::DQUOT => Self::QuotaExceeded,
            Errno::ROFS => Self::ReadOnly,
            Errno::BUSY => Self::Busy,
            Errno::TXTBSY => Self::TextBusy,
            Errno::AGAIN => Self::WouldBlock,
            Errno::DEADLK => Self::Deadlock,
            Errno::NOLCK => Self::NoLocks,
            Errno::INTR => Self::Interrupted,
            Errno::TIMEDOUT => Self::TimedOut,
            Errno::STALE => Self::Stale,
            Errno::BADF => Self::BadOpen,
            Errno::NODATA => Self::NoAttribute,
            Errno::RANGE => Self::OutOfRange,
            Errno::TOOBIG => Self::TooBig,
            Errno::OVERFLOW => Self::Overflow,
            Errno::NXIO | Errno::NODEV => Self::NoDevice,
            Errno::OPNOTSUPP => Self::NotSupported,
            Errno::NOSYS => Self::NotImplemented,
            Errno::NOTTY => Self::NotDevice,
            Errno::NOMEM => Self::NoMemory,
            Errno::MFILE | Errno::NFILE => Self::TooManyOpen,
            Errno::NOTCONN => Self::Disconnected,
            _ => Self::io(std::io::Error::from(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_errno_becomes_io_error_with_number() {
        let error = Error::from(Errno::REMOTEIO);
        let Error::Io { source: Some(source) } = error else { panic!("{error:?}") };
        assert!(source.to_string().contains("121"), "{source}");
        assert!(matches!(Error::from(Errno::IO), Error::Io { .. }));
    }

    #[test]
    fn name_in_a_wrong_encoding_is_an_invalid_argument() {
        assert!(matches!(Error::from(Errno::ILSEQ), Error::InvalidArgument));
    }
}
