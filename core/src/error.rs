//! The one error of the file-system waist.

use thiserror::Error as ThisError;

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed, in the waist's own words. Each protocol maps it to its status and back
/// (`status.rs` in every crate under `wire/`); none of them is at home here.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The operation needs a privilege or ownership that the user lacks.
    #[error("operation not permitted")]
    NotPermitted,
    /// The permission bits or an ACL forbid it.
    #[error("permission denied")]
    AccessDenied,
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory will not do.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The two places lie on different file systems.
    #[error("crosses a file-system boundary")]
    CrossDevice,
    /// An argument makes no sense.
    #[error("invalid argument")]
    InvalidArgument,
    /// The name is too long.
    #[error("name too long")]
    NameTooLong,
    /// Too many symbolic links, or one where none may be.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// The node has as many names as it can.
    #[error("too many links")]
    TooManyLinks,
    /// The file would grow past what the file system or a limit allows.
    #[error("file too large")]
    FileTooLarge,
    /// The device is full.
    #[error("no space left on device")]
    NoSpace,
    /// The user's quota is used up.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// The file system or the export is read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// The node is in use in a way that forbids it.
    #[error("device or resource busy")]
    Busy,
    /// The file is being executed.
    #[error("text file busy")]
    TextBusy,
    /// It would have to wait, and the caller asked not to.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// Waiting for the lock would never end.
    #[error("resource deadlock avoided")]
    Deadlock,
    /// No lock could be had.
    #[error("no locks available")]
    NoLocks,
    /// The caller asked the operation to end, and it did.
    #[error("interrupted")]
    Interrupted,
    /// The deadline passed.
    #[error("timed out")]
    TimedOut,
    /// The node is gone, or the reference is not (or no longer) good.
    #[error("stale file handle")]
    Stale,
    /// The opening does not exist in this session, or belongs to another node.
    #[error("bad file descriptor")]
    BadOpen,
    /// The directory position cannot be continued from.
    #[error("bad directory cookie")]
    BadCookie,
    /// The guard of a setattr did not hold.
    #[error("attributes changed meanwhile")]
    NotSync,
    /// The attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The result does not fit where the caller wants it.
    #[error("result too large for the buffer")]
    OutOfRange,
    /// A value is larger than the file system can hold.
    #[error("argument too large")]
    TooBig,
    /// A number does not fit its type on the other side.
    #[error("value too large for the data type")]
    Overflow,
    /// There is no such device or data beyond this point.
    #[error("no such device or address")]
    NoDevice,
    /// The file system does not have this operation.
    #[error("operation not supported")]
    NotSupported,
    /// The operation is unknown to the server.
    #[error("function not implemented")]
    NotImplemented,
    /// Not that kind of node (RFC 1813: `NFS3ERR_BADTYPE`).
    #[error("node type not supported")]
    BadType,
    /// The request does not suit a device of this kind.
    #[error("inappropriate control operation for the device")]
    NotDevice,
    /// Memory ran out.
    #[error("out of memory")]
    NoMemory,
    /// The server's or the session's limit on open files is reached.
    #[error("too many open files")]
    TooManyOpen,
    /// The connection to where the data lives is lost.
    #[error("not connected")]
    Disconnected,
    /// Reading or writing the device failed, or something else did that no caller can act upon.
    #[error("input/output error")]
    Io {
        /// What was reported, where anything was.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Error {
    /// An I/O error that keeps its cause for the log.
    pub fn io(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Io { source: Some(source.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stays_three_words_so_that_answers_stay_small() {
        assert!(size_of::<Error>() <= 24);
    }
}
