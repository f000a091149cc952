//! Direct access to the link's memory, for programs that avoid copying their data.

use std::sync::Arc;

use tombolo_core::fs::{File, Write, Written};
use tombolo_core::{Answer, Ctx, Error, Result, or_answer};
use tombolo_host_links::client::Spans;
use tombolo_mem::{Sink, Source};
use tombolo_shm::area::Span;
use tombolo_wire_vrpc::{Data, Reply, Request};

use crate::link::Link;
use crate::request::OutgoingRequest;
use crate::session::{VrpcFileSystem, destination, out_reference, pick, written};

/// Memory of this side of a link that the server reads: data assembled in it is written without a copy.
pub struct Lent {
    link: Arc<Link>,
    /// `None` once a write has taken it, and during the drop.
    span: Option<Span>,
}

/// Data of a file in the memory to which the server has written them. The server can change them at any time.
pub struct InPlace {
    link: Arc<Link>,
    spans: Spans,
    data: Source,
    eof: bool,
}

impl VrpcFileSystem {
    /// Allocates `len_bytes` of the link's memory. [`Error::NoMemory`] if there is no contiguous span now.
    /// Meant for data in transit, not for long-lived buffers.
    pub fn lend(&self, len_bytes: usize) -> Result<Lent> {
        let link = self.links.current();
        let span = link.line.out_area().take(len_bytes as u64).ok_or(Error::NoMemory)?;
        Ok(Lent { link, span: Some(span) })
    }

    /// Writes the first `len_bytes` of lent memory, at most as many as one request may transfer, without
    /// copying them. Consumes the memory, which is freed when the server has answered. Fails with
    /// [`Error::InvalidArgument`] for memory of another session.
    ///
    /// The memory belongs to its link. If the link is lost before the answer, the write cannot be sent again:
    /// the result is [`Error::Disconnected`], and the write may or may not have been performed.
    pub fn write_in_place(
        &self,
        cx: &Ctx,
        file: File,
        how: &Write,
        mut lent: Lent,
        len_bytes: usize,
    ) -> Answer<Written> {
        let link = lent.link.clone();
        if !Arc::ptr_eq(&link.objects, &self.links.objects) {
            return Answer::err(Error::InvalidArgument);
        }
        let Some(span) = lent.span.take() else { return Answer::err(Error::InvalidArgument) };
        let len = len_bytes.min(span.len() as usize).min(link.terms.transfer_bytes_max as usize);
        let how = Write { retainable: false, ..*how };
        let data = Data::One(or_answer!(out_reference(&link, &span, len)));
        let request = Request::Write { file, how, data };
        let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
        let sequence = self.links.objects.next_sequence();
        self.links.call_on(&link, cx, sequence, outgoing, move |link, answered| written(link, &answered, len))
    }

    /// Reads at most `len_bytes`, with one request, and leaves the data where the server put it. Fails with
    /// [`Error::NoMemory`] as [`lend`](Self::lend) does.
    pub fn read_in_place(&self, cx: &Ctx, file: File, offset: u64, len_bytes: usize) -> Answer<InPlace> {
        self.links.repeat(cx, move |links, link, cx| {
            let len = len_bytes.min(link.terms.transfer_bytes_max as usize);
            let Some(span) = link.line.in_area().take(len as u64) else {
                return Answer::err(Error::NoMemory);
            };
            let destination = or_answer!(destination(link, Some(&span), len));
            let request = Request::Read { file, offset, destination };
            let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
            let own_link = link.clone();
            let sequence = links.objects.next_sequence();
            links.call_on(link, cx, sequence, outgoing, move |link, answered| {
                let (data, eof) = answered.extract(link, pick!(Read(data, eof)))?;
                let data = answered.placed(link, &data, len)?.unwrap_or_default();
                Ok(InPlace { link: own_link, spans: answered.reply.spans, data, eof })
            })
        })
    }
}

impl Lent {
    /// Returns the memory for filling. The caller must not write to it after passing it to
    /// [`write_in_place`](VrpcFileSystem::write_in_place).
    pub fn sink(&self) -> Result<Sink> {
        match &self.span {
            Some(span) => self.link.line.out_sink(span).map_err(Error::io),
            None => Ok(Sink::new()),
        }
    }
}

impl InPlace {
    /// Returns the data. The server may change it: copy it before checking it.
    #[must_use]
    pub fn data(&self) -> &Source {
        &self.data
    }

    /// Returns `true` if the file ends with this data.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.eof
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.span.take().is_some() {
            self.link.bulk_waiters.changed();
        }
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.spans));
        self.link.bulk_waiters.changed();
    }
}
