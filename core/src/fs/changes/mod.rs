//! Change notifications: the waist's support for coherent caches.
//!
//! A subscribed session receives numbered [`Notice`]s of changes by other sessions (and, where the back end
//! observes them, by other processes). The back end queues the notice of a session's change after the change
//! is done and before it is answered, in the [`NoticeQueue`] of each subscribed session, which it finds in
//! [`Watchers`].

mod queue;
mod versions;
mod watchers;

pub use queue::NoticeQueue;
pub use versions::{Version, Versions, WindowMirror};
pub use watchers::Watchers;

use super::{NameBuf, NodeId};
use crate::{Answer, Ctx};

/// A possible change. Node ids are those of the receiving session, which references the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The attributes of a node, including access lists and other extended attributes.
    Attributes(NodeId),
    /// Bytes `start` to `last` of a file, inclusive, and its attributes.
    Data {
        /// The changed file.
        node: NodeId,
        /// Offset of the first changed byte.
        start: u64,
        /// The last byte; `u64::MAX` for the end of the file, wherever it is.
        last: u64,
    },
    /// A directory entry, and thus the directory's listing. The directory's attributes have a separate
    /// [`Attributes`](Self::Attributes) notice.
    Name {
        /// The directory whose entry changed.
        dir: NodeId,
        /// Name of the entry, which may have been created, removed or replaced.
        name: NameBuf,
    },
    /// The last name of a node was removed. Openings remain valid. Precedes the corresponding
    /// [`Name`](Self::Name) notice, so that a kernel can still resolve the name.
    Gone {
        /// The node that has no name any more.
        node: NodeId,
        /// The name, in a directory referenced by the session; `None` if unknown.
        name: Option<(NodeId, NameBuf)>,
    },
    /// A change of unknown extent: all state cached before this notice is invalid.
    Everything,
}

/// A batch of notices, in order of occurrence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Number of the last notice: `since` of the next call of [`Changes::next`].
    pub last: u64,
    /// The notices, in order of their numbers, of which the last is [`last`](Self::last); not empty.
    pub list: Vec<Notice>,
}

/// Bytes that a notice takes of [`Changes::next`]'s limit; a name adds its length, rounded up to eight bytes.
pub const NOTICE_BYTES: usize = 32;

impl Notice {
    /// Returns the bytes that this notice takes of [`Changes::next`]'s limit.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Name { name, .. } | Self::Gone { name: Some((_, name)), .. } => {
                NOTICE_BYTES + name.as_name().as_bytes().len().next_multiple_of(8)
            }
            _ => NOTICE_BYTES,
        }
    }
}

/// A stream of change notifications.
pub trait Changes: Send + Sync {
    /// Returns the notices that follow number `since`, as many as fit into `limit_bytes`, at least one. Pends
    /// while there is none; ends early with [`Error::Interrupted`](crate::Error::Interrupted) once the
    /// request's interrupt is raised, and with [`Error::Disconnected`](crate::Error::Disconnected) when the
    /// session ends.
    ///
    /// A request for notices after `since` acknowledges those up to it; until then they can be requested
    /// again. The first call subscribes, with any number, and is answered by [`Notice::Everything`] at once.
    /// [`Notice::Everything`] also answers a call with a number that is discarded or was never delivered, and
    /// one of a session whose queue overflowed. A session receives no notices of its own changes.
    fn next(&self, cx: &Ctx, since: u64, limit_bytes: usize) -> Answer<Notices>;

    /// Returns `true` if the session is notified of all changes since the first answer of
    /// [`next`](Self::next), including those made outside of the server, except of
    /// [volatile](super::Attr::volatile) nodes. When that ceases, the session receives [`Notice::Everything`]
    /// and must not rely on caches from then on.
    fn is_complete(&self) -> bool;
}
