//! Record marking (RFC 5531 §11): messages in a byte stream, each divided into fragments.

use std::ops::Range;

/// The four bytes before a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// `true` for the last fragment of a record.
    pub last: bool,
    /// Length of the fragment without its mark: at most 2³¹−1.
    pub len_bytes: u32,
}

impl Mark {
    /// Length of a mark, in bytes.
    pub const BYTES: usize = 4;
    const LAST: u32 = 1 << 31;

    /// Returns the mark of a record with a single fragment of `len_bytes`; `None` beyond 2³¹−1.
    #[must_use]
    pub fn whole(len_bytes: usize) -> Option<Self> {
        let len_bytes = u32::try_from(len_bytes).ok().filter(|len| len & Self::LAST == 0)?;
        Some(Self { last: true, len_bytes })
    }

    /// Decodes a mark. All values are valid.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self { last: word & Self::LAST != 0, len_bytes: word & !Self::LAST }
    }

    /// Encodes the mark.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let last = if self.last { Self::LAST } else { 0 };
        (self.len_bytes & !Self::LAST | last).to_be_bytes()
    }
}

/// A fatal error of a byte stream: the next record cannot be found, so the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record exceeds the receiver's limit.
    #[error("record of at least {announced_bytes} bytes exceeds the limit of {limit_bytes}")]
    TooLong {
        /// Length of the record according to the marks received so far.
        announced_bytes: usize,
        /// Limit that the receiver has set, in bytes.
        limit_bytes: usize,
    },
}

/// The result of [`Records::find`]: what the received bytes begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordScan {
    /// The bytes contain no complete record.
    Nothing {
        /// Number of further bytes required for another result; at most one mark or one whole record.
        missing_bytes: usize,
    },
    /// A whole record in one fragment, as nearly every sender writes them.
    Record {
        /// Position of the record, without its mark, relative to the front. The bytes up to its end are
        /// consumed.
        body: Range<usize>,
    },
    /// A part of a fragmented record, to be appended to the preceding parts.
    Piece {
        /// Position of the part, relative to the front; possibly empty. The bytes up to its end are consumed.
        body: Range<usize>,
        /// `true` if the part completes the record.
        complete: bool,
    },
}

impl RecordScan {
    /// Returns the number of consumed bytes at the front, once the caller has processed the body.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        match self {
            Self::Nothing { .. } => 0,
            Self::Record { body } | Self::Piece { body, .. } => body.end,
        }
    }
}

/// A parser that finds records in received bytes, without copying them.
///
/// The owner retains the bytes and calls again with the remaining ones, until the result is
/// [`RecordScan::Nothing`]. A record of one fragment is returned when complete; a fragmented record is
/// returned in parts as they arrive, so that fragments of one byte cost no more memory than their bytes. Only
/// marks are examined.
#[derive(Clone, Debug)]
pub struct Records {
    limit_bytes: usize,
    state: RecordState,
}

#[derive(Clone, Copy, Debug)]
enum RecordState {
    /// At the beginning of a record.
    Start,
    /// Before a mark; `returned_bytes` of the record have been returned.
    Between { returned_bytes: usize },
    /// Within a fragment; `remaining_bytes` of it have not been returned.
    Within { returned_bytes: usize, remaining_bytes: usize, last: bool },
}

impl Records {
    /// Returns a parser of records of up to `limit_bytes`.
    #[must_use]
    pub const fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, state: RecordState::Start }
    }

    /// Returns the number of bytes returned so far of the current fragmented record; 0 if there is none.
    #[must_use]
    pub const fn returned_bytes(&self) -> usize {
        match self.state {
            RecordState::Start => 0,
            RecordState::Between { returned_bytes } | RecordState::Within { returned_bytes, .. } => {
                returned_bytes
            }
        }
    }

    /// Examines the unconsumed received bytes: there are `available_bytes`, and `front` are the first of them
    /// (four suffice, or all if there are fewer).
    ///
    /// # Errors
    /// The record exceeds the limit, whether or not its bytes have arrived.
    pub fn find(&mut self, front: &[u8], available_bytes: usize) -> Result<RecordScan, RecordError> {
        match self.state {
            RecordState::Start => self.start(front, available_bytes),
            RecordState::Between { returned_bytes } => match self.mark(front, returned_bytes)? {
                Err(nothing) => Ok(nothing),
                Ok(mark) => {
                    let remaining_bytes = mark.len_bytes as usize;
                    Ok(self.piece(returned_bytes, remaining_bytes, mark.last, Mark::BYTES, available_bytes))
                }
            },
            RecordState::Within { returned_bytes, remaining_bytes, last } => {
                if available_bytes == 0 {
                    return Ok(RecordScan::Nothing { missing_bytes: 1 });
                }
                Ok(self.piece(returned_bytes, remaining_bytes, last, 0, available_bytes))
            }
        }
    }

    fn start(&mut self, front: &[u8], available_bytes: usize) -> Result<RecordScan, RecordError> {
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
            None | Some(0) => Ok(RecordScan::Record { body: Mark::BYTES..end }),
            Some(missing_bytes) => Ok(RecordScan::Nothing { missing_bytes }),
        }
    }

    /// Decodes the mark at the front. The inner error is [`RecordScan::Nothing`], for an incomplete mark.
    fn mark(&self, front: &[u8], returned_bytes: usize) -> Result<Result<Mark, RecordScan>, RecordError> {
        let Some(bytes) = front.first_chunk() else {
            return Ok(Err(RecordScan::Nothing { missing_bytes: Mark::BYTES.saturating_sub(front.len()) }));
        };
        let mark = Mark::from_bytes(*bytes);
        let announced_bytes = returned_bytes.saturating_add(mark.len_bytes as usize);
        if announced_bytes > self.limit_bytes {
            return Err(RecordError::TooLong { announced_bytes, limit_bytes: self.limit_bytes });
        }
        Ok(Ok(mark))
    }

    /// Returns the available part of a fragment, whose bytes begin at `from`, and advances past it.
    fn piece(
        &mut self,
        returned_bytes: usize,
        remaining_bytes: usize,
        last: bool,
        from: usize,
        available: usize,
    ) -> RecordScan {
        let len = remaining_bytes.min(available.saturating_sub(from));
        let returned_bytes = returned_bytes.saturating_add(len);
        let remaining_bytes = remaining_bytes - len;
        let complete = last && remaining_bytes == 0;
        self.state = match remaining_bytes {
            0 if last => RecordState::Start,
            0 => RecordState::Between { returned_bytes },
            _ => RecordState::Within { returned_bytes, remaining_bytes, last },
        };
        RecordScan::Piece { body: from..from.saturating_add(len), complete }
    }
}

/// A wrapper of [`Records`] with a buffer for fragmented records, for received bytes in a slice.
#[derive(Debug)]
pub struct RecordAssembler {
    records: Records,
    assembled: Vec<u8>,
    complete: bool,
}

impl RecordAssembler {
    /// Returns an assembler of records of up to `limit_bytes`.
    #[must_use]
    pub const fn new(limit_bytes: usize) -> Self {
        Self { records: Records::new(limit_bytes), assembled: Vec::new(), complete: false }
    }

    /// Removes the next record from the front of `received`: returns it if complete, borrowed from there or
    /// from the buffer. The bytes left in `received` must be passed again, followed by further ones.
    ///
    /// # Errors
    /// A record exceeds the limit.
    pub fn next<'r, 's: 'r>(&'r mut self, received: &mut &'s [u8]) -> Result<Option<&'r [u8]>, RecordError> {
        if std::mem::take(&mut self.complete) {
            self.assembled.clear();
        }
        loop {
            let found = self.records.find(received, received.len())?;
            let (used, rest) = received.split_at_checked(found.used_bytes()).unwrap_or((received, &[]));
            *received = rest;
            match found {
                RecordScan::Nothing { .. } => return Ok(None),
                RecordScan::Record { body } => return Ok(Some(used.get(body).unwrap_or_default())),
                RecordScan::Piece { body, complete } => {
                    self.assembled.extend_from_slice(used.get(body).unwrap_or_default());
                    if complete {
                        self.complete = true;
                        return Ok(Some(&self.assembled));
                    }
                }
            }
        }
    }
}
