//! Notifications to the kernel. They must not be sent from a thread that serves requests of the same session:
//! the kernel may wait for one of those before it accepts the notification. An exception is
//! [`Notification::InvalInode`] without an offset for the node of an unanswered request, for which the kernel
//! never waits.

use crate::ids::NodeId;
use crate::layout::header::OutHeader;
use crate::layout::notify::{DeleteOut, EXPIRE_ONLY, InvalEntryOut, InvalInodeOut};
use tombolo_core::fs::Name;
use zerocopy::IntoBytes;

/// Maximum length of a notification, in bytes: a name and its NUL.
pub const BYTES_MAX: usize = size_of::<OutHeader>() + size_of::<DeleteOut>() + 256;

/// Minimum minor version for [`Notification::IncEpoch`] (Linux 6.16).
pub const EPOCH_MINOR: u32 = 44;

/// A notification: an unsolicited message to the kernel, without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification<'a> {
    /// Attributes and cached pages of a node are invalid.
    InvalInode {
        /// Node whose attributes and pages are dropped.
        node: NodeId,
        /// Offset of the first byte whose page is dropped; `None` drops the attributes only.
        offset: Option<u64>,
        /// Number of bytes; 0: up to the end.
        len_bytes: u64,
    },
    /// A cached name is invalid: it may refer to another node, or no longer exist.
    InvalEntry {
        /// Directory that contains the name.
        parent: NodeId,
        /// Name to be dropped from the cache.
        name: Name<'a>,
        /// `true` to have the name revalidated at its next use instead of dropped (HAS_EXPIRE_ONLY).
        expire_only: bool,
    },
    /// All names are invalid (since [`EPOCH_MINOR`]).
    IncEpoch,
    /// A name was removed; watching programs are notified.
    Delete {
        /// Directory that contained the name.
        parent: NodeId,
        /// The node that the name referred to.
        child: NodeId,
        /// Name that was removed.
        name: Name<'a>,
    },
}

impl Notification<'_> {
    /// Encodes into `buffer` of at least [`BYTES_MAX`] bytes and returns the encoded bytes; none if it is too
    /// small.
    #[must_use]
    pub fn encode<'b>(&self, buffer: &'b mut [u8]) -> &'b [u8] {
        match *self {
            Notification::InvalInode { node, offset, len_bytes } => {
                let off = offset.map_or(-1, |offset| i64::try_from(offset).unwrap_or(i64::MAX));
                let len = i64::try_from(len_bytes).unwrap_or(0);
                put(buffer, 2, &[InvalInodeOut { ino: node.0, off, len }.as_bytes()])
            }
            Notification::InvalEntry { parent, name, expire_only } => {
                let name = name.as_bytes();
                let flags = if expire_only { EXPIRE_ONLY } else { 0 };
                let out = InvalEntryOut { parent: parent.0, namelen: name.len() as u32, flags };
                put(buffer, 3, &[out.as_bytes(), name, &[0]])
            }
            Notification::IncEpoch => put(buffer, 8, &[]),
            Notification::Delete { parent, child, name } => {
                let name = name.as_bytes();
                let namelen = name.len() as u32;
                let out = DeleteOut { parent: parent.0, child: child.0, namelen, padding: 0 };
                put(buffer, 6, &[out.as_bytes(), name, &[0]])
            }
        }
    }
}

/// Encodes a notification with this `code` (`enum fuse_notify_code`) and these parts; nothing if the buffer
/// is too small.
fn put<'b>(buffer: &'b mut [u8], code: i32, parts: &[&[u8]]) -> &'b [u8] {
    let total = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let Some(place) = buffer.get_mut(..total) else { return &[] };
    let head = OutHeader { len: total as u32, error: code, unique: 0 };
    let mut rest = &mut *place;
    for part in std::iter::once(head.as_bytes()).chain(parts.iter().copied()) {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn delete_notification_includes_the_nul() {
        let mut buffer = [0xff; BYTES_MAX];
        let name = Name::new(b"gone").unwrap();
        let bytes = Notification::Delete { parent: NodeId(1), child: NodeId(5), name }.encode(&mut buffer);
        assert_eq!(bytes.len(), 16 + 24 + 5);
        let (head, rest) = OutHeader::read_from_prefix(bytes).unwrap();
        assert_eq!(head, OutHeader { len: 45, error: 6, unique: 0 });
        assert_eq!(rest.get(24..).unwrap(), b"gone\0");
    }

    #[test]
    fn attributes_alone_are_a_negative_offset() {
        let mut buffer = [0; BYTES_MAX];
        let only = Notification::InvalInode { node: NodeId(3), offset: None, len_bytes: 0 };
        let (out, _) = InvalInodeOut::read_from_prefix(only.encode(&mut buffer).get(16..).unwrap()).unwrap();
        assert_eq!(out, InvalInodeOut { ino: 3, off: -1, len: 0 });
    }

    #[test]
    fn longest_name_fits_and_small_buffer_stays_empty() {
        let name = Name::new(&[b'x'; 255]).unwrap();
        let mut buffer = [0; BYTES_MAX];
        let delete = Notification::Delete { parent: NodeId(1), child: NodeId(2), name };
        assert_eq!(delete.encode(&mut buffer).len(), BYTES_MAX);
        assert!(delete.encode(&mut [0; 100]).is_empty());
    }
}
