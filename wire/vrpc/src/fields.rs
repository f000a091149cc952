//! Encoding of the waist's types as fields of requests.

use tombolo_core::Stability;
use tombolo_core::fs::{
    AccessMask, AllocateMode, Cookie, Create, Device, DirBudget, Exclusive, File, FileType, Lock, LockFamily,
    LockKind, LockOwner, LockRange, Name, NewMode, NodeId, OpenFlags, OpenId, RenameFlags, SyncScope, Whence,
    Write, XattrName, XattrSet,
};
use zerocopy::little_endian::{U16, U32, U64};

use crate::attr::{mode, mode_bits};
use crate::field::{Bit, Decoder, Encoder, Field, InFrame, ShortName};
use crate::frame::zero;
use crate::layout::{BudgetItem, CreateField, DeviceField, FileField, LockItem, ModeField, NameField};
use crate::{DecodeError, EncodeError, FrameSink, Translate};

/// Implements types of fixed size: `Type: wire type, conversion to it, conversion from it`; in the body, or
/// as an item of the frame. A number is aligned to its size, a structure as its row says.
macro_rules! fixed {
    (@align $wire:ty, $align:literal) => { $align };
    (@align $wire:ty,) => { size_of::<$wire>() };
    ($($ty:ty: $wire:ty $([align $align:literal])?, $to:expr, $from:expr $(, $translate:ident)?;)+) => {
        $(
            impl<'a> Field<'a> for $ty {
                const BYTES: usize = size_of::<$wire>();
                const ALIGN: usize = fixed!(@align $wire, $($align)?);

                #[inline]
                fn encode<W: FrameSink + ?Sized>(
                    &self,
                    at: usize,
                    to: &mut Encoder<'_, W>,
                ) -> Result<(), EncodeError> {
                    to.put(at, &<$wire>::from($to(*self)));
                    Ok(())
                }

                #[inline]
                fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                    $from(from.get::<$wire>(at).into())
                }

                $(
                    #[inline]
                    fn translate<T: Translate>(&mut self, to: &mut T) -> Result<(), T::Error> {
                        *self = to.$translate(*self)?;
                        Ok(())
                    }
                )?
            }

            impl<'a> Field<'a, InFrame> for $ty {
                fn encode<W: FrameSink + ?Sized>(
                    &self,
                    _: usize,
                    to: &mut Encoder<'_, W>,
                ) -> Result<(), EncodeError> {
                    to.frame.item(&<$wire>::from($to(*self)))
                }

                fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                    $from((*from.item::<$wire>()?).into())
                }

                $(
                    fn translate<T: Translate>(&mut self, to: &mut T) -> Result<(), T::Error> {
                        *self = to.$translate(*self)?;
                        Ok(())
                    }
                )?
            }
        )+
    };
}

fixed! {
    u32: U32, |number: u32| number, |number: u32| Ok(number);
    u64: U64, |number: u64| number, |number: u64| Ok(number);
    NodeId: U64, |node: NodeId| node.0, |number: u64| Ok(NodeId(number)), node;
    Cookie: U64, |cookie: Cookie| cookie.0, |number: u64| Ok(Cookie(number));
    LockOwner: U64, |owner: LockOwner| owner.0, |number: u64| Ok(LockOwner(number));
    OpenFlags: U16, |flags: OpenFlags| flags.bits(), open_flags;
    FileType: u8, type_number, file_type;
    File: FileField [align 8], |file: File| file, |file: File| Ok(file), file;
    NewMode: ModeField [align 2], |mode: NewMode| mode, ModeField::decode;
    Device: DeviceField [align 4], device_field, device;
    Create: CreateField [align 8], create_field, create;
}

fn open_flags(bits: u16) -> Result<OpenFlags, DecodeError> {
    OpenFlags::from_bits(bits).ok_or(DecodeError::UnknownFlags(bits.into()))
}

/// Implements types in the flags: `Type: all its bits, conversion to them, conversion from them`.
macro_rules! flags {
    ($($ty:ty $(as $form:ty)?: $mask:expr, $to:expr, $from:expr;)+) => {
        $(
            impl<'a> Field<'a $(, $form)?> for $ty {
                const FLAGS: u32 = $mask as u32;

                #[inline]
                fn encode<W: FrameSink + ?Sized>(
                    &self,
                    _: usize,
                    to: &mut Encoder<'_, W>,
                ) -> Result<(), EncodeError> {
                    to.flags |= u32::from($to(*self));
                    Ok(())
                }

                #[inline]
                fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                    $from((from.flags & <Self as Field<'a $(, $form)?>>::FLAGS) as u8)
                }
            }
        )+
    };
}

const XATTR_CREATE: u8 = 1 << 2;
const XATTR_REPLACE: u8 = 1 << 3;

flags! {
    AccessMask: Self::all().bits(), |mask: Self| mask.bits(), |bits| Ok(Self::from_bits_retain(bits));
    RenameFlags: Self::all().bits(), |flags: Self| flags.bits(), |bits| Ok(Self::from_bits_retain(bits));
    AllocateMode: Self::all().bits(), |mode: Self| mode.bits(), |bits| Ok(Self::from_bits_retain(bits));
    SyncScope: 3, sync_scope_bits, sync_scope;
    // The bit is set for a hole.
    Whence: 1, |whence| u8::from(whence == Self::Hole), |bit| Ok(if bit == 0 { Self::Data } else { Self::Hole });
    XattrSet: XATTR_CREATE | XATTR_REPLACE, xattr_bits, xattr_set;
}

/// Implements the conversions of a type to its numbers and back; a number without a value is an error.
macro_rules! numbers {
    ($($to:ident, $from:ident: $ty:ident { $($name:ident = $number:tt),+ } else $error:expr;)+) => {
        $(
            pub(crate) const fn $to(value: $ty) -> u8 {
                match value {
                    $($ty::$name => $number,)+
                }
            }

            pub(crate) fn $from(number: u8) -> Result<$ty, DecodeError> {
                match number {
                    $($number => Ok($ty::$name),)+
                    _ => Err($error(number.into())),
                }
            }
        )+
    };
}

numbers! {
    sync_scope_bits, sync_scope: SyncScope { All = 0, Data = 1, AllWriters = 2 } else DecodeError::UnknownFlags;
    xattr_bits, xattr_set: XattrSet { Any = 0, Create = XATTR_CREATE, Replace = XATTR_REPLACE }
        else DecodeError::UnknownFlags;
    type_number, file_type: FileType {
        Regular = 1, Directory = 2, Symlink = 3, BlockDevice = 4, CharDevice = 5, Fifo = 6, Socket = 7
    } else |value| DecodeError::Value { field: "file type", value };
    stability_number, stability: Stability { Unstable = 0, DataSync = 1, FileSync = 2 }
        else |value| DecodeError::Value { field: "stability", value };
    family_number, family: LockFamily { Posix = 1, Flock = 2 }
        else |value| DecodeError::Value { field: "family of locks", value };
    kind_number, kind: LockKind { Read = 1, Write = 2 }
        else |value| DecodeError::Value { field: "kind of lock", value };
}

impl<'a, const MASK: u32> Field<'a, Bit<MASK>> for bool {
    const FLAGS: u32 = MASK;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, _: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.flag(MASK, *self);
        Ok(())
    }

    #[inline]
    fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(from.has(MASK))
    }
}

/// Encoded in the body if bit 0 of the flags is set; otherwise the value is `None`, and its bytes in the
/// body are zero.
impl<'a> Field<'a> for Option<OpenId> {
    const BYTES: usize = 8;
    const ALIGN: usize = 8;
    const FLAGS: u32 = 1;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.flag(1, self.is_some());
        to.put(at, &U64::new(self.map_or(0, |open| open.0)));
        Ok(())
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match (from.has(1), from.get::<U64>(at).get()) {
            (true, open) => Ok(Some(OpenId(open))),
            (false, 0) => Ok(None),
            (false, _) => Err(DecodeError::Reserved),
        }
    }

    #[inline]
    fn translate<T: Translate>(&mut self, to: &mut T) -> Result<(), T::Error> {
        if let Some(open) = self {
            *open = to.open(*open)?;
        }
        Ok(())
    }
}

impl From<File> for FileField {
    fn from(file: File) -> Self {
        Self { node: U64::new(file.node.0), open: U64::new(file.open.0) }
    }
}

impl From<FileField> for File {
    fn from(field: FileField) -> Self {
        Self { node: NodeId(field.node.get()), open: OpenId(field.open.get()) }
    }
}

/// Returns the length of a name as one byte: a name has at most 255 bytes.
fn len_byte(name: &[u8]) -> u8 {
    u8::try_from(name.len()).unwrap_or(u8::MAX)
}

macro_rules! names {
    ($($name:ident),+) => {
        $(
            /// Encoded as the length in the body; the bytes are in the frame.
            impl<'a> Field<'a> for $name<'a> {
                const BYTES: usize = 1;

                fn encode<W: FrameSink + ?Sized>(
                    &self,
                    at: usize,
                    to: &mut Encoder<'_, W>,
                ) -> Result<(), EncodeError> {
                    to.put(at, &len_byte(self.as_bytes()));
                    to.frame.bytes(self.as_bytes())
                }

                fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                    let len: u8 = from.get(at);
                    Ok(Self::new(from.frame.bytes(len.into())?)?)
                }
            }
        )+
    };
}

names!(Name, XattrName);

impl<'a> Field<'a, ShortName> for Name<'a> {
    const BYTES: usize = size_of::<NameField>();

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        let bytes = self.as_bytes();
        let mut field = NameField { name: [0; 27], name_len: len_byte(bytes) };
        match field.name.get_mut(..bytes.len()) {
            Some(space) => space.copy_from_slice(bytes),
            None => to.frame.bytes(bytes)?,
        }
        to.put(at, &field);
        Ok(())
    }

    #[inline(always)]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let (name, len) = (from.bytes(at, 27), usize::from(from.get::<u8>(at + 27)));
        let name = match name.split_at_checked(len) {
            Some((name, rest)) => {
                zero(rest)?;
                name
            }
            None => {
                zero(name)?;
                from.frame.bytes(len)?
            }
        };
        Ok(Self::new(name)?)
    }
}

impl From<NewMode> for ModeField {
    fn from(mode: NewMode) -> Self {
        Self { mode: mode_bits(mode.mode), umask: mode_bits(mode.umask) }
    }
}

impl ModeField {
    fn decode(self) -> Result<NewMode, DecodeError> {
        Ok(NewMode { mode: mode(self.mode)?, umask: mode(self.umask)? })
    }
}

fn device_field(device: Device) -> DeviceField {
    DeviceField { major: U32::new(device.major), minor: U32::new(device.minor) }
}

fn device(field: DeviceField) -> Result<Device, DecodeError> {
    Ok(Device { major: field.major.get(), minor: field.minor.get() })
}

/// Numbers of [`Exclusive`]'s variants.
const NOT_EXCLUSIVE: u8 = 0;
const EXCLUSIVE: u8 = 1;
const EXCLUSIVE_BY_VERIFIER: u8 = 2;

fn create_field(how: Create) -> CreateField {
    let (exclusive, verifier) = match how.exclusive {
        Exclusive::No => (NOT_EXCLUSIVE, [0; 8]),
        Exclusive::Yes => (EXCLUSIVE, [0; 8]),
        Exclusive::Verifier(verifier) => (EXCLUSIVE_BY_VERIFIER, verifier),
    };
    CreateField { verifier, mode: how.mode.into(), open_flags: U16::new(how.flags.bits()), exclusive }
}

fn create(field: CreateField) -> Result<Create, DecodeError> {
    if field.exclusive != EXCLUSIVE_BY_VERIFIER {
        zero(&field.verifier)?;
    }
    Ok(Create {
        mode: field.mode.decode()?,
        flags: open_flags(field.open_flags.get())?,
        exclusive: match field.exclusive {
            NOT_EXCLUSIVE => Exclusive::No,
            EXCLUSIVE => Exclusive::Yes,
            EXCLUSIVE_BY_VERIFIER => Exclusive::Verifier(field.verifier),
            other => return Err(DecodeError::Value { field: "exclusiveness", value: other.into() }),
        },
    })
}

const STABILITY_SHIFT: u32 = 2;
const STABILITY: u32 = 0b11 << STABILITY_SHIFT;
const KILL_PRIVILEGES: u32 = 1 << 4;
/// Flag: write at the offset even when appending.
const IN_PLACE: u32 = 1 << 5;

/// Encoded as the offset in the body, and stability, `kill_privileges` and `in_place` in the flags.
/// `retainable` is not encoded, and `by_owner` cannot be.
impl<'a> Field<'a> for Write {
    const BYTES: usize = 8;
    const ALIGN: usize = 8;
    const FLAGS: u32 = STABILITY | KILL_PRIVILEGES | IN_PLACE;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        if self.by_owner {
            return Err(EncodeError::Value { field: "by owner", value: 1 });
        }
        to.flags |= u32::from(stability_number(self.stability)) << STABILITY_SHIFT;
        to.flag(KILL_PRIVILEGES, self.kill_privileges);
        to.flag(IN_PLACE, self.in_place);
        to.put(at, &U64::new(self.offset));
        Ok(())
    }

    #[inline]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            offset: from.get::<U64>(at).get(),
            stability: stability(((from.flags & STABILITY) >> STABILITY_SHIFT) as u8)?,
            kill_privileges: from.has(KILL_PRIVILEGES),
            in_place: from.has(IN_PLACE),
            retainable: false,
            by_owner: false,
        })
    }
}

/// Flag: entries with attributes are requested.
const PLUS: u32 = 1 << 2;

impl<'a> Field<'a> for DirBudget {
    const FLAGS: u32 = PLUS;

    /// Encodes the budget. Sizes are clamped to 32 bits; no page is larger.
    fn encode<W: FrameSink + ?Sized>(&self, _: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        let wire = |value: usize| U32::new(u32::try_from(value).unwrap_or(u32::MAX));
        if !self.align.is_power_of_two() || u32::try_from(self.align).is_err() {
            return Err(EncodeError::Value { field: "alignment", value: self.align as u64 });
        }
        to.flag(PLUS, self.plus);
        to.frame.item(&BudgetItem {
            size_bytes: wire(self.size_bytes),
            entry_bytes: wire(self.entry_bytes),
            align: wire(self.align),
            reserved: [0; 4],
        })
    }

    #[inline]
    fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let item: &BudgetItem = from.item()?;
        zero(&item.reserved)?;
        let align = item.align.get();
        if !align.is_power_of_two() {
            return Err(DecodeError::Value { field: "alignment", value: align.into() });
        }
        Ok(Self {
            size_bytes: item.size_bytes.get() as usize,
            entry_bytes: item.entry_bytes.get() as usize,
            align: align as usize,
            plus: from.has(PLUS),
        })
    }
}

impl LockItem {
    pub fn new(lock: &Lock) -> Result<Self, EncodeError> {
        let [start, last] = range_items(lock.range)?;
        Ok(Self {
            start,
            last,
            owner: U64::new(lock.owner.0),
            pid: U32::new(lock.pid),
            family: family_number(lock.family),
            kind: kind_number(lock.kind),
            reserved: [0; 2],
        })
    }

    pub fn decode(&self) -> Result<Lock, DecodeError> {
        zero(&self.reserved)?;
        Ok(Lock {
            range: range([self.start, self.last])?,
            family: family(self.family)?,
            kind: kind(self.kind)?,
            owner: LockOwner(self.owner.get()),
            pid: self.pid.get(),
        })
    }
}

fn range_items(range: LockRange) -> Result<[U64; 2], EncodeError> {
    if range.start > range.last {
        return Err(EncodeError::Value { field: "range of a lock", value: range.start });
    }
    Ok([U64::new(range.start), U64::new(range.last)])
}

fn range([start, last]: [U64; 2]) -> Result<LockRange, DecodeError> {
    let range = LockRange { start: start.get(), last: last.get() };
    if range.start > range.last {
        return Err(DecodeError::Value { field: "range of a lock", value: range.start });
    }
    Ok(range)
}

impl<'a> Field<'a> for Lock {
    fn encode<W: FrameSink + ?Sized>(&self, _: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.frame.item(&LockItem::new(self)?)
    }

    fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        from.item::<LockItem>()?.decode()
    }
}

/// Range, owner and family of UNLOCK form one [`LockItem`], without a pid and a kind.
impl<'a> Field<'a> for LockRange {
    fn encode<W: FrameSink + ?Sized>(&self, _: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.frame.item(&range_items(*self)?)
    }

    fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        range(*from.item()?)
    }
}

impl<'a> Field<'a> for LockFamily {
    fn encode<W: FrameSink + ?Sized>(&self, _: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        to.frame.item(&[0, 0, 0, 0, family_number(*self), 0, 0, 0])
    }

    fn decode(_: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match *from.item::<[u8; 8]>()? {
            [0, 0, 0, 0, number, 0, 0, 0] => family(number),
            _ => Err(DecodeError::Reserved),
        }
    }
}
