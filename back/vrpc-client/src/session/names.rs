//! Symbolic links, whose targets may be longer than a slot.

use std::sync::Arc;

use tombolo_core::fs::{Answer, Ctx, Error, Made, Name, NodeId};
use tombolo_host::links::client::Spans;
use tombolo_shm::area::Span;
use tombolo_wire_vrpc::{Data, FRAME_BYTES, Place, Reference, Reply, Request};

use super::pick;
use crate::ask::Question;
use crate::link::Link;

/// Bytes that a request brings along go into its frame up to so many; a name fits beside them.
pub(super) const FRAME_DATA_MAX: usize = 3 << 10;
/// Longest target, in bytes (`PATH_MAX`, without its terminator).
const TARGET_BYTES_MAX: usize = 4095;

pub(super) fn readlink(link: &Arc<Link>, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
    let place = Place::Inline { len_bytes: FRAME_BYTES as u32 };
    link.ask(cx, Request::Readlink { node, place }.into(), |link, answered| match answered.success(link)? {
        Reply::Bytes(returned) => answered.bytes(link, &returned, FRAME_BYTES),
        _ => Err(link.lied("an answer of another kind")),
    })
}

pub(super) fn symlink(
    link: &Arc<Link>,
    cx: &Ctx,
    parent: NodeId,
    name: Name<'_>,
    target: &[u8],
) -> Answer<Made> {
    if target.len() > TARGET_BYTES_MAX {
        return Answer::err(Error::NameTooLong);
    }
    if target.len() <= FRAME_DATA_MAX {
        return link.ask_for(
            cx,
            Request::Symlink { parent, name, target: Data::Inline(target) },
            pick!(Made, _),
        );
    }
    let (name, target, cx) = (name.to_owned(), target.to_vec(), cx.clone());
    link.with_out_span(target.len(), move |link, span| {
        let data = match filled(link, &span, &target) {
            Ok(data) => data,
            Err(error) => return Answer::err(error),
        };
        let request = Request::Symlink { parent, name: name.as_name(), target: data };
        let question = Question { request, tail: &[], spans: Spans::from(span) };
        link.ask(&cx, question, |link, answered| answered.picked(link, pick!(Made, _)))
    })
}

/// Copies bytes to a span of this side's memory.
pub(super) fn filled(link: &Link, span: &Span, bytes: &[u8]) -> Result<Data<'static>, Error> {
    let sink = link.line.out_sink(span).map_err(Error::io)?;
    let _ = sink.write_at(0, bytes);
    Ok(Data::One(out_reference(link, span, bytes.len())?))
}

/// How a request names the first `len` bytes of a span of this side's memory.
pub(crate) fn out_reference(link: &Link, span: &Span, len: usize) -> Result<Reference, Error> {
    reference(link.line.out_address(span).bits(), len as u64)
}

/// How a request names a span of the server's memory.
pub(crate) fn in_reference(link: &Link, span: &Span) -> Result<Reference, Error> {
    reference(link.line.in_address(span).bits(), span.len())
}

fn reference(address: u64, len_bytes: u64) -> Result<Reference, Error> {
    Reference::new(address, u32::try_from(len_bytes).unwrap_or(u32::MAX)).map_err(Error::io)
}

impl Link {
    /// Goes on with `len_bytes` of this side's memory, once they are there.
    pub(super) fn with_out_span<T: Send + 'static>(
        self: &Arc<Self>,
        len_bytes: usize,
        then: impl FnOnce(&Arc<Link>, Span) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        self.with_span(|link| link.line.out_area(), len_bytes, then)
    }

    /// Goes on with `len_bytes` of the server's memory, once they are there.
    pub(super) fn with_in_span<T: Send + 'static>(
        self: &Arc<Self>,
        len_bytes: usize,
        then: impl FnOnce(&Arc<Link>, Span) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        self.with_span(|link| link.line.in_area(), len_bytes, then)
    }

    fn with_span<T: Send + 'static>(
        self: &Arc<Self>,
        area: fn(&Link) -> &tombolo_shm::area::Area,
        len_bytes: usize,
        then: impl FnOnce(&Arc<Link>, Span) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        if let Some(span) = area(self).take(len_bytes as u64) {
            return then(self, span);
        }
        if area(self).capacity_bytes() < len_bytes as u64 {
            return Answer::err(Error::NoMemory);
        }
        let link = self.clone();
        Answer::later(async move {
            let span = link.room.wait(area(&link), len_bytes as u64, || link.line.is_lost()).await;
            then(&link, span.ok_or(Error::Disconnected)?).resolve().await
        })
    }
}
