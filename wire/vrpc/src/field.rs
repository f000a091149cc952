//! What a field of a message is: where it lies in the body, which bits of the flags are its own, what it has
//! in the frame.
//!
//! `request.rs` and `reply.rs` are tables of fields; `fields.rs` and the files of the larger types say how
//! each type travels.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::{Items, Reader};
use crate::{BODY_BYTES, Body, DecodeError, EncodeError, FrameSink, Translate};

/// A value that is a field of a message. `As` tells apart the forms of types that have several.
pub(crate) trait Field<'a, As = Plain>: Sized {
    /// Its bytes in the body.
    const BYTES: usize = 0;
    /// What its offset in the body is a multiple of.
    const ALIGN: usize = 1;
    /// Its bits of the message's flags.
    const FLAGS: u32 = 0;

    /// Writes it, to the body at offset `at`.
    fn encode<W: FrameSink + ?Sized>(&self, at: usize, to: &mut Encoder<'_, W>) -> Result<(), EncodeError>;

    /// Reads it, from the body at offset `at`. Bits of the flags and bytes of the body that are no field's
    /// were refused before.
    fn decode(at: usize, from: &mut Decoder<'a>) -> Result<Self, DecodeError>;

    /// Gives the numbers of nodes and openings in it for those of the other side.
    #[inline]
    fn translate<T: Translate>(&mut self, _: &mut T) -> Result<(), T::Error> {
        Ok(())
    }
}

/// The form of most fields.
pub(crate) enum Plain {}
/// In the frame, of a type that otherwise lies in the body.
pub(crate) enum InFrame {}
/// This bit of the flags.
pub(crate) enum Bit<const MASK: u32> {}
/// A name in the body where it is short enough.
pub(crate) enum ShortName {}

/// Where a table's field lies: an offset in the body, or `frame`, or `flags`.
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

/// The form that a table gives a field.
macro_rules! form {
    () => {
        $crate::field::Plain
    };
    ($form:ty) => {
        $form
    };
}

pub(crate) use {form, offset};

/// A message as it is written.
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

    /// Writes to the body. All offsets are constants that [`Shape::new`] has checked.
    #[inline]
    pub fn put<T: IntoBytes + Immutable>(&mut self, at: usize, value: &T) {
        if let Some(room) = self.body.get_mut(at..at + size_of::<T>()) {
            room.copy_from_slice(value.as_bytes());
        }
    }

    /// Sets `mask` of the flags where `is_set`.
    #[inline]
    pub fn flag(&mut self, mask: u32, is_set: bool) {
        self.flags |= if is_set { mask } else { 0 };
    }
}

/// A message as it is read, from private memory.
pub(crate) struct Decoder<'a> {
    pub body: &'a Body,
    pub flags: u32,
    pub frame: Reader<'a>,
}

impl<'a> Decoder<'a> {
    /// Reads from the body; offsets as in [`Encoder::put`]. It is copied from where it lies: in a `Result` it
    /// would lie behind one byte, and be moved in parts.
    #[inline]
    pub fn get<T: FromBytes + Unaligned + Immutable + KnownLayout + Copy>(&self, at: usize) -> T {
        match T::ref_from_bytes(self.bytes(at, size_of::<T>())) {
            Ok(value) => *value,
            Err(_) => T::new_zeroed(),
        }
    }

    /// As [`get`](Self::get), where it lies.
    #[inline]
    pub fn bytes(&self, at: usize, len: usize) -> &'a [u8] {
        self.body.get(at..at + len).unwrap_or_default()
    }

    /// The next item of the frame.
    #[inline]
    pub fn item<T: FromBytes + Unaligned + Immutable + KnownLayout>(&mut self) -> Result<&'a T, DecodeError> {
        self.frame.item()
    }

    #[inline]
    pub fn has(&self, mask: u32) -> bool {
        self.flags & mask != 0
    }

    /// Refuses flags and bytes of the body that have no meaning in this message.
    #[inline]
    pub fn check(&self, shape: &Shape) -> Result<(), DecodeError> {
        match self.flags & !shape.flags {
            0 => shape.check_reserved(self.body),
            unknown => Err(DecodeError::UnknownFlags(unknown)),
        }
    }
}

/// Offset, name and bytes in the body of a row's fields, to be compared with the documentation.
#[cfg(test)]
pub(crate) type Fields = &'static [(usize, &'static str, usize)];

/// Which bytes of the body and which flags a message has.
pub(crate) struct Shape {
    flags: u32,
    /// Ones where nothing may be said.
    reserved: Body,
}

impl Shape {
    /// Of a message whose head and tail are `ends`, with `fields`: offset, bytes and alignment of each. Does
    /// not compile for fields that overlap, or do not lie at a multiple of their alignment.
    pub const fn new(ends: &[(usize, usize, usize)], fields: &[(usize, usize, usize)], flags: u32) -> Self {
        Self { flags, reserved: without(without([0xff; BODY_BYTES], ends), fields) }
    }

    /// It looks at all bytes, which is quicker than stopping at the first.
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
