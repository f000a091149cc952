//! Bulk memory that a request uses.

use smallvec::SmallVec;
use tombolo_shm::area::Span;

use crate::forwarding::Loan;

/// Bulk memory that a request uses, of either area. It belongs to the call until the server has answered, also when the call was dropped:
/// the server may write there until then.
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
