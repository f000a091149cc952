//! Encoding of the journal's rows (`docs/formats/write-back.md`).

use tombolo_core::fs::{FileType, NodeId, WeakAttr};
use tombolo_host_runtime::rows::{Reader, Writer, file_type_number, file_type_of};

use crate::tree::{Node, Place, Set, Target, Xattrs};

/// Flag in the byte of attributes to set: a byte of the implied ones follows.
const IMPLIES: u8 = 128;

/// Generation and [`below_len`](crate::tree::Layer::below_len) of each layer of a node.
pub(crate) type Layers = Vec<(u64, u64)>;

/// Returns `true` if the origin lacks data or attributes of a named node. Changed names have rows of their
/// own.
pub(crate) fn is_dirty((node, layers): &(Node, Layers)) -> bool {
    node.attr.nlink > 0 && (node.is_dirty() || !layers.is_empty())
}

pub(crate) fn encoded_node(node: &Node) -> Vec<u8> {
    let (mut row, set) = (Writer::default(), node.set | node.sending);
    row.attr(&node.attr);
    for node in [node.below, node.parent] {
        row.option(node, |row, node| row.u64(node.0));
    }
    row.option(node.link.as_deref(), Writer::bytes);
    row.option(node.verifier.as_ref(), |row, verifier| row.bytes(verifier));
    row.identity(&node.user);
    match node.implied.is_empty() {
        true => row.u8(set.bits()),
        false => {
            row.u8(set.bits() | IMPLIES);
            row.u8(node.implied.bits());
        }
    }
    row.option(node.version, |row, version| {
        row.u64(version.size);
        row.time(version.mtime);
        row.time(version.ctime);
    });
    if set.contains(Set::XATTRS) {
        row.u32(node.xattrs.len() as u32);
        for (name, value) in &node.xattrs {
            row.bytes(name);
            row.option(value.as_deref(), Writer::bytes);
        }
    }
    for layer in &node.layers {
        row.u64(layer.file.generation);
        row.u64(layer.below_len);
    }
    row.finished()
}

/// Decodes a node's row. The node is without its layers, whose data are in other rows.
pub(crate) fn decoded_node(row: &[u8]) -> Option<(Node, Layers)> {
    let mut row = Reader::new(row)?;
    let node = |row: &mut Reader<'_>| row.u64().map(NodeId);
    let (attr, below, parent) = (row.attr()?, row.option(node)?, row.option(node)?);
    let link = row.option(|row| row.bytes().map(<[u8]>::to_vec))?;
    let verifier = row.option(|row| row.bytes()?.try_into().ok())?;
    let (user, set) = (row.identity()?, row.u8()?);
    let implied = if set & IMPLIES == 0 { Set::empty() } else { Set::from_bits(row.u8()?)? };
    let set = Set::from_bits(set & !IMPLIES)?;
    let version =
        row.option(|row| Some(WeakAttr { size: row.u64()?, mtime: row.time()?, ctime: row.time()? }))?;
    let xattrs = if set.contains(Set::XATTRS) { decoded_xattrs(&mut row)? } else { Xattrs::new() };
    let mut layers = Layers::new();
    while !row.is_empty() {
        layers.push((row.u64()?, row.u64()?));
    }
    let made = Node::made(attr, user);
    Some((Node { below, parent, link, verifier, set, implied, version, xattrs, ..made }, layers))
}

fn decoded_xattrs(row: &mut Reader<'_>) -> Option<Xattrs> {
    let count = row.u32()?;
    let one = |_| Some((row.bytes()?.into(), row.option(|row| row.bytes().map(Into::into))?));
    (0..count).map(one).collect()
}

pub(crate) fn encoded_place(place: &Place) -> Vec<u8> {
    let mut row = Writer::default();
    for target in [place.at_origin, place.local] {
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
    let (at_origin, local) = (row.option(target)?, row.option(target)?);
    let (user, is_in_doubt) = (row.identity()?, row.u8()? != 0);
    Some(Place { at_origin, local, user, is_in_doubt, settled: None })
}
