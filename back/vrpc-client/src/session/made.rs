//! Answers that give a node.

use tombolo_core::fs::{Created, Entry, Made, OpenFlags};
use tombolo_core::{Identity, Result};
use tombolo_wire_vrpc::Reply;

use crate::link::Link;
use crate::reply::Answered;

/// A node that was found.
#[expect(clippy::needless_pass_by_value, reason = "so that it can be passed on as it is")]
pub(super) fn entry(link: &Link, answered: Answered) -> Result<Entry> {
    match answered.success(link)? {
        Reply::Entry(entry, handle) => Ok(link.adopt(entry, handle)),
        _ => Err(link.protocol_violation("a reply of another kind")),
    }
}

/// One that was made.
#[expect(clippy::needless_pass_by_value, reason = "so that it can be passed on as it is")]
pub(super) fn made(link: &Link, answered: Answered) -> Result<Made> {
    match answered.success(link)? {
        Reply::Made(made, handle) => Ok(Made { entry: link.adopt(made.entry, handle), ..made }),
        _ => Err(link.protocol_violation("a reply of another kind")),
    }
}

/// One that was made and opened.
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
