//! What went wrong, and where.

use std::fmt;

use thiserror::Error as ThisError;
use tombolo_core::Error;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asking a disk what lies where.
    Map,
    /// Reading the source, or the first of two that are compared.
    Read,
    /// Reading the copy, or the second of two that are compared.
    ReadCopy,
    /// Writing.
    Write,
    /// Writing zeroes.
    Zero,
    /// Making durable what was written before.
    Flush,
    /// Keeping a record of what is durable.
    Record,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Map => "find out what lies",
            Self::Read | Self::ReadCopy => "read",
            Self::Write => "write",
            Self::Zero => "write zeroes",
            Self::Flush => "make durable what lies",
            Self::Record => "keep a record of what lies",
        })
    }
}

/// A failure of an operation on a disk.
#[derive(Debug, ThisError)]
#[error("cannot {step} at offset {offset}")]
pub struct Fault {
    /// What was being done.
    pub step: Step,
    /// Where, in bytes from the disk's beginning: of a flush, up to where all was to be durable.
    pub offset: u64,
    /// What the disk said.
    #[source]
    pub error: Error,
}

impl Fault {
    /// One of this step at this place, of whatever is reported.
    pub(super) fn at(step: Step, offset: u64) -> impl FnOnce(Error) -> Self {
        move |error| Self { step, offset, error }
    }
}
