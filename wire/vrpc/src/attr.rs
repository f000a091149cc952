//! Attributes and attribute changes, as items of a frame.

use tombolo_core::fs::{Attr, Device, Mode, SetAttr, SetTime, StatFs, Timestamp, WeakAttr};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{I64, U16, U32, U64};

use crate::field::{Decoder, Encoder, Field};
use crate::fields::{file_type, type_number};
use crate::layout::{AttrItem, SetAttrItem, StatFsItem, WeakAttrItem};
use crate::{DecodeError, EncodeError, FrameSink};

/// Flag: the attributes include a creation time.
const HAS_BTIME: u16 = 1;
/// Flag: the node is volatile, so its attributes must be requested each time.
const VOLATILE: u16 = 1 << 1;
const TYPE_SHIFT: u32 = 12;

const NANOS_PER_SEC: u32 = 1_000_000_000;

mod valid {
    //! Bits of `SetAttrItem::valid`: the attributes to be set, the guard, and an option.
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const ATIME_NOW: u32 = 1 << 5;
    pub const MTIME: u32 = 1 << 6;
    pub const MTIME_NOW: u32 = 1 << 7;
    pub const GUARD: u32 = 1 << 8;
    pub const KILL_PRIVILEGES: u32 = 1 << 9;
    pub const ALL: u32 = (1 << 10) - 1;
}

pub(crate) fn mode_bits(mode: Mode) -> U16 {
    // The type guarantees twelve bits.
    U16::new((mode.bits() & Mode::MASK) as u16)
}

pub(crate) fn mode(bits: U16) -> Result<Mode, DecodeError> {
    wide_mode(bits.get().into())
}

fn wide_mode(bits: u32) -> Result<Mode, DecodeError> {
    if bits > Mode::MASK {
        return Err(DecodeError::Value { field: "mode", value: bits.into() });
    }
    Ok(Mode::new(bits))
}

fn time(secs: I64, nanos: U32) -> Result<Timestamp, DecodeError> {
    if nanos.get() >= NANOS_PER_SEC {
        return Err(DecodeError::Value { field: "number of nanoseconds", value: nanos.get().into() });
    }
    Ok(Timestamp { secs: secs.get(), nanos: nanos.get() })
}

/// Encodes a time. Nanoseconds beyond a second, which no back end should report, are clamped, since the peer
/// would refuse them.
fn split(time: Timestamp) -> (I64, U32) {
    (I64::new(time.secs), U32::new(time.nanos.min(NANOS_PER_SEC - 1)))
}

impl From<&Attr> for AttrItem {
    fn from(attr: &Attr) -> Self {
        let (mtime_secs, mtime_nanos) = split(attr.mtime);
        let (ctime_secs, ctime_nanos) = split(attr.ctime);
        let (atime_secs, atime_nanos) = split(attr.atime);
        let (btime_secs, btime_nanos) = split(attr.btime.unwrap_or_default());
        let has_btime = if attr.btime.is_some() { HAS_BTIME } else { 0 };
        let type_bits = u16::from(type_number(attr.file_type)) << TYPE_SHIFT;
        Self {
            type_and_mode: U16::new(type_bits | mode_bits(attr.mode).get()),
            flags: U16::new(has_btime | if attr.volatile { VOLATILE } else { 0 }),
            nlink: U32::new(attr.nlink),
            uid: U32::new(attr.uid),
            gid: U32::new(attr.gid),
            size: U64::new(attr.size),
            blocks: U64::new(attr.blocks),
            fileid: U64::new(attr.fileid),
            mtime_secs,
            ctime_secs,
            mtime_nanos,
            ctime_nanos,
            atime_secs,
            btime_secs,
            atime_nanos,
            btime_nanos,
            fsid: U64::new(attr.fsid),
            generation: U64::new(attr.generation),
            rdev_major: U32::new(attr.rdev.major),
            rdev_minor: U32::new(attr.rdev.minor),
            block_size: U32::new(attr.block_size),
            reserved: [0; 4],
        }
    }
}

impl AttrItem {
    pub fn decode(&self) -> Result<Attr, DecodeError> {
        let type_and_mode = self.type_and_mode.get();
        let flags = self.flags.get();
        if flags & !(HAS_BTIME | VOLATILE) != 0 {
            return Err(DecodeError::UnknownFlags(flags.into()));
        }
        let btime = time(self.btime_secs, self.btime_nanos)?;
        let has_btime = flags & HAS_BTIME != 0;
        if self.reserved != [0; 4] || (!has_btime && btime != Timestamp::default()) {
            return Err(DecodeError::Reserved);
        }
        Ok(Attr {
            file_type: file_type((type_and_mode >> TYPE_SHIFT) as u8)?,
            mode: Mode::new(type_and_mode.into()),
            nlink: self.nlink.get(),
            uid: self.uid.get(),
            gid: self.gid.get(),
            size: self.size.get(),
            blocks: self.blocks.get(),
            block_size: self.block_size.get(),
            rdev: Device { major: self.rdev_major.get(), minor: self.rdev_minor.get() },
            fsid: self.fsid.get(),
            fileid: self.fileid.get(),
            generation: self.generation.get(),
            atime: time(self.atime_secs, self.atime_nanos)?,
            mtime: time(self.mtime_secs, self.mtime_nanos)?,
            ctime: time(self.ctime_secs, self.ctime_nanos)?,
            btime: has_btime.then_some(btime),
            volatile: flags & VOLATILE != 0,
        })
    }
}

impl From<&WeakAttr> for WeakAttrItem {
    fn from(attr: &WeakAttr) -> Self {
        let (mtime_secs, mtime_nanos) = split(attr.mtime);
        let (ctime_secs, ctime_nanos) = split(attr.ctime);
        Self { size: U64::new(attr.size), mtime_secs, ctime_secs, mtime_nanos, ctime_nanos }
    }
}

impl WeakAttrItem {
    pub fn decode(&self) -> Result<WeakAttr, DecodeError> {
        Ok(WeakAttr {
            size: self.size.get(),
            mtime: time(self.mtime_secs, self.mtime_nanos)?,
            ctime: time(self.ctime_secs, self.ctime_nanos)?,
        })
    }
}

impl From<&SetAttr> for SetAttrItem {
    fn from(set: &SetAttr) -> Self {
        let mut valid = 0;
        let mut has = |given: bool, bit: u32| valid |= if given { bit } else { 0 };
        has(set.mode.is_some(), valid::MODE);
        has(set.uid.is_some(), valid::UID);
        has(set.gid.is_some(), valid::GID);
        has(set.size.is_some(), valid::SIZE);
        has(matches!(set.atime, Some(SetTime::At(_))), valid::ATIME);
        has(set.atime == Some(SetTime::Now), valid::ATIME_NOW);
        has(matches!(set.mtime, Some(SetTime::At(_))), valid::MTIME);
        has(set.mtime == Some(SetTime::Now), valid::MTIME_NOW);
        has(set.guard_ctime.is_some(), valid::GUARD);
        has(set.kill_privileges, valid::KILL_PRIVILEGES);
        let given = |time| match time {
            Some(SetTime::At(time)) => split(time),
            Some(SetTime::Now) | None => split(Timestamp::default()),
        };
        let (atime_secs, atime_nanos) = given(set.atime);
        let (mtime_secs, mtime_nanos) = given(set.mtime);
        let (guard_secs, guard_nanos) = split(set.guard_ctime.unwrap_or_default());
        Self {
            valid: U32::new(valid),
            mode: U32::new(set.mode.unwrap_or_default().bits()),
            uid: U32::new(set.uid.unwrap_or_default()),
            gid: U32::new(set.gid.unwrap_or_default()),
            size: U64::new(set.size.unwrap_or_default()),
            atime_secs,
            mtime_secs,
            guard_secs,
            atime_nanos,
            mtime_nanos,
            guard_nanos,
            reserved: [0; 4],
        }
    }
}

impl SetAttrItem {
    pub fn decode(&self) -> Result<SetAttr, DecodeError> {
        let valid = self.valid.get();
        if valid & !valid::ALL != 0 {
            return Err(DecodeError::UnknownFlags(valid));
        }
        let has = |bit: u32| valid & bit != 0;
        let set_time = |at: u32, now: u32, secs, nanos| match (has(at), has(now)) {
            (true, false) => Ok(Some(SetTime::At(time(secs, nanos)?))),
            (false, true) => Ok(Some(SetTime::Now)),
            (false, false) => Ok(None),
            (true, true) => Err(DecodeError::UnknownFlags(valid)),
        };
        let set = SetAttr {
            mode: has(valid::MODE).then(|| wide_mode(self.mode.get())).transpose()?,
            uid: has(valid::UID).then_some(self.uid.get()),
            gid: has(valid::GID).then_some(self.gid.get()),
            size: has(valid::SIZE).then_some(self.size.get()),
            atime: set_time(valid::ATIME, valid::ATIME_NOW, self.atime_secs, self.atime_nanos)?,
            mtime: set_time(valid::MTIME, valid::MTIME_NOW, self.mtime_secs, self.mtime_nanos)?,
            guard_ctime: has(valid::GUARD).then(|| time(self.guard_secs, self.guard_nanos)).transpose()?,
            kill_privileges: has(valid::KILL_PRIVILEGES),
        };
        // Fields that `valid` does not include must be zero: re-encoding yields the same bytes.
        if Self::from(&set).as_bytes() != self.as_bytes() {
            return Err(DecodeError::Reserved);
        }
        Ok(set)
    }
}

impl From<&StatFs> for StatFsItem {
    fn from(stat: &StatFs) -> Self {
        Self {
            block_size: U32::new(stat.block_size),
            name_max: U32::new(stat.name_max),
            blocks: U64::new(stat.blocks),
            blocks_free: U64::new(stat.blocks_free),
            blocks_available: U64::new(stat.blocks_available),
            files: U64::new(stat.files),
            files_free: U64::new(stat.files_free),
        }
    }
}

impl StatFsItem {
    pub fn decode(&self) -> Result<StatFs, DecodeError> {
        Ok(StatFs {
            block_size: self.block_size.get(),
            name_max: self.name_max.get(),
            blocks: self.blocks.get(),
            blocks_free: self.blocks_free.get(),
            blocks_available: self.blocks_available.get(),
            files: self.files.get(),
            files_free: self.files_free.get(),
        })
    }
}

macro_rules! items {
    ($($value:ident as $item:ident),+) => {
        $(
            /// Encoded as an item of the frame.
            impl<'a> Field<'a> for $value {
                #[inline]
                fn encode<W: FrameSink + ?Sized>(
                    &self,
                    _: usize,
                    to: &mut Encoder<'_, W>,
                ) -> Result<(), EncodeError> {
                    to.frame.item(&$item::from(self))
                }

                #[inline]
                fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                    from.item::<$item>()?.decode()
                }
            }
        )+
    };
}

items!(Attr as AttrItem, SetAttr as SetAttrItem, StatFs as StatFsItem);
