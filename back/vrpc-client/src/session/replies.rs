//! Extraction of results from replies.

use tombolo_core::fs::{Created, Entry, Made, OpenFlags, OpenId, Opened, Written};
use tombolo_core::{Identity, Result};
use tombolo_wire_vrpc::Reply;

use crate::link::Link;
use crate::reply::Answered;

/// Extracts the value or the values of a reply of one kind.
macro_rules! pick {
    ($variant:ident) => {
        pick!($variant(value))
    };
    ($variant:ident($($value:ident),+)) => {
        |reply| match reply {
            Reply::$variant($($value),+) => Some(($($value),+)),
            _ => None,
        }
    };
}
pub(crate) use pick;

/// Extracts the node from the reply to LOOKUP, RESOLVE or PARENT, and adopts it into the session.
#[expect(clippy::needless_pass_by_value, reason = "so that it can be passed on as it is")]
pub(super) fn entry(link: &Link, answered: Answered) -> Result<Entry> {
    let (entry, handle) = answered.extract(link, pick!(Entry(entry, handle)))?;
    Ok(link.adopt(false, entry, handle))
}

/// Extracts the node and the directory's change from the reply to MKDIR, MKNOD, SYMLINK or LINK, and adopts
/// the node into the session.
#[expect(clippy::needless_pass_by_value, reason = "so that it can be passed on as it is")]
pub(super) fn made(link: &Link, answered: Answered) -> Result<Made> {
    let (made, handle) = answered.extract(link, pick!(Made(made, handle)))?;
    Ok(Made { entry: link.adopt(false, made.entry, handle), ..made })
}

/// Extracts the file from the reply to CREATE or CREATE_UNNAMED, adopts its node and registers its opening.
pub(super) fn created(
    link: &Link,
    answered: &Answered,
    flags: OpenFlags,
    opener: Identity,
) -> Result<Created> {
    let (created, handle, is_prompt) = answered.extract(link, pick!(Created(created, handle, is_prompt)))?;
    let server_id = link.prompt_as_agreed(created.open, is_prompt)?;
    let entry = link.adopt(false, created.entry, handle);
    Ok(Created { entry, open: link.opened(entry.node, flags, opener, server_id), ..created })
}

/// Extracts the opening from the reply to OPEN, with the server's id and promise.
pub(super) fn opened(link: &Link, answered: &Answered) -> Result<(Opened, (OpenId, bool))> {
    let (opened, is_prompt) = answered.extract(link, pick!(Opened(opened, is_prompt)))?;
    Ok((opened, link.prompt_as_agreed(opened.open, is_prompt)?))
}

/// Extracts a link target, or the value or the names of extended attributes, from a reply.
pub(super) fn bytes(link: &Link, answered: &Answered, limit_bytes: usize) -> Result<Vec<u8>> {
    answered.bytes(link, &answered.extract(link, pick!(Bytes))?, limit_bytes)
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
