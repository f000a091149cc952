//! A node that differs: its attributes and data.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bitflags::bitflags;
use tombolo_core::Identity;
use tombolo_core::fs::{Attr, FileType, NodeId, WeakAttr};

use super::now;
use crate::data_file::DataFile;
use crate::extents::Extents;
use crate::rows::NodeRow;

bitflags! {
    /// What of a node's attributes is to be set below.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Set: u8 {
        const MODE = 1;
        const OWNER = 2;
        const ATIME = 4;
        const MTIME = 8;
        /// Nothing: its names are others, and so their number.
        const NAMES = 16;
        /// Extended attributes.
        const XATTRS = 32;
    }
}

/// Extended attributes that are to be set, or with `None` removed, by their names.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// File capabilities, which go with the next change of data or owner.
const CAPABILITY: &[u8] = b"security.capability";

/// Data that were written to a file between two write-backs.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub file: Arc<DataFile>,
    /// What of it is there.
    pub extents: Extents,
    /// So much of what lies below shows through; what follows is zeros.
    pub below_len: u64,
    /// It is being brought to the origin: not to be changed any more.
    pub is_frozen: bool,
}

/// A node that differs, or was brought to the origin by this layer.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// As they are shown.
    pub attr: Attr,
    /// Its number below; `None`: the origin does not have it yet.
    pub below: Option<NodeId>,
    /// The directory that a directory lies in, where that was changed here.
    pub parent: Option<NodeId>,
    pub link: Option<Vec<u8>>,
    /// What it was exclusively created with (RFC 1813 §3.3.8).
    pub verifier: Option<[u8; 8]>,
    /// An unnamed file that may yet be given a name.
    pub is_linkable: bool,
    /// The user that changed it last.
    pub user: Identity,
    pub set: Set,
    /// What is being set.
    pub sending: Set,
    /// What of these follows from how the node was made, written or named, and was not asked for: where the
    /// origin has it otherwise and refuses it, the origin's holds.
    pub implied: Set,
    /// What was asked for and the origin has refused in this life: it is set again when that is asked for.
    pub refused: Set,
    /// A write-back that goes on has it.
    pub is_sent: bool,
    /// Those that the origin has otherwise.
    pub xattrs: Xattrs,
    /// What it was below when all was written back. While it is, attributes are shown as they were here.
    pub version: Option<WeakAttr>,
    /// The lowest first.
    pub layers: Vec<Layer>,
}

/// Where the bytes of a range are.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Here(Arc<DataFile>, Range<u64>),
    Below(Range<u64>),
    Zeros(Range<u64>),
}

impl Node {
    /// A node of the origin that is about to be changed.
    pub(super) fn below(id: NodeId, attr: Attr) -> Self {
        let version = Some(WeakAttr::from(&attr));
        Self { below: Some(id), version, ..Self::made(attr, Identity::ROOT) }
    }

    /// A node that is made here.
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

    /// Whether the origin lacks something of it.
    pub(crate) fn is_dirty(&self) -> bool {
        self.below.is_none() || self.is_sent || !self.set.is_empty() || !self.layers.is_empty()
    }

    /// Whether the origin lacks nothing but what it has refused.
    pub(crate) fn is_refused(&self) -> bool {
        let lacks_more = self.below.is_none() || self.is_sent || !self.layers.is_empty();
        !lacks_more && !self.refused.is_empty() && (self.set - self.refused).is_empty()
    }

    /// Has attributes set at the origin that a caller has asked for.
    pub(crate) fn ask(&mut self, set: Set) {
        self.set |= set;
        self.implied -= set;
        self.refused -= set;
    }

    /// Has attributes set there that follow from something else.
    pub(crate) fn imply(&mut self, set: Set) {
        self.set |= set;
        self.implied |= set;
        self.refused -= set;
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.attr.file_type == FileType::Directory
    }

    /// Data or names are changed.
    pub(crate) fn touch_mtime(&mut self, user: &Identity) {
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
        self.imply(Set::MTIME);
        self.user = user.clone();
    }

    /// Theirs hold: no attribute is to be set at the origin any more.
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

    /// How long those are that are to be set or removed, but for this one.
    pub(crate) fn xattr_bytes(&self, but: &[u8]) -> usize {
        let others = self.xattrs.iter().filter(|(name, _)| name[..] != *but);
        others.map(|(name, value)| name.len() + value.as_ref().map_or(0, |value| value.len())).sum()
    }

    /// Data or owner are changed. What the origin has of capabilities goes there with the same change.
    pub(crate) fn drop_capability(&mut self) {
        if self.xattrs.get(CAPABILITY).is_some_and(Option::is_some) {
            self.set_xattr(CAPABILITY, None);
        }
    }

    /// What is known here of an extended attribute: its value, or that there is none.
    pub(crate) fn xattr(&self, name: &[u8]) -> Option<Option<&[u8]>> {
        let known = self.xattrs.get(name).map(Option::as_deref);
        // The origin drops capabilities when it gets what it lacks.
        let is_dropped = || !self.layers.is_empty() || (self.set | self.sending).contains(Set::OWNER);
        known.or_else(|| (name == CAPABILITY && is_dropped()).then_some(None))
    }

    /// It has another name, or so many more.
    pub(crate) fn touch_names(&mut self, more: i32) {
        self.attr.nlink = self.attr.nlink.saturating_add_signed(more);
        self.attr.ctime = now();
        self.set |= Set::NAMES;
    }

    /// Where the bytes of a range are, in order. What is above a layer hides it.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let end = range.end.min(self.attr.size);
        pieces(&self.layers, range.start..end.max(range.start))
    }

    pub(super) fn row(&self) -> NodeRow {
        NodeRow {
            attr: self.attr,
            below: self.below,
            parent: self.parent,
            link: self.link.clone(),
            verifier: self.verifier,
            user: self.user.clone(),
            set: self.set | self.sending,
            implied: self.implied,
            xattrs: self.xattrs.clone(),
            version: self.version,
            layers: self.layers.iter().map(|layer| (layer.file.generation, layer.below_len)).collect(),
        }
    }
}

/// Where the bytes of a range are, in order, by these layers.
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
