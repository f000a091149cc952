//! Encoding and decoding of the fields of answers.

use tombolo_core::fs::{
    Attr, Change, Created, Entry, Lock, Made, NodeId, OpenId, Opened, PermissionCheck, Profile, Renamed,
    Version, Volume, Written,
};
use zerocopy::little_endian::{I32, U16, U32, U64};

use super::{HandleBytes, Offers, Session, TRANSFER_BYTES_MIN};
use crate::field::{Decoder, Encoder, Field};
use crate::fields::{stability, stability_number};
use crate::frame::zero;
use crate::layout::{HandleField, LockItem, SessionField, VersionField, WeakAttrItem};
use crate::{DecodeError, EncodeError, FRAME_BYTES, FrameSink, Returned};

/// Flag: the file or directory ends here.
pub(super) const END: u32 = 1 << 6;
/// Flag of CHANGES: all changes are notified ([`is_complete`](tombolo_core::fs::Changes::is_complete)).
pub(super) const COMPLETE: u32 = 1 << 9;
/// Flag of answers with an opening: writes through it may be quiet.
pub(super) const PROMPT: u32 = 1 << 10;

/// Flags of answers. The bits have other meanings in the answer to PROFILE.
mod flag {
    /// The frame has the attributes before the change, of the file or directory; for RENAME of the old
    /// name's directory.
    pub const BEFORE: u32 = 1;
    /// The frame has the attributes after the change, of the file or directory; for RENAME of the old name's
    /// directory.
    pub const AFTER: u32 = 1 << 1;
    /// RENAME: the frame has the attributes before the change of the new name's directory.
    pub const TO_BEFORE: u32 = 1 << 2;
    /// RENAME: the frame has the attributes after the change of the new name's directory.
    pub const TO_AFTER: u32 = 1 << 3;
    /// OPEN: the frame has attributes.
    pub const ATTR: u32 = 1 << 4;
    /// The data are in the frame.
    pub const INLINE: u32 = 1 << 5;
    /// LOCK_TEST: there is a conflicting lock. LOOK: there is a version.
    pub const PRESENT: u32 = 1 << 7;
    /// Answers with a node: the frame has its handle.
    pub const HANDLE: u32 = 1 << 8;
    /// PROFILE: the back end checks permissions. PROFILE's flags from bit 2 on are [`Offers`](crate::Offers).
    pub const BACK_END_CHECKS: u32 = 1;
    /// PROFILE: the file system is read-only.
    pub const READ_ONLY: u32 = 1 << 1;
}

const CHANGE: u32 = flag::BEFORE | flag::AFTER;

fn put_change<W: FrameSink + ?Sized>(
    change: &Change,
    (before, after): (u32, u32),
    to: &mut Encoder<'_, W>,
) -> Result<(), EncodeError> {
    if let Some(weak) = &change.before {
        to.flags |= before;
        to.frame.item(&WeakAttrItem::from(weak))?;
    }
    if let Some(attr) = &change.after {
        to.flags |= after;
        attr.encode(0, to)?;
    }
    Ok(())
}

#[inline]
fn get_change((before, after): (u32, u32), from: &mut Decoder<'_>) -> Result<Change, DecodeError> {
    let before = match from.has(before) {
        true => Some(from.item::<WeakAttrItem>()?.decode()?),
        false => None,
    };
    let after = if from.has(after) { Some(Attr::decode(0, from)?) } else { None };
    Ok(Change { before, after })
}

impl Field<'_> for Change {
    const FLAGS: u32 = CHANGE;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, _: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        put_change(self, (flag::BEFORE, flag::AFTER), to)
    }

    #[inline]
    fn decode(_: usize, from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        get_change((flag::BEFORE, flag::AFTER), from)
    }
}

impl Field<'_> for Renamed {
    const FLAGS: u32 = CHANGE | flag::TO_BEFORE | flag::TO_AFTER;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        self.from_dir.encode(at, to)?;
        put_change(&self.to_dir, (flag::TO_BEFORE, flag::TO_AFTER), to)
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let from_dir = Change::decode(at, from)?;
        Ok(Self { from_dir, to_dir: get_change((flag::TO_BEFORE, flag::TO_AFTER), from)? })
    }
}

impl<'a> Field<'a> for Entry {
    const BYTES: usize = 8;
    const ALIGN: usize = 8;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.put(at, &U64::new(self.node.0));
        self.attr.encode(0, to)
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self { node: NodeId(from.get::<U64>(at).get()), attr: Attr::decode(0, from)? })
    }
}

impl<'a> Field<'a> for Made {
    const BYTES: usize = <Entry as Field<'a>>::BYTES;
    const ALIGN: usize = 8;
    const FLAGS: u32 = CHANGE;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        self.entry.encode(at, to)?;
        self.dir.encode(0, to)
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self { entry: Entry::decode(at, from)?, dir: Change::decode(0, from)? })
    }
}

/// Encoded as node and opening in the body; attributes and the directory's change are in the frame.
impl<'a> Field<'a> for Created {
    const BYTES: usize = 16;
    const ALIGN: usize = 8;
    const FLAGS: u32 = CHANGE;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        self.entry.encode(at, to)?;
        to.put(at + 8, &U64::new(self.open.0));
        self.dir.encode(0, to)
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let (entry, open) = (Entry::decode(at, from)?, OpenId(from.get::<U64>(at + 8).get()));
        Ok(Self { entry, open, dir: Change::decode(0, from)? })
    }
}

impl<'a> Field<'a> for Opened {
    const BYTES: usize = 8;
    const ALIGN: usize = 8;
    const FLAGS: u32 = flag::ATTR;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.put(at, &U64::new(self.open.0));
        to.flag(flag::ATTR, self.attr.is_some());
        self.attr.as_ref().map_or(Ok(()), |attr| attr.encode(0, to))
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let attr = if from.has(flag::ATTR) { Some(Attr::decode(0, from)?) } else { None };
        Ok(Self { open: OpenId(from.get::<U64>(at).get()), attr })
    }
}

impl<'a> Field<'a> for Returned<'a> {
    const BYTES: usize = 8;
    const ALIGN: usize = 8;
    const FLAGS: u32 = flag::INLINE;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.flag(flag::INLINE, !matches!(self, Self::Placed { .. }));
        match self {
            Self::Inline(bytes) => to.frame.bytes(bytes)?,
            Self::Follows { len_bytes } => to.frame.follows(*len_bytes)?,
            Self::Placed { .. } => {}
        }
        to.put(at, &U64::new(self.len_bytes().into()));
        Ok(())
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let (len_bytes, len) = length(from.get(at))?;
        match from.has(flag::INLINE) {
            false => Ok(Self::Placed { len_bytes }),
            true if len <= FRAME_BYTES => Ok(Self::Inline(from.frame.bytes(len)?)),
            true => Err(DecodeError::Value { field: "number of bytes", value: len_bytes.into() }),
        }
    }
}

fn length(count: U64) -> Result<(u32, usize), DecodeError> {
    let count = count.get();
    let wrong = DecodeError::Value { field: "number of bytes", value: count };
    let len_bytes = u32::try_from(count).map_err(|_| wrong)?;
    Ok((len_bytes, len_bytes as usize))
}

/// Encoded as the number of bytes, in eight bytes of the body, and their stability, in one; the change is in
/// the frame.
impl<'a> Field<'a> for Written {
    const BYTES: usize = 9;
    const ALIGN: usize = 8;
    const FLAGS: u32 = CHANGE;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.put(at, &U64::new(self.count as u64));
        to.put(at + 8, &stability_number(self.stability));
        self.file.encode(0, to)
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let (_, count) = length(from.get(at))?;
        let stability = stability(from.get(at + 8))?;
        // Most requests do not want the change, which is large.
        let file = if from.flags == 0 { Change::default() } else { Change::decode(0, from)? };
        Ok(Self { count, stability, file })
    }
}

/// Encoded as zeroes in the body for `None`.
impl<'a> Field<'a> for Option<Lock> {
    const BYTES: usize = size_of::<LockItem>();
    const ALIGN: usize = 8;
    const FLAGS: u32 = flag::PRESENT;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.flag(flag::PRESENT, self.is_some());
        if let Some(lock) = self {
            to.put(at, &LockItem::new(lock)?);
        }
        Ok(())
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        if from.has(flag::PRESENT) {
            return from.get::<LockItem>(at).decode().map(Some);
        }
        zero(from.bytes(at, size_of::<LockItem>())).map(|()| None)
    }
}

impl<'a> Field<'a> for Option<Version> {
    const BYTES: usize = size_of::<VersionField>();
    const ALIGN: usize = 8;
    const FLAGS: u32 = flag::PRESENT;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.flag(flag::PRESENT, self.is_some());
        if let Some(Version { epoch, count, slot }) = *self {
            let (epoch, count, slot) = (U64::new(epoch), U64::new(count), U32::new(slot));
            to.put(at, &VersionField { epoch, count, slot });
        }
        Ok(())
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        if !from.has(flag::PRESENT) {
            return zero(from.bytes(at, size_of::<VersionField>())).map(|()| None);
        }
        let VersionField { epoch, count, slot } = from.get(at);
        Ok(Some(Version { epoch: epoch.get(), count: count.get(), slot: slot.get() }))
    }
}

impl<'a> Field<'a> for HandleBytes<'a> {
    const BYTES: usize = size_of::<HandleField>();
    const ALIGN: usize = 4;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        let len_bytes = U16::new(self.checked_len()?);
        to.put(at, &HandleField { kind: I32::new(self.kind), len_bytes });
        to.frame.bytes(self.bytes)
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let field: HandleField = from.get(at);
        Self::read(field.kind.get(), field.len_bytes.get(), &mut from.frame)
    }
}

/// Encoded with the bytes of the handle behind everything else in the frame; the body has zeroes for `None`.
impl<'a> Field<'a> for Option<HandleBytes<'a>> {
    const BYTES: usize = <HandleBytes<'a> as Field<'a>>::BYTES;
    const ALIGN: usize = 4;
    const FLAGS: u32 = flag::HANDLE;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.flag(flag::HANDLE, self.is_some());
        self.as_ref().map_or(Ok(()), |handle| handle.encode(at, to))
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        if from.has(flag::HANDLE) {
            return HandleBytes::decode(at, from).map(Some);
        }
        zero(from.bytes(at, size_of::<HandleField>())).map(|()| None)
    }
}

impl<'a> Field<'a> for Session {
    const BYTES: usize = size_of::<SessionField>();
    const ALIGN: usize = 8;
    const FLAGS: u32 = Offers::all().bits() | flag::BACK_END_CHECKS | flag::READ_ONLY;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        let profile = &self.profile;
        to.flags |= self.offers.bits();
        to.flag(flag::BACK_END_CHECKS, profile.permission_check == PermissionCheck::BackEnd);
        to.flag(flag::READ_ONLY, profile.read_only);
        let field = SessionField {
            file_size_max: U64::new(profile.file_size_max),
            name_max: U32::new(profile.name_max),
            time_granularity_ns: U32::new(profile.time_granularity_ns),
            volume: self.volume.0,
            transfer_bytes_max: U32::new(self.transfer_bytes_max),
            callers_max: U16::new(self.callers_max),
        };
        to.put(at, &field);
        Ok(())
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let field: SessionField = from.get(at);
        let (transfer_bytes_max, callers_max) = (field.transfer_bytes_max.get(), field.callers_max.get());
        // A smaller limit would make a client repeat requests forever, or be unable to make any.
        if transfer_bytes_max < TRANSFER_BYTES_MIN {
            let value = transfer_bytes_max.into();
            return Err(DecodeError::Value { field: "limit of transfers", value });
        }
        if callers_max == 0 {
            return Err(DecodeError::Value { field: "limit of callers", value: 0 });
        }
        let checks = from.has(flag::BACK_END_CHECKS);
        Ok(Self {
            profile: Profile {
                permission_check: if checks { PermissionCheck::BackEnd } else { PermissionCheck::Caller },
                read_only: from.has(flag::READ_ONLY),
                name_max: field.name_max.get(),
                file_size_max: field.file_size_max.get(),
                time_granularity_ns: field.time_granularity_ns.get(),
                writes_by_owner: false,
            },
            offers: Offers::from_bits_truncate(from.flags),
            volume: Volume(field.volume),
            transfer_bytes_max,
            callers_max,
        })
    }
}
