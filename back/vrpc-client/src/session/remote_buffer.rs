//! Writes of data in another domain's memory that the server maps too: only references are sent, without
//! touching the data.

use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_core::fs::{File, Write, Written};
use tombolo_core::{Answer, Ctx, Error};
use tombolo_host_links::client::Spans;
use tombolo_host_links::forwarding::RemoteBuffer;
use tombolo_mem::Source;
use tombolo_wire_vrpc::{Data, REFERENCES_MAX, Reference, References, Request};

use super::replies::{Piece, written};
use crate::link::Link;
use crate::links::Links;
use crate::request::OutgoingRequest;

/// Writes the first `len` bytes by reference; `None` if the server does not map them, or too many references
/// are needed.
pub(super) fn write(
    links: &Arc<Links>,
    link: &Arc<Link>,
    cx: &Ctx,
    (sequence, file, how): (u64, File, Write),
    from: &Source,
    len: usize,
) -> Option<Answer<Piece<Written>>> {
    let limit = from.len();
    let mut from = from.clone();
    from.truncate(len);
    let RemoteBuffer { parts, loan } = link.line.remote_buffer(&from)?;
    if parts.len() > REFERENCES_MAX {
        return None;
    }
    let reference = |(address, len_bytes): &(tombolo_shm::address::GlobalAddress, u64)| {
        Reference::new(address.bits(), u32::try_from(*len_bytes).unwrap_or(u32::MAX))
    };
    let references = parts.iter().map(reference).collect::<Result<SmallVec<[Reference; 1]>, _>>();
    let references = match references {
        Ok(references) => references,
        Err(error) => return Some(Answer::err(Error::io(error))),
    };
    let data = match &references[..] {
        [one] => Data::One(*one),
        several => Data::List(References::new(several).ok()?),
    };
    let request = Request::Write { file, how, data };
    // The loan is retained while the server may be reading.
    let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(loan) };
    Some(links.call_on(link, cx, sequence, outgoing, move |link, answered| {
        written(link, &answered, limit).map(|written| (len, written))
    }))
}
