//! Responder to one request: sends its answer, and gives access to the bulk memory that it refers to.

use std::sync::Arc;

use tombolo_mem::{Sink, Source};
use tombolo_shm::address::{AddressError, GlobalAddress};
use tombolo_shm::link::{FRAME_BYTES, Features};

use super::link::Link;
use super::link_cache;
use crate::end::{EndReason, ProtocolError};

/// An obligation to answer one request, from any thread. Dropping it without an answer ends the link, because
/// the client would wait forever.
#[must_use = "dropping it cuts the link"]
pub struct Responder {
    /// Link of the request; `None` once answered.
    link: Option<Arc<Link>>,
    id: u32,
    is_quiet: bool,
}

impl Responder {
    pub(super) fn new(link: Arc<Link>, id: u32) -> Self {
        Self { link: Some(link), id, is_quiet: false }
    }

    /// Returns the extensions negotiated for the link.
    #[must_use]
    pub fn features(&self) -> Features {
        self.link.as_ref().map_or(Features::empty(), |link| link.features)
    }

    /// Makes the answer quiet: the client is not woken for it.
    pub fn quietly(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// Returns the request's id, which distinguishes concurrent requests of one link and has no other
    /// meaning.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns `true` if the link has ended, so that an answer would be lost.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.outcome.is_over())
    }

    /// Returns `len_bytes` of bulk memory, which the peer may change at any time. Fails for an invalid
    /// address.
    pub fn source(&self, address: GlobalAddress, len_bytes: u64) -> Result<Source, AddressError> {
        match &self.link {
            Some(link) => link.source(address, len_bytes),
            None => Ok(Source::new()),
        }
    }

    /// Returns the first `len_bytes` of the request's own buffer in place, at most its capacity. The peer may
    /// change them while they are read: data that were checked in the private copy must not be read again,
    /// unless nothing depends on the check.
    #[must_use]
    pub fn frame(&self, len_bytes: usize) -> Source {
        self.link.as_ref().map_or_else(Source::new, |link| link.frame(self.id, len_bytes))
    }

    /// Returns `len_bytes` of this side's bulk memory, which the client will read. A client that assigns the
    /// same span to two requests affects only itself.
    pub fn sink(&self, address: GlobalAddress, len_bytes: u64) -> Result<Sink, AddressError> {
        match &self.link {
            Some(link) => link.bases.sink(address, len_bytes),
            None => Ok(Sink::new()),
        }
    }

    /// Sends the answer. `frame` is copied to the request's buffer; more than 4 KiB is a local error, which
    /// cuts the link. Does nothing if the link has ended.
    #[inline]
    pub fn send(mut self, kind: u32, body: [u8; 48], frame: &[u8]) {
        let Some(link) = self.link.take() else { return };
        if frame.len() as u64 > FRAME_BYTES {
            link.end(EndReason::Failed(format!("an answer of {} bytes is too long", frame.len()).into()));
            return;
        }
        link.answer(self.id, kind, body, frame, self.is_quiet);
        link_cache::keep(link);
    }

    /// Cuts the link: the request violates the protocol spoken over it.
    pub fn cut(mut self, why: impl Into<ProtocolError>) {
        if let Some(link) = self.link.take() {
            link.end(EndReason::ProtocolError(why.into()));
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            link.end(EndReason::Failed("a request was dropped without an answer".into()));
        }
    }
}
