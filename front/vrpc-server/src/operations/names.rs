//! Symbolic links, and the transfer of byte strings that may exceed a slot of the ring.

use tombolo_core::fs::{Name, NodeId};
use tombolo_core::{Answer, Error};
use tombolo_wire_vrpc::{Data, Destination, Reply};

use super::nodes;
use crate::buffers::{self, ReplyBuffer};
use crate::exchange::{Completion, Exchange, or_cut};

/// Maximum length of a target in bytes (`PATH_MAX`, without its terminator).
const TARGET_BYTES_MAX: usize = 4095;

pub(super) fn readlink(exchange: Exchange<'_>, node: NodeId, destination: &Destination<'_>) {
    let reply_buffer = or_cut!(exchange, ReplyBuffer::of(destination, &exchange.responder));
    let answer = exchange.fs().readlink(exchange.cx, node);
    exchange.close(answer, move |completion, target| send_bytes(completion, &reply_buffer, &target));
}

pub(super) fn symlink(exchange: Exchange<'_>, parent: NodeId, name: Name<'_>, target: &Data<'_>) {
    let answer = match or_cut!(exchange, copied(target, &exchange, TARGET_BYTES_MAX, Error::NameTooLong)) {
        Ok(target) => exchange.fs().symlink(exchange.cx, parent, name, &target),
        Err(error) => Answer::err(error),
    };
    nodes::answer(exchange, answer);
}

/// Replies with bytes, or with an error if they do not fit.
pub(super) fn send_bytes(completion: &mut Completion<'_>, reply_buffer: &ReplyBuffer, bytes: &[u8]) {
    if bytes.len() > reply_buffer.len_bytes() {
        completion.fail(&Error::OutOfRange);
    } else {
        completion.send(&Reply::Bytes(reply_buffer.put(bytes)));
    }
}

/// Returns a private copy of a request's bytes; `too_long` above `limit_bytes`.
pub(super) fn copied(
    data: &Data<'_>,
    exchange: &Exchange<'_>,
    limit_bytes: usize,
    too_long: Error,
) -> Result<Result<Vec<u8>, Error>, tombolo_host_links::ProtocolError> {
    if data.len_bytes() as usize > limit_bytes {
        return Ok(Err(too_long));
    }
    if let Data::Inline(bytes) = data {
        return Ok(Ok(bytes.to_vec()));
    }
    Ok(Ok(buffers::bulk(data, &exchange.responder)?.to_vec(limit_bytes)))
}
