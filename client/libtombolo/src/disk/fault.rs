//! Failures of disk operations, with their position.

use std::fmt;

use thiserror::Error as ThisError;
use tombolo_core::Error;

/// Steps of an operation on a disk, one of which failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Querying a disk's allocation map.
    Map,
    /// Reading the source, or the first of two disks compared.
    Read,
    /// Reading the copy, or the second of two disks compared.
    ReadCopy,
    /// Writing data to the target.
    Write,
    /// Writing zeroes.
    Zero,
    /// Making earlier writes durable.
    Flush,
    /// Recording what is durable.
    Record,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Map => "query the allocation",
            Self::Read | Self::ReadCopy => "read",
            Self::Write => "write",
            Self::Zero => "write zeroes",
            Self::Flush => "make data durable",
            Self::Record => "record the progress",
        })
    }
}

/// A failure of an operation on a disk.
#[derive(Debug, ThisError)]
#[error("cannot {step} at offset {offset}")]
pub struct Fault {
    /// The step that failed.
    pub step: Step,
    /// Offset from the disk's beginning in bytes; for a flush or a record, the end of what was to be durable.
    pub offset: u64,
    /// Cause of the failure.
    #[source]
    pub error: Error,
}

impl Fault {
    /// Returns a conversion of an error into a fault of this step at this offset.
    pub(super) fn at(step: Step, offset: u64) -> impl FnOnce(Error) -> Self {
        move |error| Self { step, offset, error }
    }
}
