//! What is in the rows of the journal (`docs/formats/write-back.md`).

use tombolo_core::Identity;
use tombolo_core::fs::{Attr, FileType, NodeId, WeakAttr};
use tombolo_host_runtime::rows::{Reader, Writer, file_type_number, file_type_of};

use crate::tree::{Place, Set, Target};

/// What is kept of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub attr: Attr,
    pub below: Option<NodeId>,
    pub parent: Option<NodeId>,
    pub link: Option<Vec<u8>>,
    pub verifier: Option<[u8; 8]>,
    pub user: Identity,
    pub set: Set,
    pub version: Option<WeakAttr>,
    /// Generation and [`below_len`](crate::tree::Layer::below_len) of each.
    pub layers: Vec<(u64, u64)>,
}

impl NodeRow {
    /// Whether the origin lacks something of a node that has a name. Names that differ have rows of their own.
    pub(crate) fn is_dirty(&self) -> bool {
        let lacks = self.below.is_none() || !self.set.is_empty() || !self.layers.is_empty();
        lacks && self.attr.nlink > 0
    }

    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::default();
        row.attr(&self.attr);
        for node in [self.below, self.parent] {
            row.option(node, |row, node| row.u64(node.0));
        }
        row.option(self.link.as_deref(), Writer::bytes);
        row.option(self.verifier.as_ref(), |row, verifier| row.bytes(verifier));
        row.identity(&self.user);
        row.u8(self.set.bits());
        row.option(self.version, |row, version| {
            row.u64(version.size);
            row.time(version.mtime);
            row.time(version.ctime);
        });
        for (generation, below_len) in &self.layers {
            row.u64(*generation);
            row.u64(*below_len);
        }
        row.finished()
    }

    pub(crate) fn decoded(row: &[u8]) -> Option<Self> {
        let mut row = Reader::new(row)?;
        let node = |row: &mut Reader<'_>| row.u64().map(NodeId);
        Some(Self {
            attr: row.attr()?,
            below: row.option(node)?,
            parent: row.option(node)?,
            link: row.option(|row| row.bytes().map(<[u8]>::to_vec))?,
            verifier: row.option(|row| row.bytes()?.try_into().ok())?,
            user: row.identity()?,
            set: Set::from_bits(row.u8()?)?,
            version: row
                .option(|row| Some(WeakAttr { size: row.u64()?, mtime: row.time()?, ctime: row.time()? }))?,
            layers: {
                let mut layers = Vec::new();
                while !row.is_empty() {
                    layers.push((row.u64()?, row.u64()?));
                }
                layers
            },
        })
    }
}

/// What is kept of a name.
pub(crate) fn encoded_place(place: &Place) -> Vec<u8> {
    let mut row = Writer::default();
    for target in [place.before, place.now] {
        row.option(target, |row, target| {
            row.u64(target.node.0);
            row.u8(file_type_number(target.file_type));
        });
    }
    row.identity(&place.user);
    row.u8(place.is_in_doubt.into());
    row.finished()
}

pub(crate) fn decoded_place(row: &[u8]) -> Option<Place> {
    let mut row = Reader::new(row)?;
    let target = |row: &mut Reader<'_>| {
        let (node, file_type): (u64, FileType) = (row.u64()?, file_type_of(row.u8()?)?);
        Some(Target { node: NodeId(node), file_type })
    };
    let (before, now) = (row.option(target)?, row.option(target)?);
    let (user, is_in_doubt) = (row.identity()?, row.u8()? != 0);
    Some(Place { before, now, user, is_in_doubt, settled: None })
}
