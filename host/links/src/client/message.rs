//! Parts of requests and answers: variable parts, bulk memory, and replies.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_shm::area::Span;
use tombolo_shm::link::{Extent, FRAME_BYTES};

use crate::forwarding::Loan;
use tombolo_host_runtime::free_list::FreeList;

/// Maximum length of a variable part, in bytes.
pub const FRAME_MAX: usize = FRAME_BYTES as usize;

pub(super) type Buffer = Box<[u8; FRAME_MAX]>;

pub(super) fn new_buffer() -> Buffer {
    Box::new([0; FRAME_MAX])
}

/// Returns `count` buffers for private copies. More are allocated only while queued requests, and answers
/// that callers retain, together exceed `count`.
pub(super) fn spare_buffers(count: usize) -> Arc<FreeList<Buffer>> {
    let buffers = FreeList::new(count);
    (0..count).for_each(|_| buffers.give_back(new_buffer()));
    Arc::new(buffers)
}

/// A writer of a request's variable arguments: straight to the memory that the server reads, or to a private
/// buffer for a queued request.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    target: Target<'a>,
    len: usize,
}

#[derive(Debug)]
enum Target<'a> {
    /// The request's buffer.
    Shared { own: &'a Extent, at: u64 },
    /// A private buffer, for a queued request.
    Private(&'a mut [u8; FRAME_MAX]),
}

impl<'a> FrameWriter<'a> {
    pub(super) fn shared(own: &'a Extent, at: u64) -> Self {
        Self { target: Target::Shared { own, at }, len: 0 }
    }

    pub(super) fn private(buffer: &'a mut [u8; FRAME_MAX]) -> Self {
        Self { target: Target::Private(buffer), len: 0 }
    }

    /// Appends bytes. Beyond [`FRAME_MAX`] nothing is written, and the call with these arguments fails.
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

    /// Returns the number of bytes appended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if no bytes were appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A private copy of the variable part of an answer: a slice of bytes.
#[derive(Default)]
pub struct Frame {
    buffer: Option<(Buffer, Arc<FreeList<Buffer>>)>,
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
        Self { buffer: Some((buffer, spare.clone())), len }
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |(buffer, _)| &buffer[..self.len])
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        if let Some((buffer, spare)) = self.buffer.take() {
            spare.give_back(buffer);
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len)
    }
}

/// The server's answer: immutable private copies, except for the contents of the spans.
#[derive(Debug)]
pub struct Reply {
    /// Status, or type of the answer.
    pub kind: u32,
    /// Results of fixed length, encoded as the link's protocol specifies.
    pub body: [u8; 48],
    /// Results of variable length.
    pub frame: Frame,
    /// Bulk memory of the call, reused by other calls once it is dropped.
    pub spans: Spans,
}

/// An answer as taken out of the ring.
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

/// Bulk memory used by a request: in this side's region, in the server's, or another domain's. It belongs to
/// the call until the server has answered, even if the call was dropped: the server may access it until then.
#[derive(Debug, Default)]
pub struct Spans {
    spans: SmallVec<[Span; 2]>,
    /// Use of another domain's memory, if the request refers to any.
    _loan: Option<Loan>,
}

impl Spans {
    /// Returns an empty list of spans, without a loan.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a span. Up to two need no allocation.
    pub fn push(&mut self, span: Span) {
        self.spans.push(span);
    }

    /// Returns the number of spans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns `true` if there is no span.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the span that was added as number `index`, from 0.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<&Span> {
        self.spans.get(index)
    }
}

/// Memory of another domain, without spans.
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
