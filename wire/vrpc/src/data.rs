//! References to the data of reads and writes: in the frame, or in bulk memory.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{Decoder, Encoder, Field};
use crate::layout::SpanField;
use crate::{DecodeError, EncodeError, FRAME_BYTES, FrameSink};

/// Maximum number of references in one message.
pub const REFERENCES_MAX: usize = 128;

/// A range of bulk memory, which is the part of a region for file data; never empty, and within one domain.
/// The receiver checks that the range is inside a region of the link or of a forwarded domain.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reference {
    address: U64,
    len_bytes: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<Reference>() == 16);

/// Number of bits of a global address that are the offset in a domain.
const OFFSET_BITS: u32 = 48;

impl Reference {
    /// Returns the reference to `len_bytes` bytes at the global address `address`: domain in the upper 16
    /// bits, offset in the lower 48.
    pub fn new(address: u64, len_bytes: u32) -> Result<Self, DecodeError> {
        let offset = address & ((1 << OFFSET_BITS) - 1);
        // Neither term exceeds 48 bits, so the sum does not overflow.
        if len_bytes == 0 || offset + u64::from(len_bytes) > 1 << OFFSET_BITS {
            return Err(DecodeError::Reference { address, len_bytes });
        }
        Ok(Self { address: U64::new(address), len_bytes: U32::new(len_bytes), reserved: U32::ZERO })
    }

    /// Returns the global address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address.get()
    }

    /// Returns the length, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes.get()
    }

    fn check(&self) -> Result<(), DecodeError> {
        if self.reserved != U32::ZERO {
            return Err(DecodeError::Reserved);
        }
        Self::new(self.address(), self.len_bytes()).map(|_| ())
    }
}

impl std::fmt::Debug for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{:#x}", self.len_bytes, self.address)
    }
}

/// A scatter-gather list: 1 to [`REFERENCES_MAX`] references, less than 4 GiB in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct References<'a> {
    list: &'a [Reference],
    len_bytes: u32,
}

impl<'a> References<'a> {
    /// Returns the list, after a check of each reference and of the total length.
    pub fn new(list: &'a [Reference]) -> Result<Self, DecodeError> {
        if list.is_empty() || list.len() > REFERENCES_MAX {
            return Err(DecodeError::ListLength(list.len() as u64));
        }
        let mut sum = 0u32;
        for reference in list {
            reference.check()?;
            sum = sum
                .checked_add(reference.len_bytes())
                .ok_or(DecodeError::Value { field: "length of data", value: u64::MAX })?;
        }
        Ok(Self { list, len_bytes: sum })
    }

    /// Returns the references, in the order of the data.
    #[must_use]
    pub fn as_slice(&self) -> &'a [Reference] {
        self.list
    }

    /// Returns the total length, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }
}

/// The data of a request: of a write, a symbolic link or an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Data in the frame of the request.
    Inline(&'a [u8]),
    /// In the frame; the encoder's caller must append exactly this number of bytes behind the output of
    /// `encode`. Never returned by decoding.
    Follows {
        /// Length, in bytes.
        len_bytes: u32,
    },
    /// In one range of bulk memory: the client's, or that of a forwarded domain.
    One(Reference),
    /// In several ranges, in order.
    List(References<'a>),
}

/// The destination of an answer's data, as requested by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination<'a> {
    /// The frame of the answer: at most this length, which must not exceed [`FRAME_BYTES`].
    Inline {
        /// Length, in bytes.
        len_bytes: u32,
    },
    /// One range of bulk memory, in the server's region.
    One(Reference),
    /// Several ranges, filled in order.
    List(References<'a>),
}

/// The data of an answer, at the requested destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned<'a> {
    /// Data in the frame of the answer.
    Inline(&'a [u8]),
    /// In the frame; the encoder's caller must append exactly this number of bytes behind the output of
    /// `encode`. Never returned by decoding.
    Follows {
        /// Length, in bytes.
        len_bytes: u32,
    },
    /// At the start of the destination. The receiver checks that the length does not exceed the requested
    /// one.
    Placed {
        /// Length, in bytes.
        len_bytes: u32,
    },
}

impl Data<'_> {
    /// Returns the length, in bytes; saturates at `u32::MAX`.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match self {
            Self::Inline(bytes) => saturated(bytes.len()),
            Self::Follows { len_bytes } => *len_bytes,
            Self::One(reference) => reference.len_bytes(),
            Self::List(list) => list.len_bytes(),
        }
    }
}

impl Destination<'_> {
    /// Returns the maximum length, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match self {
            Self::Inline { len_bytes } => *len_bytes,
            Self::One(reference) => reference.len_bytes(),
            Self::List(list) => list.len_bytes(),
        }
    }
}

impl Destination<'_> {
    /// Fails unless `returned` is at this destination and not longer than requested: a client's check of an
    /// answer before it accesses the data.
    pub fn accept(&self, returned: &Returned<'_>) -> Result<(), DecodeError> {
        let inline = matches!(self, Self::Inline { .. });
        let returned_inline = !matches!(returned, Returned::Placed { .. });
        let len_bytes = returned.len_bytes();
        if inline != returned_inline || len_bytes > self.len_bytes() {
            return Err(DecodeError::Value {
                field: "number of bytes for the destination",
                value: len_bytes.into(),
            });
        }
        Ok(())
    }
}

impl Returned<'_> {
    /// Returns the length, in bytes; saturates at `u32::MAX`.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match self {
            Self::Inline(bytes) => saturated(bytes.len()),
            Self::Follows { len_bytes } | Self::Placed { len_bytes } => *len_bytes,
        }
    }
}

/// Mask of the flag bits that encode the data's location: [`INLINE`], [`ONE`] or [`LIST`].
const FORM: u32 = 0b11;
const INLINE: u32 = 0;
const ONE: u32 = 1;
const LIST: u32 = 2;

/// Encodes the location of data: `form` in the flags, and in the body the address of a single reference,
/// otherwise 0, and the total length.
fn put_span<W: ?Sized + FrameSink>(
    at: usize,
    form: u32,
    address: u64,
    len_bytes: u32,
    to: &mut Encoder<'_, W>,
) {
    to.flags |= form;
    to.put(at, &SpanField { address: U64::new(address), len_bytes: U32::new(len_bytes) });
}

fn put_list<W: ?Sized + FrameSink>(
    at: usize,
    list: &References<'_>,
    to: &mut Encoder<'_, W>,
) -> Result<(), EncodeError> {
    to.frame.bytes(list.list.as_bytes())?;
    put_span(at, LIST, 0, list.len_bytes, to);
    Ok(())
}

#[inline(always)]
fn get_list<'a>(span: &SpanField, from: &mut Decoder<'a>) -> Result<References<'a>, DecodeError> {
    no_address(span)?;
    let (list, len_bytes) = (References::new(from.frame.rest_as_list()?)?, span.len_bytes.get());
    if list.len_bytes != len_bytes {
        return Err(DecodeError::Value { field: "sum of the list", value: len_bytes.into() });
    }
    Ok(list)
}

#[inline]
fn no_address(span: &SpanField) -> Result<(), DecodeError> {
    if span.address == U64::ZERO { Ok(()) } else { Err(DecodeError::Reserved) }
}

/// Encoded as form and length in flags and body. Inline data or a list of references are last in the frame.
impl<'a> Field<'a> for Data<'a> {
    const BYTES: usize = size_of::<SpanField>();
    const ALIGN: usize = 8;
    const FLAGS: u32 = FORM;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        match self {
            Self::Inline(bytes) => to.frame.bytes(bytes)?,
            Self::Follows { len_bytes } => to.frame.follows(*len_bytes)?,
            Self::One(one) => {
                put_span(at, ONE, one.address(), one.len_bytes(), to);
                return Ok(());
            }
            Self::List(list) => return put_list(at, list, to),
        }
        put_span(at, INLINE, 0, self.len_bytes(), to);
        Ok(())
    }

    #[inline(always)]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let span: SpanField = from.get(at);
        match from.flags & FORM {
            INLINE => {
                no_address(&span)?;
                Ok(Self::Inline(from.frame.bytes(span.len_bytes.get() as usize)?))
            }
            ONE => Ok(Self::One(Reference::new(span.address.get(), span.len_bytes.get())?)),
            LIST => Ok(Self::List(get_list(&span, from)?)),
            unknown => Err(DecodeError::UnknownFlags(unknown)),
        }
    }
}

/// Encoded as form and length in flags and body. A list of references is last in the frame.
impl<'a> Field<'a> for Destination<'a> {
    const BYTES: usize = size_of::<SpanField>();
    const ALIGN: usize = 8;
    const FLAGS: u32 = FORM;

    #[inline]
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
        match self {
            Self::Inline { len_bytes } if *len_bytes as usize > FRAME_BYTES => {
                return Err(EncodeError::Value { field: "length in a frame", value: (*len_bytes).into() });
            }
            Self::Inline { len_bytes } => put_span(at, INLINE, 0, *len_bytes, to),
            Self::One(one) => put_span(at, ONE, one.address(), one.len_bytes(), to),
            Self::List(list) => return put_list(at, list, to),
        }
        Ok(())
    }

    #[inline(always)]
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let span: SpanField = from.get(at);
        let len_bytes = span.len_bytes.get();
        match from.flags & FORM {
            INLINE if len_bytes as usize > FRAME_BYTES => {
                Err(DecodeError::Value { field: "length in a frame", value: len_bytes.into() })
            }
            INLINE => no_address(&span).map(|()| Self::Inline { len_bytes }),
            ONE => Ok(Self::One(Reference::new(span.address.get(), len_bytes)?)),
            LIST => Ok(Self::List(get_list(&span, from)?)),
            unknown => Err(DecodeError::UnknownFlags(unknown)),
        }
    }
}

fn saturated(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
