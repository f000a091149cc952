//! What a request and its answer are made of: variable parts, bulk memory, and the answer as its caller gets
//! it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_shm::area::Span;
use tombolo_shm::link::{Extent, FRAME_BYTES};

use crate::forwarding::Loan;
use tombolo_host_runtime::free_list::FreeList;

/// Longest variable part, in bytes.
pub const FRAME_MAX: usize = FRAME_BYTES as usize;

pub(super) type Buffer = Box<[u8; FRAME_MAX]>;

pub(super) fn new_buffer() -> Buffer {
    Box::new([0; FRAME_MAX])
}

/// `count` buffers for private copies. Only a caller that retains more answers than the line has ids makes it
/// allocate.
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

/// What the server answered. Private copies: nothing in it can change any more, but for what lies in the
/// spans.
#[derive(Debug)]
pub struct Reply {
    /// How it went, or what it is.
    pub kind: u32,
    /// Results of fixed length.
    pub body: [u8; 48],
    /// Results of variable length.
    pub frame: Frame,
    /// The bulk memory of the call. Once it is dropped another call may use it.
    pub spans: Spans,
}

/// As it came out of the ring.
#[derive(Debug)]
pub(super) struct RawReply {
    pub(super) kind: u32,
    pub(super) body: [u8; 48],
    pub(super) frame: Frame,
}

impl RawReply {
    pub(super) fn with(self, spans: Spans) -> Reply {
        Reply { kind: self.kind, body: self.body, frame: self.frame, spans }
    }
}

/// Bulk memory that a request uses, of either area. It belongs to the call until the server has answered,
/// also when the call was dropped: the server may write there until then.
#[derive(Debug, Default)]
pub struct Spans {
    spans: SmallVec<[Span; 2]>,
    /// Memory of another domain.
    _loan: Option<Loan>,
}

impl Spans {
    /// No memory.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a span. Up to two need no allocation.
    pub fn push(&mut self, span: Span) {
        self.spans.push(span);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// One of them, in the order in which they were added.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<&Span> {
        self.spans.get(index)
    }
}

/// No span, and memory of another domain.
impl From<Loan> for Spans {
    fn from(loan: Loan) -> Self {
        Self { _loan: Some(loan), ..Self::none() }
    }
}

impl From<Span> for Spans {
    fn from(span: Span) -> Self {
        let mut spans = Self::none();
        spans.push(span);
        spans
    }
}
