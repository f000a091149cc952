//! Lists in a frame, decoded in place: nodes with look-ups to release, and supplementary groups.

use tombolo_core::fs::NodeId;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::field::{Decoder, Encoder, Field};
use crate::frame::zero;
use crate::layout::ForgetEntry;
use crate::{DecodeError, EncodeError, FRAME_BYTES, FrameSink};

/// Maximum number of nodes in one FORGET: as many as fit a frame.
pub const FORGETS_MAX: usize = FRAME_BYTES / size_of::<ForgetEntry>();
/// Maximum number of supplementary groups of a caller: as many as fit a frame.
pub const GROUPS_MAX: usize = FRAME_BYTES / size_of::<U32>();

/// Nodes, with the number of look-ups to release.
#[derive(Clone, Copy)]
pub struct Forgets<'a>(ForgetsForm<'a>);

#[derive(Clone, Copy)]
enum ForgetsForm<'a> {
    /// One node, to be encoded or as received.
    Single(NodeId, u64),
    /// A list to be encoded.
    Given(&'a [(NodeId, u64)]),
    /// A list as received.
    Wire(&'a [ForgetEntry]),
}

impl<'a> Forgets<'a> {
    /// Returns a list of one node.
    #[must_use]
    pub fn one(node: NodeId, look_ups: u64) -> Self {
        Self(ForgetsForm::Single(node, look_ups))
    }

    /// Returns a list of nodes. At most [`FORGETS_MAX`] can be encoded, and at least one.
    #[must_use]
    pub fn new(list: &'a [(NodeId, u64)]) -> Self {
        match *list {
            [(node, look_ups)] => Self::one(node, look_ups),
            _ => Self(ForgetsForm::Given(list)),
        }
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            ForgetsForm::Single(..) => 1,
            ForgetsForm::Given(list) => list.len(),
            ForgetsForm::Wire(list) => list.len(),
        }
    }

    /// Returns `true` for an empty list, which cannot be encoded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns each node with the number of its look-ups to release, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (NodeId, u64)> + use<'a> {
        let form = self.0;
        (0..self.len()).map(move |index| {
            let entry = match form {
                ForgetsForm::Single(node, look_ups) => Some((node, look_ups)),
                ForgetsForm::Given(list) => list.get(index).copied(),
                ForgetsForm::Wire(list) => {
                    list.get(index).map(|entry| (NodeId(entry.node.get()), entry.look_ups.get()))
                }
            };
            entry.unwrap_or((NodeId(0), 0))
        })
    }
}

/// Flag of FORGET: the list is in the frame.
const LIST: u32 = 1;

/// Encoded in the body if it is a single entry; several are in the frame, and the body's bytes are zero.
impl<'a> Field<'a> for Forgets<'a> {
    const BYTES: usize = size_of::<ForgetEntry>();
    const ALIGN: usize = 8;
    const FLAGS: u32 = LIST;

    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        let len = self.len();
        if len == 0 || len > FORGETS_MAX {
            return Err(EncodeError::Value { field: "number of nodes", value: len as u64 });
        }
        to.flag(LIST, len > 1);
        for (node, look_ups) in self.iter() {
            let entry = ForgetEntry { node: U64::new(node.0), look_ups: U64::new(look_ups) };
            if len == 1 { to.put(at, &entry) } else { to.frame.item(&entry)? }
        }
        Ok(())
    }

    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        if !from.has(LIST) {
            let entry: ForgetEntry = from.get(at);
            return Ok(Self::one(NodeId(entry.node.get()), entry.look_ups.get()));
        }
        zero(from.bytes(at, size_of::<ForgetEntry>()))?;
        match from.frame.rest_as_list()? {
            list @ ([] | [_]) => Err(DecodeError::ListLength(list.len() as u64)),
            list => Ok(Self(ForgetsForm::Wire(list))),
        }
    }
}

/// A list of supplementary groups.
#[derive(Clone, Copy)]
pub struct Groups<'a>(GroupsForm<'a>);

#[derive(Clone, Copy)]
enum GroupsForm<'a> {
    Given(&'a [u32]),
    Wire(&'a [U32]),
}

impl<'a> Groups<'a> {
    /// Returns a list of these groups. A list of more than [`GROUPS_MAX`] cannot be encoded.
    #[must_use]
    pub fn new(list: &'a [u32]) -> Self {
        Self(GroupsForm::Given(list))
    }

    /// Returns the number of groups.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            GroupsForm::Given(list) => list.len(),
            GroupsForm::Wire(list) => list.len(),
        }
    }

    /// Returns `true` if the list is empty, as for a caller without supplementary groups.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the groups, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        let form = self.0;
        (0..self.len()).map(move |index| {
            let group = match form {
                GroupsForm::Given(list) => list.get(index).copied(),
                GroupsForm::Wire(list) => list.get(index).map(|group| group.get()),
            };
            group.unwrap_or_default()
        })
    }
}

/// Encoded as the number of groups in the body; the groups themselves are in the frame.
impl<'a> Field<'a> for Groups<'a> {
    const BYTES: usize = 4;
    const ALIGN: usize = 4;

    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        let len = u32::try_from(self.len()).ok().filter(|&len| len as usize <= GROUPS_MAX);
        let len = len.ok_or(EncodeError::Value { field: "number of groups", value: self.len() as u64 })?;
        to.put(at, &U32::new(len));
        match self.0 {
            GroupsForm::Wire(list) => to.frame.bytes(list.as_bytes()),
            GroupsForm::Given(list) => {
                list.iter().try_for_each(|&group| to.frame.next_of_list(&U32::new(group)))
            }
        }
    }

    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let len = from.get::<U32>(at).get() as usize;
        if len > GROUPS_MAX {
            return Err(DecodeError::ListLength(len as u64));
        }
        Ok(Self(GroupsForm::Wire(from.frame.list(len)?)))
    }
}

macro_rules! compared_by_entry {
    ($($name:ident),+) => {
        $(
            impl PartialEq for $name<'_> {
                fn eq(&self, other: &Self) -> bool {
                    self.iter().eq(other.iter())
                }
            }

            impl Eq for $name<'_> {}

            impl std::fmt::Debug for $name<'_> {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.debug_list().entries(self.iter()).finish()
                }
            }
        )+
    };
}
compared_by_entry!(Forgets, Groups);
