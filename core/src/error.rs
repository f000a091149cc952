//! The error type of the waists.

use thiserror::Error as ThisError;

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of an operation, independent of any protocol. Each protocol maps it to its status codes and
/// back (`status.rs` of its crate under `wire/`).
#[derive(Debug, ThisError)]
pub enum Error {
    /// The operation needs a privilege or ownership that the user lacks.
    #[error("operation not permitted")]
    NotPermitted,
    /// The permission bits or an ACL forbid the operation.
    #[error("permission denied")]
    AccessDenied,
    /// The name does not exist in the directory.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// The node is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The node is a directory, and the operation needs another type.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The two nodes are on different file systems.
    #[error("crosses a file-system boundary")]
    CrossDevice,
    /// An argument is invalid.
    #[error("invalid argument")]
    InvalidArgument,
    /// The name is too long.
    #[error("name too long")]
    NameTooLong,
    /// The path has too many symbolic links, or one where none is allowed.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// The node has the maximum number of names.
    #[error("too many links")]
    TooManyLinks,
    /// The file would grow past what the file system or a limit allows.
    #[error("file too large")]
    FileTooLarge,
    /// The device or file system is full.
    #[error("no space left on device")]
    NoSpace,
    /// The user's quota is used up.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// The file system or the export is read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// The node is in use in a conflicting way.
    #[error("device or resource busy")]
    Busy,
    /// The file is being executed.
    #[error("text file busy")]
    TextBusy,
    /// The operation would block and the caller requested a non-blocking one, or a queue of the server is
    /// full. Also the refusal of [`Write::by_owner`](crate::fs::Write::by_owner).
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// Waiting for the lock would complete a cycle of waiting owners.
    #[error("resource deadlock avoided")]
    Deadlock,
    /// The limit on locks is reached, or locks are temporarily not granted.
    #[error("no locks available")]
    NoLocks,
    /// The operation ended early at the caller's request.
    #[error("interrupted")]
    Interrupted,
    /// The operation was not finished before its deadline.
    #[error("timed out")]
    TimedOut,
    /// The node no longer exists, or the reference to it is invalid.
    #[error("stale file handle")]
    Stale,
    /// The opening does not exist in this session, or belongs to another node.
    #[error("bad file descriptor")]
    BadOpen,
    /// The listing cannot be continued from this directory position.
    #[error("bad directory cookie")]
    BadCookie,
    /// The guard of a setattr did not match.
    #[error("attributes changed meanwhile")]
    NotSync,
    /// The extended attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The result does not fit the caller's buffer.
    #[error("result too large for the buffer")]
    OutOfRange,
    /// A value is larger than the file system supports.
    #[error("argument too large")]
    TooBig,
    /// A number does not fit the protocol's type.
    #[error("value too large for the data type")]
    Overflow,
    /// The device does not exist, or no data follow this offset.
    #[error("no such device or address")]
    NoDevice,
    /// The file system does not implement this operation.
    #[error("operation not supported")]
    NotSupported,
    /// The operation is unknown to the server.
    #[error("function not implemented")]
    NotImplemented,
    /// The node type is not supported (RFC 1813: `NFS3ERR_BADTYPE`).
    #[error("node type not supported")]
    BadType,
    /// The request is not valid for this kind of device.
    #[error("inappropriate control operation for the device")]
    NotDevice,
    /// Memory ran out.
    #[error("out of memory")]
    NoMemory,
    /// The server's or the session's limit on open files is reached.
    #[error("too many open files")]
    TooManyOpen,
    /// The connection to the server that stores the data is lost, or the session has ended.
    #[error("not connected")]
    Disconnected,
    /// A device error, or another failure that the caller cannot act upon.
    #[error("input/output error")]
    Io {
        /// The underlying error, where known.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Error {
    /// Returns an I/O error that retains its cause for the log.
    pub fn io(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Io { source: Some(source.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_size_is_at_most_24_bytes() {
        assert!(size_of::<Error>() <= 24);
    }
}
