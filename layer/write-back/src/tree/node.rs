//! A node that differs from the cache's: its attributes and data.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bitflags::bitflags;
use tombolo_core::Identity;
use tombolo_core::fs::{Attr, FileType, NodeId, WeakAttr};

use super::now;
use crate::data_file::DataFile;
use crate::extents::Extents;

bitflags! {
    /// Attributes of a node to set at the origin.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Set: u8 {
        const MODE = 1;
        const OWNER = 2;
        const ATIME = 4;
        const MTIME = 8;
        /// Changed names and so a changed link count: nothing is set at the origin.
        const NAMES = 16;
        /// Extended attributes.
        const XATTRS = 32;
    }
}

/// Extended attributes to set, or with `None` to remove, by name.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// Name of the attribute with a file's capabilities, which a change of data or owner removes.
const CAPABILITY: &[u8] = b"security.capability";

/// Data written to a file between two rounds of write-back.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub file: Arc<DataFile>,
    /// Ranges with data.
    pub extents: Extents,
    /// Length up to which data of lower layers and of the cache remain visible; zeroes follow.
    pub below_len: u64,
    /// `true` if the layer is being sent, or was read from the journal: writes go to the next one.
    pub is_frozen: bool,
}

/// A node that differs from the cache's, or did until it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Attributes as shown to clients.
    pub attr: Attr,
    /// The cache's number of the node; `None` if the origin does not have the node yet.
    pub below: Option<NodeId>,
    /// Parent of a locally created or moved directory.
    pub parent: Option<NodeId>,
    pub link: Option<Vec<u8>>,
    /// Verifier of the node's exclusive create (RFC 1813 §3.3.8).
    pub verifier: Option<[u8; 8]>,
    /// `true` for an unnamed file that may be linked.
    pub is_linkable: bool,
    /// User of the last change.
    pub user: Identity,
    /// Attributes that the origin lacks, except those in `sending`.
    pub set: Set,
    /// Attributes that the current round is setting.
    pub sending: Set,
    /// Attributes that follow from how the node was created, written or named, and were not requested: if the
    /// origin has other values and refuses these, the origin's values prevail.
    pub implied: Set,
    /// Requested attributes that the origin has refused in this run; another request sets them again.
    pub refused: Set,
    /// `true` while a round of write-back sends the node.
    pub is_sent: bool,
    /// Changes of extended attributes that the origin lacks.
    pub xattrs: Xattrs,
    /// Version at the origin as last known. Once everything was sent, the local attributes are shown while
    /// the origin has this version.
    pub version: Option<WeakAttr>,
    /// Layers, lowest first.
    pub layers: Vec<Layer>,
}

/// Location of the bytes of a range: a file of the local disk, the cache, or none, for zeroes.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Here(Arc<DataFile>, Range<u64>),
    Below(Range<u64>),
    Zeros(Range<u64>),
}

impl Node {
    /// Creates the entry of a node that the origin has.
    pub(super) fn below(id: NodeId, attr: Attr) -> Self {
        let version = Some(WeakAttr::from(&attr));
        Self { below: Some(id), version, ..Self::made(attr, Identity::ROOT) }
    }

    /// Creates the entry of a node that the origin lacks.
    pub(crate) fn made(attr: Attr, user: Identity) -> Self {
        Self {
            attr,
            below: None,
            parent: None,
            link: None,
            verifier: None,
            is_linkable: false,
            user,
            set: Set::empty(),
            sending: Set::empty(),
            implied: Set::empty(),
            refused: Set::empty(),
            is_sent: false,
            xattrs: Xattrs::new(),
            version: None,
            layers: Vec::new(),
        }
    }

    /// Returns `true` if the origin lacks something of the node.
    pub(crate) fn is_dirty(&self) -> bool {
        self.below.is_none() || self.is_sent || !self.set.is_empty() || !self.layers.is_empty()
    }

    /// Returns `true` if the origin lacks only what it has refused.
    pub(crate) fn is_refused(&self) -> bool {
        let lacks_more = self.below.is_none() || self.is_sent || !self.layers.is_empty();
        !lacks_more && !self.refused.is_empty() && (self.set - self.refused).is_empty()
    }

    /// Schedules attributes that a caller has requested to be set at the origin.
    pub(crate) fn ask(&mut self, set: Set) {
        self.set |= set;
        self.implied -= set;
        self.refused -= set;
    }

    /// Schedules attributes that follow from another change to be set at the origin.
    pub(crate) fn imply(&mut self, set: Set) {
        self.set |= set;
        self.implied |= set;
        self.refused -= set;
    }

    /// Lets the top layer receive writes. If the layer is being sent, it is sent again with the later writes.
    pub(crate) fn thaw(&mut self) {
        self.layers.last_mut().into_iter().for_each(|top| top.is_frozen = false);
    }

    /// Removes and returns the layers that were sent, the lowest `count`, except one written to meanwhile.
    pub(crate) fn take_sent(&mut self, count: usize) -> Vec<Layer> {
        let layers = std::mem::take(&mut self.layers).into_iter().enumerate();
        let (sent, later): (Vec<_>, Vec<_>) =
            layers.partition(|(index, layer)| *index < count && layer.is_frozen);
        self.layers = later.into_iter().map(|(_, layer)| layer).collect();
        sent.into_iter().map(|(_, layer)| layer).collect()
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.attr.file_type == FileType::Directory
    }

    /// Updates the times after a change of data or names, and schedules the modification time for the origin.
    pub(crate) fn touch_mtime(&mut self, user: &Identity) {
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
        self.imply(Set::MTIME);
        self.user = user.clone();
    }

    /// Adopts the mode and owner at the origin, except those set locally, be they pending or `sent` already.
    pub(crate) fn take_in(&mut self, there: &Attr, sent: Set) {
        let ours = self.set | self.sending | sent;
        if !ours.contains(Set::MODE) {
            self.attr.mode = there.mode;
        }
        if !ours.contains(Set::OWNER) {
            (self.attr.uid, self.attr.gid) = (there.uid, there.gid);
        }
    }

    /// Discards all attributes to set, so that the origin's are shown.
    pub(crate) fn set_nothing(&mut self) {
        (self.set, self.sending) = (Set::empty(), Set::empty());
        (self.implied, self.refused) = (Set::empty(), Set::empty());
        self.xattrs.clear();
    }

    /// Sets an extended attribute, or with `None` removes it.
    pub(crate) fn set_xattr(&mut self, name: &[u8], value: Option<&[u8]>) {
        self.xattrs.insert(name.into(), value.map(Into::into));
        self.ask(Set::XATTRS);
    }

    /// Returns the length of the names and values of all changed extended attributes except `but`, in bytes.
    pub(crate) fn xattr_bytes(&self, but: &[u8]) -> usize {
        let others = self.xattrs.iter().filter(|(name, _)| name[..] != *but);
        others.map(|(name, value)| name.len() + value.as_ref().map_or(0, |value| value.len())).sum()
    }

    /// Removes a locally set capability after a change of data or owner; the origin then removes its own.
    pub(crate) fn drop_capability(&mut self) {
        if self.xattrs.get(CAPABILITY).is_some_and(Option::is_some) {
            self.set_xattr(CAPABILITY, None);
        }
    }

    /// Returns the local value of an extended attribute; `Some(None)` if it does not exist, `None` if only
    /// the origin knows.
    pub(crate) fn xattr(&self, name: &[u8]) -> Option<Option<&[u8]>> {
        let known = self.xattrs.get(name).map(Option::as_deref);
        // The origin drops capabilities when it receives pending changes.
        let is_dropped = || !self.layers.is_empty() || (self.set | self.sending).contains(Set::OWNER);
        known.or_else(|| (name == CAPABILITY && is_dropped()).then_some(None))
    }

    /// Records a changed name, and a change of the link count by `more`.
    pub(crate) fn touch_names(&mut self, more: i32) {
        self.attr.nlink = self.attr.nlink.saturating_add_signed(more);
        self.attr.ctime = now();
        self.set |= Set::NAMES;
    }

    /// Returns the locations of a range's bytes in order. Upper layers hide lower ones.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let end = range.end.min(self.attr.size);
        pieces(&self.layers, range.start..end.max(range.start))
    }
}

/// Returns the locations of a range's bytes in these layers, in order.
pub(crate) fn pieces(layers: &[Layer], range: Range<u64>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    gather(layers, range, &mut pieces);
    pieces
}

fn gather(layers: &[Layer], range: Range<u64>, pieces: &mut Vec<Piece>) {
    if range.is_empty() {
        return;
    }
    let Some((top, lower)) = layers.split_last() else { return pieces.push(Piece::Below(range)) };
    for (part, is_here) in top.extents.parts(range) {
        if is_here {
            pieces.push(Piece::Here(top.file.clone(), part));
            continue;
        }
        let shown = part.start..part.end.min(top.below_len).max(part.start);
        let zeros = shown.end..part.end;
        gather(lower, shown, pieces);
        if !zeros.is_empty() {
            pieces.push(Piece::Zeros(zeros));
        }
    }
}
