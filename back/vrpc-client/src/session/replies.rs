//! Extraction of results from replies.

use tombolo_core::fs::{Created, Entry, Made, OpenFlags, Written};
use tombolo_core::{Identity, Result};
use tombolo_wire_vrpc::Reply;

use crate::link::Link;
use crate::reply::Answered;

/// Extracts the value of a reply of one kind.
macro_rules! pick {
    ($variant:ident) => {
        |reply| match reply {
            Reply::$variant(value) => Some(value),
            _ => None,
        }
    };
}
pub(super) use pick;

/// Returns the entry of a node.
#[expect(clippy::needless_pass_by_value, reason = "so that it can be passed on as it is")]
pub(super) fn entry(link: &Link, answered: Answered) -> Result<Entry> {
    match answered.success(link)? {
        Reply::Entry(entry, handle) => Ok(link.adopt(entry, handle)),
        _ => Err(link.protocol_violation("a reply of another kind")),
    }
}

/// Returns a created node.
#[expect(clippy::needless_pass_by_value, reason = "so that it can be passed on as it is")]
pub(super) fn made(link: &Link, answered: Answered) -> Result<Made> {
    match answered.success(link)? {
        Reply::Made(made, handle) => Ok(Made { entry: link.adopt(made.entry, handle), ..made }),
        _ => Err(link.protocol_violation("a reply of another kind")),
    }
}

/// Returns a created and opened file.
pub(super) fn created(
    link: &Link,
    answered: &Answered,
    flags: OpenFlags,
    opener: Identity,
) -> Result<Created> {
    match answered.success(link)? {
        Reply::Created(created, handle) => {
            let entry = link.adopt(created.entry, handle);
            Ok(Created { entry, open: link.opened(entry.node, flags, opener, created.open), ..created })
        }
        _ => Err(link.protocol_violation("a reply of another kind")),
    }
}

/// Returns a link target, a value or a list of names.
pub(super) fn bytes(link: &Link, answered: &Answered, limit_bytes: usize) -> Result<Vec<u8>> {
    match answered.success(link)? {
        Reply::Bytes(returned) => answered.bytes(link, &returned, limit_bytes),
        _ => Err(link.protocol_violation("a reply of another kind")),
    }
}

/// Length of a piece, and its result.
pub(super) type Piece<T> = (usize, T);

/// Returns the result of a WRITE of at most `limit` bytes.
pub(crate) fn written(link: &Link, answered: &Answered, limit: usize) -> Result<Written> {
    let written = answered.extract(link, pick!(Written))?;
    match written.count <= limit {
        true => Ok(written),
        false => Err(link.protocol_violation("more was written than was sent")),
    }
}
