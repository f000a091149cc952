//! Reading an open file directly from a local file.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::File;

/// A host file that contains all data of an open file.
pub struct BackingFile {
    /// The host file, open for reading. Permissions are not checked again for reads through this descriptor.
    pub descriptor: OwnedFd,
    /// Guard that keeps the data constant until it is dropped: they are not written, truncated or freed.
    pub hold: Arc<dyn Any + Send + Sync>,
}

/// Files whose data are completely on this host and constant while they are open. Offered only by a read-only
/// file system ([`Profile::read_only`](super::Profile::read_only)): data written through one opening would
/// not be visible through another.
pub trait BackingFiles: Send + Sync {
    /// Returns the backing file of the current version of a file that is open for reading; `None` if the file
    /// has none yet. Does not block, except to open a host file whose inode is in memory. The file behind
    /// `file` stays at this version as long as the hold lives: once there is a newer one, the node is
    /// [`Stale`](crate::Error::Stale), and look-ups find another.
    fn backing_file(&self, file: File) -> Option<BackingFile>;
}
