//! Variable parts of messages: those of requests on their way out, and private copies of those of answers.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tombolo_shm::link::{Extent, FRAME_BYTES};

use tombolo_host_runtime::free_list::FreeList;

/// Longest variable part, in bytes.
pub const FRAME_MAX: usize = FRAME_BYTES as usize;

pub(super) type Buffer = Box<[u8; FRAME_MAX]>;

pub(super) fn new_buffer() -> Buffer {
    Box::new([0; FRAME_MAX])
}

/// `count` buffers for private copies. Only a caller that retains more answers than the line has ids makes it allocate.
pub(super) fn spare_buffers(count: usize) -> Arc<FreeList<Buffer>> {
    let buffers = FreeList::new(count);
    (0..count).for_each(|_| buffers.give_back(new_buffer()));
    Arc::new(buffers)
}

/// Takes the variable arguments of a request, straight to where the server reads them.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    target: Target<'a>,
    len: usize,
}

#[derive(Debug)]
enum Target<'a> {
    /// The request's buffer.
    Shared { own: &'a Extent, at: u64 },
    /// It has none yet.
    Private(&'a mut [u8; FRAME_MAX]),
}

impl<'a> FrameWriter<'a> {
    pub(super) fn shared(own: &'a Extent, at: u64) -> Self {
        Self { target: Target::Shared { own, at }, len: 0 }
    }

    pub(super) fn private(buffer: &'a mut [u8; FRAME_MAX]) -> Self {
        Self { target: Target::Private(buffer), len: 0 }
    }

    /// Adds bytes. What passes [`FRAME_MAX`] is not written, and makes the call fail.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        let from = self.len;
        self.len = from.saturating_add(bytes.len());
        if self.len > FRAME_MAX {
            return;
        }
        match &mut self.target {
            Target::Shared { own, at } => {
                let placed = own.write_at(*at + from as u64, bytes);
                debug_assert!(placed.is_ok(), "the layout was checked against the end");
            }
            Target::Private(buffer) => buffer[from..self.len].copy_from_slice(bytes),
        }
    }

    /// How many bytes were added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none were.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A private copy of the variable part of an answer: a slice of bytes.
#[derive(Default)]
pub struct Frame {
    held: Option<(Buffer, Arc<FreeList<Buffer>>)>,
    len: usize,
}

impl Frame {
    /// Copies `len` bytes, at most [`FRAME_MAX`], out of the peer's memory.
    #[inline]
    pub(super) fn copy(spare: &Arc<FreeList<Buffer>>, peer: &Extent, at: u64, len: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        let mut buffer = spare.take().unwrap_or_else(new_buffer);
        let len = len.min(FRAME_MAX);
        let copied = peer.read_at(at, &mut buffer[..len]);
        debug_assert!(copied.is_ok(), "the layout was checked against the end");
        Self { held: Some((buffer, spare.clone())), len }
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.held.as_ref().map_or(&[], |(buffer, _)| &buffer[..self.len])
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        if let Some((buffer, spare)) = self.held.take() {
            spare.give_back(buffer);
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len)
    }
}
