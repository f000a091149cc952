//! Bulk memory that a request uses.

use smallvec::SmallVec;
use tombolo_shm::area::Span;

/// Bulk memory that a request uses, of either area. It belongs to the call until the server has answered, also if nobody wants the
/// answer any more: the server may write there until then.
#[derive(Debug, Default)]
pub struct Spans(SmallVec<[Span; 2]>);

impl Spans {
    /// No memory.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a span. Up to two need no allocation.
    pub fn push(&mut self, span: Span) {
        self.0.push(span);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One of them, in the order in which they were added.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<&Span> {
        self.0.get(index)
    }
}

impl From<Span> for Spans {
    fn from(span: Span) -> Self {
        let mut spans = Self::none();
        spans.push(span);
        spans
    }
}
