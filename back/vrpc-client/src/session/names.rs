//! Symbolic links, whose name and target together may exceed a frame, and the allocation of bulk memory for
//! requests that exceed one.

use std::sync::Arc;

use tombolo_core::fs::{Made, Name, NodeId};
use tombolo_core::{Answer, Ctx, Error, or_answer};
use tombolo_host_links::client::Spans;
use tombolo_shm::area::{Area, Span};
use tombolo_wire_vrpc::{Data, Destination, FRAME_BYTES, Reference, Request};

use super::replies::{bytes, made};
use crate::bulk_memory;
use crate::link::Link;
use crate::links::Links;
use crate::request::OutgoingRequest;

/// Maximum length of a link target or attribute value in a request's frame, in bytes, beside a name.
pub(super) const FRAME_DATA_MAX: usize = 3 << 10;
/// Maximum length of a target, in bytes (`PATH_MAX` without its terminator).
const TARGET_BYTES_MAX: usize = 4095;

pub(super) fn readlink(links: &Arc<Links>, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
    let destination = Destination::Inline { len_bytes: FRAME_BYTES as u32 };
    links.call(cx, Request::Readlink { node, destination }, |link, answered| {
        bytes(link, &answered, FRAME_BYTES)
    })
}

pub(super) fn symlink(
    links: &Arc<Links>,
    cx: &Ctx,
    parent: NodeId,
    name: Name<'_>,
    target: &[u8],
) -> Answer<Made> {
    if target.len() > TARGET_BYTES_MAX {
        return Answer::err(Error::NameTooLong);
    }
    if target.len() <= FRAME_DATA_MAX {
        return links.call(cx, Request::Symlink { parent, name, target: Data::Inline(target) }, made);
    }
    let (name, target) = (name.to_owned(), target.to_vec());
    let sequence = links.objects.next_sequence();
    links.with_out_span(cx, target.len(), move |links, link, cx, span| {
        let data = or_answer!(filled(link, &span, &target));
        let request = Request::Symlink { parent, name: name.as_name(), target: data };
        let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
        links.call_on(link, cx, sequence, outgoing, made)
    })
}

/// Copies bytes to a span of this side's memory; returns the reference to them, for a request.
pub(super) fn filled(link: &Link, span: &Span, bytes: &[u8]) -> Result<Data<'static>, Error> {
    let sink = link.line.out_sink(span).map_err(Error::io)?;
    let _ = sink.write_at(0, bytes);
    Ok(Data::One(out_reference(link, span, bytes.len())?))
}

/// Returns the reference to the first `len` bytes of a span of this side's memory.
pub(crate) fn out_reference(link: &Link, span: &Span, len: usize) -> Result<Reference, Error> {
    reference(link.line.out_address(span).bits(), len as u64)
}

/// Returns the place where the server puts `len_bytes` of data: a span of its memory, or the frame of the
/// reply.
pub(crate) fn destination(
    link: &Link,
    span: Option<&Span>,
    len_bytes: usize,
) -> Result<Destination<'static>, Error> {
    match span {
        None => Ok(Destination::Inline { len_bytes: len_bytes as u32 }),
        Some(span) => reference(link.line.in_address(span).bits(), span.len()).map(Destination::One),
    }
}

fn reference(address: u64, len_bytes: u64) -> Result<Reference, Error> {
    Reference::new(address, u32::try_from(len_bytes).unwrap_or(u32::MAX)).map_err(Error::io)
}

impl Links {
    /// Allocates `len_bytes` of the link's memory that the client writes, waiting until they are free, for a
    /// request sent by `ask`. Repeats allocation and request on the next link if the link is lost. Fails with
    /// [`Error::NoMemory`] if the link has less memory.
    pub(super) fn with_out_span<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        len_bytes: usize,
        ask: impl Fn(&Arc<Links>, &Arc<Link>, &Ctx, Span) -> Answer<T> + Send + Sync + Clone + 'static,
    ) -> Answer<T> {
        self.with_span(cx, |link| link.line.out_area(), len_bytes, ask)
    }

    /// Sends a request as `with_out_span` does, with a span of the server's memory.
    pub(super) fn with_in_span<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        len_bytes: usize,
        ask: impl Fn(&Arc<Links>, &Arc<Link>, &Ctx, Span) -> Answer<T> + Send + Sync + Clone + 'static,
    ) -> Answer<T> {
        self.with_span(cx, |link| link.line.in_area(), len_bytes, ask)
    }

    fn with_span<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        area: fn(&Link) -> &Area,
        len_bytes: usize,
        ask: impl Fn(&Arc<Links>, &Arc<Link>, &Ctx, Span) -> Answer<T> + Send + Sync + Clone + 'static,
    ) -> Answer<T> {
        self.repeat(cx, move |links, link, cx| {
            if let Some(span) = area(link).take(len_bytes as u64) {
                return ask(links, link, cx, span);
            }
            if area(link).capacity_bytes() < len_bytes as u64 {
                return Answer::err(Error::NoMemory);
            }
            let (links, link, cx, ask) = (links.clone(), link.clone(), cx.clone(), ask.clone());
            Answer::later(async move {
                let is_lost = || link.line.is_lost();
                let (waiters, area) = (&link.bulk_waiters, area(&link));
                match bulk_memory::wait(waiters, area, len_bytes as u64, is_lost, &cx.interrupt).await {
                    Some(span) => ask(&links, &link, &cx, span).resolve().await,
                    None if is_lost() => Err(Error::Disconnected),
                    None => Err(Error::Interrupted),
                }
            })
        })
    }
}
