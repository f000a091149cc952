//! Notices in a frame, decoded in place.

use tombolo_core::fs::{Name, NodeId, Notice};
use zerocopy::little_endian::U64;

use crate::field::{Decoder, Encoder, Field};
use crate::frame::{Reader, zero};
use crate::layout::NoticeItem;
use crate::{DecodeError, EncodeError, FrameSink};

/// A list of notices, to be encoded or as received.
#[derive(Clone, Copy)]
pub struct NoticeList<'a>(NoticesForm<'a>);

#[derive(Clone, Copy)]
enum NoticesForm<'a> {
    Given(&'a [Notice]),
    /// Validated items.
    Wire(&'a [u8]),
}

impl<'a> NoticeList<'a> {
    /// Returns a list of these notices. It can be encoded if their total [size](Notice::size_bytes) is at
    /// most a frame.
    #[must_use]
    pub fn new(list: &'a [Notice]) -> Self {
        Self(NoticesForm::Given(list))
    }

    /// Returns the notices, in order.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Notice> {
        match self.0 {
            NoticesForm::Given(list) => list.to_vec(),
            NoticesForm::Wire(bytes) => {
                let mut items = Reader::of_listing(bytes);
                std::iter::from_fn(|| next(&mut items).ok().flatten()).map(notice).collect()
            }
        }
    }
}

impl PartialEq for NoticeList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.to_vec() == other.to_vec()
    }
}

impl Eq for NoticeList<'_> {}

impl std::fmt::Debug for NoticeList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.to_vec()).finish()
    }
}

/// Numbers of the kinds of notices.
mod kind {
    pub const ATTRIBUTES: u8 = 1;
    pub const DATA: u8 = 2;
    pub const NAME: u8 = 3;
    pub const GONE: u8 = 4;
    pub const EVERYTHING: u8 = 5;
}

/// Decodes and validates the next item, and the name behind it; `None` at the end.
fn next<'a>(items: &mut Reader<'a>) -> Result<Option<(&'a NoticeItem, Option<Name<'a>>)>, DecodeError> {
    if items.is_at_end() {
        return Ok(None);
    }
    let item: &NoticeItem = items.item()?;
    zero(&item.reserved)?;
    let (node, start, last) = (item.node.get(), item.start.get(), item.last.get());
    let wrong = |field, value: u64| Err(DecodeError::Value { field, value });
    if !(kind::ATTRIBUTES..=kind::EVERYTHING).contains(&item.kind) {
        return wrong("kind of a notice", item.kind.into());
    }
    let has_name = item.name_len != 0;
    // A notice of a removed node has the directory of its last name in `start`.
    let has_directory = item.kind == kind::GONE && has_name;
    if match item.kind {
        kind::DATA => start > last,
        _ => (start != 0) != has_directory || last != 0,
    } {
        return wrong("range of a notice", last);
    }
    if (item.kind == kind::EVERYTHING) != (node == 0) {
        return wrong("node of a notice", node);
    }
    if (item.kind == kind::NAME) != has_name && !has_directory {
        return wrong("length of a name", item.name_len.into());
    }
    let name = match item.name_len {
        0 => None,
        len => Some(Name::new(items.bytes(len.into())?)?),
    };
    Ok(Some((item, name)))
}

fn notice((item, name): (&NoticeItem, Option<Name<'_>>)) -> Notice {
    let node = NodeId(item.node.get());
    match (item.kind, name) {
        (kind::ATTRIBUTES, _) => Notice::Attributes(node),
        (kind::DATA, _) => Notice::Data { node, start: item.start.get(), last: item.last.get() },
        (kind::NAME, Some(name)) => Notice::Name { dir: node, name: name.to_owned() },
        (kind::GONE, name) => {
            Notice::Gone { node, name: name.map(|name| (NodeId(item.start.get()), name.to_owned())) }
        }
        _ => Notice::Everything,
    }
}

/// Encoded as the whole frame: each notice, followed by its name.
impl<'a> Field<'a> for NoticeList<'a> {
    fn encode<W: FrameSink + ?Sized>(&self, _: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        let list = match self.0 {
            NoticesForm::Given(list) => list,
            NoticesForm::Wire(bytes) => return to.frame.bytes(bytes),
        };
        for notice in list {
            let none = U64::new(0);
            let (kind, node, (start, last), name) = match notice {
                Notice::Attributes(node) => (kind::ATTRIBUTES, *node, (none, none), None),
                Notice::Data { node, start, last } => {
                    (kind::DATA, *node, (U64::new(*start), U64::new(*last)), None)
                }
                Notice::Name { dir, name } => (kind::NAME, *dir, (none, none), Some(name.as_name())),
                Notice::Gone { node, name: None } => (kind::GONE, *node, (none, none), None),
                Notice::Gone { node, name: Some((dir, name)) } => {
                    (kind::GONE, *node, (U64::new(dir.0), none), Some(name.as_name()))
                }
                Notice::Everything => (kind::EVERYTHING, NodeId::NONE, (none, none), None),
            };
            let name = name.map_or(&[][..], |name| name.as_bytes());
            // A name has at most 255 bytes.
            let name_len = name.len() as u8;
            let node = U64::new(node.0);
            to.frame.item(&NoticeItem { node, start, last, kind, name_len, reserved: [0; 6] })?;
            to.frame.bytes(name)?;
        }
        Ok(())
    }

    fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let bytes = from.frame.rest();
        let mut items = Reader::of_listing(bytes);
        while next(&mut items)?.is_some() {}
        Ok(Self(NoticesForm::Wire(bytes)))
    }
}
