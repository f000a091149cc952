//! Encoding of a message's fields: bytes in the body, flag bits, items of the frame.
//!
//! `request.rs` and `reply.rs` are tables of fields; `fields.rs` and the files of the larger types implement
//! the encoding of each type.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::{Items, Reader};
use crate::{BODY_BYTES, Body, DecodeError, EncodeError, FrameSink, Translate};

/// A type that can be a field of a message. `As` distinguishes several encodings of one type.
pub(crate) trait Field<'a, As = Plain>: Sized {
    /// Size in the body, in bytes; 0 for a field that is only in the flags or the frame.
    const BYTES: usize = 0;
    /// Alignment in the body.
    const ALIGN: usize = 1;
    /// Bits of the message's flags that the field uses.
    const FLAGS: u32 = 0;

    /// Encodes the value: its part of the body at offset `at`, its bits of the flags, and its items as the
    /// next of the frame.
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError>;

    /// Decodes the value: its part of the body at offset `at`, its bits of the flags, and its items as the
    /// next of the frame. Flag bits and body bytes outside of all fields have been refused before.
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError>;

    /// Replaces the ids of nodes and openings in the value with those that `to` maps them to; fails for an
    /// id without a counterpart.
    #[inline]
    fn translate<T: Translate>(&mut self, _: &mut T) -> Result<(), T::Error> {
        Ok(())
    }
}

/// The default encoding of a type.
pub(crate) enum Plain {}
/// Encoding in the frame, of a type that is otherwise in the body.
pub(crate) enum InFrame {}
/// Encoding as this bit of the flags.
pub(crate) enum Bit<const MASK: u32> {}
/// Encoding of a name in the body if it has at most 27 bytes, otherwise in the frame.
pub(crate) enum ShortName {}

/// Converts the place of a field in a table to its offset in the body; 0 for `frame` and `flags`, where the
/// field has no part in the body.
macro_rules! offset {
    (frame) => {
        0
    };
    (flags) => {
        0
    };
    ($at:literal) => {
        $at
    };
}

/// Converts the optional `as` of a field in a table to the `As` of its encoding; [`Plain`] without one.
macro_rules! form {
    () => {
        $crate::field::Plain
    };
    ($form:ty) => {
        $form
    };
}

pub(crate) use {form, offset};

/// A message being encoded: its body, its flags, and the items of its frame.
pub(crate) struct Encoder<'f, W: ?Sized> {
    body: &'f mut Body,
    pub flags: u32,
    pub frame: Items<'f, W>,
}

impl<'f, W: FrameSink + ?Sized> Encoder<'f, W> {
    #[inline]
    pub fn new(body: &'f mut Body, frame: &'f mut W) -> Self {
        *body = [0; BODY_BYTES];
        Self { body, flags: 0, frame: Items::new(frame) }
    }

    /// Writes `value` to the body at `at`, one of the offsets that [`Shape::new`] has checked at compile
    /// time.
    #[inline]
    pub fn put<T: IntoBytes + Immutable>(&mut self, at: usize, value: &T) {
        if let Some(space) = self.body.get_mut(at..at + size_of::<T>()) {
            space.copy_from_slice(value.as_bytes());
        }
    }

    /// Sets `mask` in the flags if `is_set`.
    #[inline]
    pub fn flag(&mut self, mask: u32, is_set: bool) {
        self.flags |= if is_set { mask } else { 0 };
    }
}

/// A message being decoded, in private memory.
pub(crate) struct Decoder<'a> {
    pub body: &'a Body,
    pub flags: u32,
    pub frame: Reader<'a>,
}

impl<'a> Decoder<'a> {
    /// Reads from the body at `at`, one of the offsets that [`Shape::new`] has checked. The value is not
    /// returned in a `Result`, in which it would be misaligned by one byte and moved in parts.
    #[inline]
    pub fn get<T: FromBytes + Unaligned + Immutable + KnownLayout + Copy>(&self, at: usize) -> T {
        match T::ref_from_bytes(self.bytes(at, size_of::<T>())) {
            Ok(value) => *value,
            Err(_) => T::new_zeroed(),
        }
    }

    /// Returns bytes of the body at `at`, one of the offsets that [`Shape::new`] has checked.
    #[inline]
    pub fn bytes(&self, at: usize, len: usize) -> &'a [u8] {
        self.body.get(at..at + len).unwrap_or_default()
    }

    #[inline]
    pub fn item<T: FromBytes + Unaligned + Immutable + KnownLayout>(&mut self) -> Result<&'a T, DecodeError> {
        self.frame.item()
    }

    #[inline]
    pub fn has(&self, mask: u32) -> bool {
        self.flags & mask != 0
    }

    /// Refuses flags and body bytes that are undefined for this message.
    #[inline]
    pub fn check(&self, shape: &Shape) -> Result<(), DecodeError> {
        match self.flags & !shape.flags {
            0 => shape.check_reserved(self.body),
            unknown => Err(DecodeError::UnknownFlags(unknown)),
        }
    }
}

/// Offset, name and length of a row's fields in the body, for comparison with the documentation.
#[cfg(test)]
pub(crate) type Fields = &'static [(usize, &'static str, usize)];

/// The body bytes and flags that are defined for one kind of message; all others must be zero.
pub(crate) struct Shape {
    flags: u32,
    /// Ones in all bits that must be zero.
    reserved: Body,
}

impl Shape {
    /// Returns the shape of a message with the common parts `ends` (of a request its number and tail, of a
    /// reply its head) and `fields`: offset, length and alignment of each. Fails to compile if any overlap or
    /// are misaligned.
    pub const fn new(ends: &[(usize, usize, usize)], fields: &[(usize, usize, usize)], flags: u32) -> Self {
        Self { flags, reserved: without(without([0xff; BODY_BYTES], ends), fields) }
    }

    /// Fails unless all reserved bytes are zero. Examining all of them is faster than stopping at the first.
    #[inline]
    fn check_reserved(&self, body: &Body) -> Result<(), DecodeError> {
        let (words, _) = body.as_chunks();
        let (masks, _) = self.reserved.as_chunks();
        let all = words
            .iter()
            .zip(masks)
            .fold(0, |all, (word, mask)| all | (u64::from_ne_bytes(*word) & u64::from_ne_bytes(*mask)));
        if all == 0 { Ok(()) } else { Err(DecodeError::Reserved) }
    }
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn without(mut reserved: Body, fields: &[(usize, usize, usize)]) -> Body {
    let mut field = 0;
    while field < fields.len() {
        let (at, bytes, align) = fields[field];
        assert!(at.is_multiple_of(align), "a field that is not aligned");
        let mut byte = at;
        while byte < at + bytes {
            assert!(reserved[byte] != 0, "two fields in the same place");
            reserved[byte] = 0;
            byte += 1;
        }
        field += 1;
    }
    reserved
}
