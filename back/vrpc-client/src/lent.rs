//! The link's memory itself, for programs that would rather not have their data copied.

use std::sync::Arc;

use tombolo_core::fs::{Answer, Ctx, Error, File, Result, Write, Written};
use tombolo_host::links::client::Spans;
use tombolo_mem::{Sink, Source};
use tombolo_shm::area::Span;
use tombolo_wire_vrpc::{Data, Place, Reply, Request};

use crate::ask::Question;
use crate::link::Link;
use crate::session::{VrpcFileSystem, in_reference, out_reference, put};

/// Memory of this side of a link, where the server reads it: data that are put together here are written without a copy.
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
    /// `len_bytes` of the link's memory. [`Error::NoMemory`] if there is not that much in one piece now: it is for data on their way,
    /// not for keeping.
    pub fn lend(&self, len_bytes: usize) -> Result<Lent> {
        let span = self.link.line.out_area().take(len_bytes as u64).ok_or(Error::NoMemory)?;
        Ok(Lent { link: self.link.clone(), span: Some(span) })
    }

    /// Writes the first `len_bytes` of lent memory without copying them. The memory is gone with it, until the server has answered.
    pub fn write_in_place(
        &self,
        cx: &Ctx,
        file: File,
        how: &Write,
        mut lent: Lent,
        len_bytes: usize,
    ) -> Answer<Written> {
        let Some(span) = lent.span.take().filter(|_| Arc::ptr_eq(&lent.link, &self.link)) else {
            return Answer::err(Error::InvalidArgument);
        };
        let len = len_bytes.min(span.len() as usize).min(self.link.terms.transfer_bytes_max as usize);
        let how = Write { keepable: false, ..*how };
        let data = match out_reference(&self.link, &span, len) {
            Ok(reference) => Data::One(reference),
            Err(error) => return Answer::err(error),
        };
        let request = Request::Write { file, how, data };
        put(&self.link, cx, Question { request, tail: &[], spans: Spans::from(span) }, len)
    }

    /// Reads at most `len_bytes`, and leaves them where the server put them. [`Error::NoMemory`] as for [`lend`](Self::lend).
    pub fn read_in_place(&self, cx: &Ctx, file: File, offset: u64, len_bytes: usize) -> Answer<InPlace> {
        let len = len_bytes.min(self.link.terms.transfer_bytes_max as usize);
        let Some(span) = self.link.line.in_area().take(len as u64) else {
            return Answer::err(Error::NoMemory);
        };
        let place = match in_reference(&self.link, &span) {
            Ok(reference) => Place::One(reference),
            Err(error) => return Answer::err(error),
        };
        let request = Request::Read { file, offset, place };
        let question = Question { request, tail: &[], spans: Spans::from(span) };
        let keeper = self.link.clone();
        self.link.ask(cx, question, move |link, answered| {
            let (data, eof) = match answered.success(link)? {
                Reply::Read { data, eof } => (answered.placed(link, &data, len)?, eof),
                _ => return Err(link.lied("an answer of another kind")),
            };
            let source = data.unwrap_or_default();
            Ok(InPlace { link: keeper, spans: answered.reply.spans, data: source, eof })
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
            self.link.room.changed();
        }
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.spans));
        self.link.room.changed();
    }
}
