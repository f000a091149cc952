//! The duty to answer one request.

use std::fmt;
use std::sync::Arc;

use tombolo_mem::{Sink, Source};
use tombolo_shm::address::{AddressError, GlobalAddress};
use tombolo_shm::link::FRAME_BYTES;

use super::link::Link;
use super::link_cache;
use crate::end::{End, ProtocolError};

/// The duty to answer one request, from any thread. Dropped without an answer it cuts the link: the client
/// would wait for ever.
#[must_use = "dropping it cuts the link"]
pub struct Responder {
    /// None once it is done with.
    link: Option<Arc<Link>>,
    id: u32,
}

impl Responder {
    pub(super) fn new(link: Arc<Link>, id: u32) -> Self {
        Self { link: Some(link), id }
    }

    /// The request's id: tells requests that are under way at the same time on one link apart, and means
    /// nothing else.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether the link has ended: an answer would be lost.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.outcome.is_over())
    }

    /// `len_bytes` of bulk memory, to be read. The peer may change them while they are read, even now.
    pub fn source(&self, address: GlobalAddress, len_bytes: u64) -> Result<Source, AddressError> {
        match &self.link {
            Some(link) => link.source(address, len_bytes),
            None => Ok(Source::new()),
        }
    }

    /// The first `len_bytes` of the request's own buffer, to be read where they lie; no more than it has. The
    /// peer may change them while they are read: of what was checked in the private copy only what does not
    /// depend on it may be read again.
    #[must_use]
    pub fn frame(&self, len_bytes: usize) -> Source {
        self.link.as_ref().map_or_else(Source::new, |link| link.frame(self.id, len_bytes))
    }

    /// `len_bytes` of this side's bulk memory, which the client will read. Two requests may have been given
    /// the same span: that is the client's loss alone.
    pub fn sink(&self, address: GlobalAddress, len_bytes: u64) -> Result<Sink, AddressError> {
        match &self.link {
            Some(link) => link.bases.sink(address, len_bytes),
            None => Ok(Sink::new()),
        }
    }

    /// Answers. `frame` is copied to the request's buffer: at most 4 KiB, or the link is cut, for that is a
    /// mistake on this side. If the link has ended, nothing happens.
    #[inline]
    pub fn send(mut self, kind: u32, body: [u8; 48], frame: &[u8]) {
        let Some(link) = self.link.take() else { return };
        if frame.len() as u64 > FRAME_BYTES {
            link.end(End::Failed(format!("an answer of {} bytes", frame.len()).into()));
            return;
        }
        link.answer(self.id, kind, body, frame);
        link_cache::keep(link);
    }

    /// Cuts the link: the request breaks the rules of what is above the link.
    pub fn cut(mut self, why: impl Into<ProtocolError>) {
        if let Some(link) = self.link.take() {
            link.end(End::ProtocolError(why.into()));
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            link.end(End::Failed("a request was left without an answer".into()));
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Responder({:#x})", self.id)
    }
}
