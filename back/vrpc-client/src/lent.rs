//! The link's memory itself, for programs that would rather not have their data copied.

use std::sync::Arc;

use tombolo_core::fs::{File, Write, Written};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_host_links::client::Spans;
use tombolo_mem::{Sink, Source};
use tombolo_shm::area::Span;
use tombolo_wire_vrpc::{Data, Destination, Reply, Request};

use crate::link::Link;
use crate::request::OutgoingRequest;
use crate::session::{VrpcFileSystem, in_reference, out_reference, written};

/// Memory of this side of a link, where the server reads it: data that are put together here are written
/// without a copy.
pub struct Lent {
    link: Arc<Link>,
    /// Always there, but for the moment in which it is given back.
    span: Option<Span>,
}

/// Data of a file where the server put them. It may change them as long as they lie there.
pub struct InPlace {
    link: Arc<Link>,
    spans: Spans,
    data: Source,
    eof: bool,
}

impl VrpcFileSystem {
    /// `len_bytes` of the link's memory. [`Error::NoMemory`] if there is not that much in one piece now: it
    /// is for data on their way, not for keeping.
    pub fn lend(&self, len_bytes: usize) -> Result<Lent> {
        let link = self.links.current();
        let span = link.line.out_area().take(len_bytes as u64).ok_or(Error::NoMemory)?;
        Ok(Lent { link, span: Some(span) })
    }

    /// Writes the first `len_bytes` of lent memory without copying them. The memory is gone with it, until
    /// the server has answered.
    ///
    /// The memory is its link's. If that is lost before the answer is there, it cannot be sent again:
    /// [`Error::Disconnected`], and whether it was written is not known.
    pub fn write_in_place(
        &self,
        cx: &Ctx,
        file: File,
        how: &Write,
        mut lent: Lent,
        len_bytes: usize,
    ) -> Answer<Written> {
        let link = lent.link.clone();
        if !Arc::ptr_eq(&link.things, &self.links.things) {
            return Answer::err(Error::InvalidArgument);
        }
        let Some(span) = lent.span.take() else { return Answer::err(Error::InvalidArgument) };
        let len = len_bytes.min(span.len() as usize).min(link.terms.transfer_bytes_max as usize);
        let how = Write { retainable: false, ..*how };
        let data = match out_reference(&link, &span, len) {
            Ok(reference) => Data::One(reference),
            Err(error) => return Answer::err(error),
        };
        let request = Request::Write { file, how, data };
        let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
        let sequence = self.links.things.next_sequence();
        self.links.ask_on(&link, cx, sequence, outgoing, move |link, answered| written(link, &answered, len))
    }

    /// Reads at most `len_bytes`, and leaves them where the server put them. [`Error::NoMemory`] as for
    /// [`lend`](Self::lend).
    pub fn read_in_place(&self, cx: &Ctx, file: File, offset: u64, len_bytes: usize) -> Answer<InPlace> {
        self.links.repeat(cx, move |links, link, cx| {
            let len = len_bytes.min(link.terms.transfer_bytes_max as usize);
            let Some(span) = link.line.in_area().take(len as u64) else {
                return Answer::err(Error::NoMemory);
            };
            let destination = match in_reference(link, &span) {
                Ok(reference) => Destination::One(reference),
                Err(error) => return Answer::err(error),
            };
            let request = Request::Read { file, offset, destination };
            let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
            let kept = link.clone();
            let sequence = links.things.next_sequence();
            links.ask_on(link, cx, sequence, outgoing, move |link, answered| {
                let (data, eof) = match answered.success(link)? {
                    Reply::Read(data, eof) => (answered.placed(link, &data, len)?, eof),
                    _ => return Err(link.protocol_violation("a reply of another kind")),
                };
                let source = data.unwrap_or_default();
                Ok(InPlace { link: kept, spans: answered.reply.spans, data: source, eof })
            })
        })
    }
}

impl Lent {
    /// The memory, to be filled. It must not be written to any more once it is used for a write.
    pub fn sink(&self) -> Result<Sink> {
        match &self.span {
            Some(span) => self.link.line.out_sink(span).map_err(Error::io),
            None => Ok(Sink::new()),
        }
    }
}

impl InPlace {
    /// The data. Copy out what must not change, then check it.
    #[must_use]
    pub fn data(&self) -> &Source {
        &self.data
    }

    /// Whether the file ended with them.
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
