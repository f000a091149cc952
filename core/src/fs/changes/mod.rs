//! Word of what others have changed: the waist's side of caches that are never stale.
//!
//! A session that asks gets [`Notice`]s, each with a number, of what other sessions (and, where the back end
//! can see them, other processes) have done. The back end is the source: it tells after a change is done and
//! before the change is answered. A back end keeps the notices of a session in a [`NoticeQueue`] and finds
//! the sessions to be told in [`Watchers`].

mod queue;
mod versions;
mod watchers;

pub use queue::NoticeQueue;
pub use versions::{Version, Versions};
pub use watchers::Watchers;

use super::{NameBuf, NodeId};
use crate::{Answer, Ctx};

/// What may be otherwise than it was. Nodes are in the numbers of the session that is told, which knows them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// Attributes of a node, access lists and other extended attributes among them.
    Attributes(NodeId),
    /// Bytes `start` to `last` of a file, both included, and its attributes.
    Data {
        /// The file.
        node: NodeId,
        /// The first byte.
        start: u64,
        /// The last byte; `u64::MAX` for the end of the file, wherever it is.
        last: u64,
    },
    /// What a name in a directory leads to, and with it the directory's listing. Its attributes have a notice
    /// of their own.
    Name {
        /// The directory.
        dir: NodeId,
        /// The name.
        name: NameBuf,
    },
    /// The last name of a node is gone. Openings live on. It comes before the [`Name`](Self::Name) that is
    /// told of beside it, so that a kernel still knows what that led to.
    Gone {
        /// The node.
        node: NodeId,
        /// That name, in a directory that the session knows; none if it is not known.
        name: Option<(NodeId, NameBuf)>,
    },
    /// Anything: nothing that was learnt before is to be believed.
    Everything,
}

/// Notices, in the order in which they came up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// The number of the last of them: what to ask from next.
    pub last: u64,
    /// The notices; not empty.
    pub list: Vec<Notice>,
}

/// How many bytes of [`Changes::next`]'s limit a notice takes, beside its name, which is rounded up to eight.
pub const NOTICE_BYTES: usize = 32;

impl Notice {
    /// What this takes of [`Changes::next`]'s limit.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Name { name, .. } | Self::Gone { name: Some((_, name)), .. } => {
                NOTICE_BYTES + name.as_name().as_bytes().len().next_multiple_of(8)
            }
            _ => NOTICE_BYTES,
        }
    }
}

/// What others have changed.
pub trait Changes: Send + Sync {
    /// The notices that follow number `since`, as many as fit into `limit_bytes`, at least one. Pends while
    /// there is none; ends early with [`Error::Interrupted`](crate::Error::Interrupted) once the request's
    /// interrupt is raised, and with [`Error::Disconnected`](crate::Error::Disconnected) when the session
    /// ends.
    ///
    /// Asking for what follows `since` acknowledges what came up to it; until then it can be asked for again.
    /// The first call begins the watch, with any number, and is answered by [`Notice::Everything`] at once.
    /// So is a number that is not known any more, and a session that left so many notices lying that they
    /// were dropped. What a session changed itself it is not told of.
    fn next(&self, cx: &Ctx, since: u64, limit_bytes: usize) -> Answer<Notices>;

    /// Whether the session is told of all changes, since its first answer: also of those that are made beside
    /// the server, where that can happen. When it is not any more, [`Notice::Everything`] comes, and nothing
    /// is to be believed from then on.
    fn is_complete(&self) -> bool;
}
