//! Record marking (RFC 5531 §11): messages in a byte stream, each cut into fragments as its sender likes.

use std::ops::Range;

/// The four bytes before a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// True for the last fragment of a record.
    pub last: bool,
    /// Length of the fragment without its mark: at most 2³¹−1.
    pub len_bytes: u32,
}

impl Mark {
    /// What a mark takes up.
    pub const BYTES: usize = 4;
    const LAST: u32 = 1 << 31;

    /// The mark of a record that is one fragment of `len_bytes`; `None` beyond 2³¹−1.
    #[must_use]
    pub fn whole(len_bytes: usize) -> Option<Self> {
        let len_bytes = u32::try_from(len_bytes).ok().filter(|len| len & Self::LAST == 0)?;
        Some(Self { last: true, len_bytes })
    }

    /// From the wire.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self { last: word & Self::LAST != 0, len_bytes: word & !Self::LAST }
    }

    /// To the wire.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let last = if self.last { Self::LAST } else { 0 };
        (self.len_bytes & !Self::LAST | last).to_be_bytes()
    }
}

/// Why a byte stream is of no use any more. There is no way to find the next record: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record is longer than its receiver takes.
    #[error("record of at least {announced_bytes} bytes exceeds the limit of {limit_bytes}")]
    TooLong {
        /// The record's length as far as its marks have told it.
        announced_bytes: usize,
        /// The receiver's limit.
        limit_bytes: usize,
    },
}

/// What lies at the front of the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing of use yet.
    Nothing {
        /// With this many more received bytes there is something. Not more than one mark or one whole record
        /// needs.
        missing_bytes: usize,
    },
    /// A whole record, in one piece and in its place, as nearly every sender writes them.
    Record {
        /// Where it lies, counted from the front. The bytes up to its end are used up.
        body: Range<usize>,
    },
    /// Some bytes of a record that came in several fragments: append them to those before.
    Piece {
        /// Where they lie, counted from the front; possibly nowhere. The bytes up to their end are used up.
        body: Range<usize>,
        /// True when this completes the record.
        complete: bool,
    },
}

impl Found {
    /// Number of bytes at the front that are done with, once the caller has taken care of the body.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        match self {
            Self::Nothing { .. } => 0,
            Self::Record { body } | Self::Piece { body, .. } => body.end,
        }
    }
}

/// Finds records in received bytes, which stay where they are.
///
/// Its owner keeps the bytes and asks again with what is left, until there is [`Found::Nothing`]. A record of
/// one fragment is waited for and then told as a whole; the pieces of others are told as they come, so that
/// fragments of one byte cost no more memory than their bytes. No bytes are looked at but marks.
#[derive(Clone, Debug)]
pub struct Records {
    limit_bytes: usize,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// A record begins here.
    Start,
    /// `told_bytes` of a record were told, and a mark comes next.
    Between { told_bytes: usize },
    /// The same, and `left_bytes` of the present fragment are to come.
    Within { told_bytes: usize, left_bytes: usize, last: bool },
}

impl Records {
    /// Takes records of up to `limit_bytes`.
    #[must_use]
    pub const fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, state: State::Start }
    }

    /// Bytes of a record in pieces that were told so far: what its owner has glued.
    #[must_use]
    pub const fn told_bytes(&self) -> usize {
        match self.state {
            State::Start => 0,
            State::Between { told_bytes } | State::Within { told_bytes, .. } => told_bytes,
        }
    }

    /// Looks at what was received and not used up yet: `available_bytes` of it, of which `front` are the
    /// first (four suffice, or all if there are fewer).
    ///
    /// # Errors
    /// The record that comes is longer than the limit, whether or not its bytes have come.
    pub fn find(&mut self, front: &[u8], available_bytes: usize) -> Result<Found, RecordError> {
        match self.state {
            State::Start => self.start(front, available_bytes),
            State::Between { told_bytes } => match self.mark(front, told_bytes)? {
                Err(nothing) => Ok(nothing),
                Ok(mark) => {
                    let left_bytes = mark.len_bytes as usize;
                    Ok(self.piece(told_bytes, left_bytes, mark.last, Mark::BYTES, available_bytes))
                }
            },
            State::Within { told_bytes, left_bytes, last } => {
                if available_bytes == 0 {
                    return Ok(Found::Nothing { missing_bytes: 1 });
                }
                Ok(self.piece(told_bytes, left_bytes, last, 0, available_bytes))
            }
        }
    }

    fn start(&mut self, front: &[u8], available_bytes: usize) -> Result<Found, RecordError> {
        let mark = match self.mark(front, 0)? {
            Err(nothing) => return Ok(nothing),
            Ok(mark) => mark,
        };
        let len_bytes = mark.len_bytes as usize;
        if !mark.last {
            return Ok(self.piece(0, len_bytes, false, Mark::BYTES, available_bytes));
        }
        let end = Mark::BYTES.saturating_add(len_bytes);
        match end.checked_sub(available_bytes) {
            None | Some(0) => Ok(Found::Record { body: Mark::BYTES..end }),
            Some(missing_bytes) => Ok(Found::Nothing { missing_bytes }),
        }
    }

    /// The mark at the front, which may be cut off.
    fn mark(&self, front: &[u8], told_bytes: usize) -> Result<Result<Mark, Found>, RecordError> {
        let Some(bytes) = front.first_chunk() else {
            return Ok(Err(Found::Nothing { missing_bytes: Mark::BYTES.saturating_sub(front.len()) }));
        };
        let mark = Mark::from_bytes(*bytes);
        let announced_bytes = told_bytes.saturating_add(mark.len_bytes as usize);
        if announced_bytes > self.limit_bytes {
            return Err(RecordError::TooLong { announced_bytes, limit_bytes: self.limit_bytes });
        }
        Ok(Ok(mark))
    }

    /// Tells what is there of a fragment whose bytes begin at `from`.
    fn piece(
        &mut self,
        told_bytes: usize,
        left_bytes: usize,
        last: bool,
        from: usize,
        available: usize,
    ) -> Found {
        let len = left_bytes.min(available.saturating_sub(from));
        let told_bytes = told_bytes.saturating_add(len);
        let left_bytes = left_bytes - len;
        let complete = last && left_bytes == 0;
        self.state = match left_bytes {
            0 if last => State::Start,
            0 => State::Between { told_bytes },
            _ => State::Within { told_bytes, left_bytes, last },
        };
        Found::Piece { body: from..from.saturating_add(len), complete }
    }
}

/// [`Records`] with a memory of its own for records in pieces, where the received bytes are a slice: clients,
/// tests.
#[derive(Debug)]
pub struct RecordAssembler {
    records: Records,
    glued: Vec<u8>,
    complete: bool,
}

impl RecordAssembler {
    /// Takes records of up to `limit_bytes`.
    #[must_use]
    pub const fn new(limit_bytes: usize) -> Self {
        Self { records: Records::new(limit_bytes), glued: Vec::new(), complete: false }
    }

    /// Takes the next record off the front of `received`: the record if it is complete, borrowed from there
    /// or glued here. What is left in `received` must come again, with more bytes behind it.
    ///
    /// # Errors
    /// A record is longer than the limit.
    pub fn next<'r, 's: 'r>(&'r mut self, received: &mut &'s [u8]) -> Result<Option<&'r [u8]>, RecordError> {
        if std::mem::take(&mut self.complete) {
            self.glued.clear();
        }
        loop {
            let found = self.records.find(received, received.len())?;
            let (used, rest) = received.split_at_checked(found.used_bytes()).unwrap_or((received, &[]));
            *received = rest;
            match found {
                Found::Nothing { .. } => return Ok(None),
                Found::Record { body } => return Ok(Some(used.get(body).unwrap_or_default())),
                Found::Piece { body, complete } => {
                    self.glued.extend_from_slice(used.get(body).unwrap_or_default());
                    if complete {
                        self.complete = true;
                        return Ok(Some(&self.glued));
                    }
                }
            }
        }
    }
}
