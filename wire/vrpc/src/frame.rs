//! The frame of a message: consecutive items, each aligned to eight bytes.

use tombolo_mem::Sink;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{DecodeError, EncodeError, FRAME_BYTES};

/// Alignment of the items of a frame.
pub(crate) const ALIGN: usize = 8;

/// A destination of frames: the buffer of a request in shared memory, or a private one.
pub trait FrameSink {
    /// Returns the number of bytes that can still be appended.
    fn room_bytes(&self) -> usize;

    /// Appends all of `bytes`. Returns `false`, appending nothing, if there is not enough space.
    #[must_use]
    fn append(&mut self, bytes: &[u8]) -> bool;
}

/// A frame in private memory, for a caller that copies it to shared memory afterwards.
#[derive(Debug)]
pub struct FrameBuf<'a> {
    memory: &'a mut [u8],
    len: usize,
}

impl<'a> FrameBuf<'a> {
    /// Returns an empty frame in `memory`, of which at most [`FRAME_BYTES`] are used.
    pub fn new(memory: &'a mut [u8]) -> Self {
        let len = memory.len().min(FRAME_BYTES);
        let (memory, _) = memory.split_at_mut(len);
        Self { memory, len: 0 }
    }

    /// Returns the bytes written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.memory.get(..self.len).unwrap_or_default()
    }
}

impl FrameSink for FrameBuf<'_> {
    fn room_bytes(&self) -> usize {
        self.memory.len() - self.len
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(end) = self.len.checked_add(bytes.len()) else { return false };
        let Some(space) = self.memory.get_mut(self.len..end) else { return false };
        space.copy_from_slice(bytes);
        self.len = end;
        true
    }
}

/// A frame, or a listing of any size, written directly into memory that the peer may see.
#[derive(Debug)]
pub struct SinkFrame<'a> {
    sink: &'a Sink,
    len: usize,
}

impl<'a> SinkFrame<'a> {
    /// Returns a frame at the start of `sink`.
    #[must_use]
    pub fn new(sink: &'a Sink) -> Self {
        Self { sink, len: 0 }
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl FrameSink for SinkFrame<'_> {
    fn room_bytes(&self) -> usize {
        self.sink.len() - self.len
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        if self.room_bytes() < bytes.len() {
            return false;
        }
        self.len += self.sink.write_at(self.len, bytes);
        true
    }
}

/// An encoder of items, each aligned to [`ALIGN`] in the frame.
pub(crate) struct Items<'f, W: ?Sized> {
    frame: &'f mut W,
    len: usize,
}

impl<'f, W: FrameSink + ?Sized> Items<'f, W> {
    pub fn new(frame: &'f mut W) -> Self {
        Self { frame, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn fits(&self, len: usize) -> bool {
        len.checked_add(padding(self.len)).is_some_and(|len| len <= self.frame.room_bytes())
    }

    /// Appends an item at the next multiple of [`ALIGN`].
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let padding = [0; ALIGN].split_at(padding(self.len)).0;
        let fits = padding.is_empty() || self.frame.append(padding);
        if !(fits && self.frame.append(bytes)) {
            return Err(EncodeError::FrameFull);
        }
        self.len += padding.len() + bytes.len();
        Ok(())
    }

    pub fn item<T: IntoBytes + Immutable>(&mut self, item: &T) -> Result<(), EncodeError> {
        self.bytes(item.as_bytes())
    }

    /// Aligns the frame for `len_bytes` bytes that the caller will append itself, and checks that they fit
    /// the maximum length of a frame.
    pub fn follows(&mut self, len_bytes: u32) -> Result<(), EncodeError> {
        let padding = if len_bytes == 0 { 0 } else { padding(self.len) };
        let end = (self.len + padding).checked_add(len_bytes as usize);
        if end.is_none_or(|end| end > FRAME_BYTES) || !self.frame.append([0; ALIGN].split_at(padding).0) {
            return Err(EncodeError::FrameFull);
        }
        self.len += padding;
        Ok(())
    }

    /// Appends an item without alignment: the next one of a list whose items are smaller than the alignment.
    pub fn next_of_list<T: IntoBytes + Immutable>(&mut self, item: &T) -> Result<(), EncodeError> {
        let bytes = item.as_bytes();
        if !self.frame.append(bytes) {
            return Err(EncodeError::FrameFull);
        }
        self.len += bytes.len();
        Ok(())
    }
}

/// A decoder of items, each aligned to [`ALIGN`] in the frame.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub fn new(frame: &'a [u8]) -> Result<Self, DecodeError> {
        match frame.len().checked_sub(FRAME_BYTES) {
            None | Some(0) => Ok(Self { rest: frame, position: 0 }),
            Some(extra_bytes) => Err(DecodeError::FrameLong { extra_bytes }),
        }
    }

    /// Returns a decoder without a limit on the length, for listings in bulk memory.
    pub fn of_listing(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, position: 0 }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next item, of `len` bytes; the padding before it must be zero.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        if len == 0 {
            return Ok(&[]);
        }
        zero(self.raw(padding(self.position))?)?;
        self.raw(len)
    }

    pub fn item<T: FromBytes + Unaligned + Immutable + KnownLayout>(&mut self) -> Result<&'a T, DecodeError> {
        let bytes = self.bytes(size_of::<T>())?;
        T::ref_from_bytes(bytes).map_err(|_| DecodeError::FrameShort { missing_bytes: size_of::<T>() })
    }

    #[inline]
    pub fn list<T: FromBytes + Unaligned + Immutable + KnownLayout>(
        &mut self,
        len: usize,
    ) -> Result<&'a [T], DecodeError> {
        let len_bytes = len.checked_mul(size_of::<T>()).ok_or(DecodeError::ListLength(len as u64))?;
        let bytes = self.bytes(len_bytes)?;
        <[T]>::ref_from_bytes(bytes).map_err(|_| DecodeError::ListLength(len as u64))
    }

    /// Returns the remaining bytes as one list, whose length follows from the length of the frame.
    #[inline]
    pub fn rest_as_list<T: FromBytes + Unaligned + Immutable + KnownLayout>(
        &mut self,
    ) -> Result<&'a [T], DecodeError> {
        let len = self.rest.len().saturating_sub(padding(self.position)) / size_of::<T>();
        self.list(len)
    }

    /// Returns all that follows, to be decoded with [`of_listing`](Self::of_listing).
    pub fn rest(&mut self) -> &'a [u8] {
        self.position += self.rest.len();
        std::mem::take(&mut self.rest)
    }

    /// Fails unless everything was decoded.
    #[inline]
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            extra_bytes => Err(DecodeError::FrameLong { extra_bytes }),
        }
    }

    fn raw(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(DecodeError::FrameShort { missing_bytes: len.saturating_sub(self.rest.len()) });
        };
        self.rest = rest;
        self.position += len;
        Ok(bytes)
    }
}

/// Returns the number of bytes from `position` to the next multiple of [`ALIGN`].
fn padding(position: usize) -> usize {
    position.wrapping_neg() % ALIGN
}

/// Refuses nonzero reserved bytes. Examining all of them is faster than stopping at the first.
#[inline]
pub(crate) fn zero(reserved: &[u8]) -> Result<(), DecodeError> {
    let (words, bytes) = reserved.as_chunks();
    let words = words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word));
    match bytes.iter().fold(words, |all, byte| all | u64::from(*byte)) {
        0 => Ok(()),
        _ => Err(DecodeError::Reserved),
    }
}
