//! Reading an open file without asking for each piece.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::File;

/// A file of this host that holds all data of an open file.
pub struct BackingFile {
    /// Open for reading. A holder of it needs no leave any more.
    pub descriptor: OwnedFd,
    /// The data stay what they are until this is dropped: nothing is written, cut off or freed.
    pub hold: Arc<dyn Any + Send + Sync>,
}

/// Files whose data lie whole on this host and do not change while they are open. Only a file system in which
/// nothing can be changed has them ([`Profile::read_only`](super::Profile::read_only)): what is written
/// through one opening could not be seen through another.
pub trait BackingFiles: Send + Sync {
    /// The backing file of a file that is open for reading, in its present version; `None` if there is none,
    /// or not yet. May open a file of this host whose inode is in memory, and does not wait otherwise. The
    /// file that `file` is an opening of stays this version as long as the hold lives: if there is a newer
    /// one, the node is [`Stale`](crate::Error::Stale), and look-ups find another.
    fn backing_file(&self, file: File) -> Option<BackingFile>;
}
