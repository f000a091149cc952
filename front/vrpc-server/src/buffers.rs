//! Where the bytes of a request lie, and where those of its answer go.

use tombolo_host_links::ProtocolError;
use tombolo_host_links::server::Responder;
use tombolo_mem::{Sink, Source};
use tombolo_shm::address::GlobalAddress;
use tombolo_wire_vrpc::{Data, Destination, Reference, Returned};

use crate::parts::Parts;

/// Where an answer's bytes go.
#[derive(Debug)]
pub(crate) enum ReplyBuffer {
    /// Into the answer: at most so many.
    Frame(usize),
    /// Into bulk memory of this side.
    Bulk(Sink),
}

impl ReplyBuffer {
    /// The room that a request names; an error for memory that it may not name.
    pub(crate) fn of(place: &Destination<'_>, responder: &Responder) -> Result<Self, ProtocolError> {
        let sink = |reference: &Reference| sink(reference, responder);
        Ok(match place {
            Destination::Inline { len_bytes } => Self::Frame(*len_bytes as usize),
            Destination::One(reference) => Self::Bulk(sink(reference)?),
            Destination::List(list) => {
                let mut all = Sink::new();
                for reference in list.as_slice() {
                    all.append(sink(reference)?);
                }
                Self::Bulk(all)
            }
        })
    }

    /// The beginning of it.
    pub(crate) fn at_most(self, limit_bytes: usize) -> Self {
        match self {
            Self::Frame(len_bytes) => Self::Frame(len_bytes.min(limit_bytes)),
            Self::Bulk(mut sink) => {
                sink.truncate(limit_bytes);
                Self::Bulk(sink)
            }
        }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Frame(len_bytes) => *len_bytes,
            Self::Bulk(sink) => sink.len(),
        }
    }

    /// Puts bytes there, of which there must not be more than fit.
    pub(crate) fn put<'a>(&self, bytes: &'a [u8]) -> Returned<'a> {
        match self {
            Self::Frame(_) => Returned::Inline(bytes),
            Self::Bulk(sink) => Returned::Placed { len_bytes: wire_len(sink.write_at(0, bytes)) },
        }
    }

    /// What a file system may read into.
    pub(crate) fn sink(&self, parts: &mut Parts) -> Sink {
        match self {
            Self::Frame(len_bytes) => parts.room(*len_bytes),
            Self::Bulk(sink) => sink.clone(),
        }
    }
}

/// The bytes of a request, to be read where they lie; only what came in the frame is copied. They are good
/// until the request is answered.
pub(crate) fn source(
    data: &Data<'_>,
    parts: &mut Parts,
    responder: &Responder,
) -> Result<Source, ProtocolError> {
    match data {
        Data::Inline(bytes) => Ok(parts.given(bytes)),
        _ => bulk(data, responder),
    }
}

/// The bytes of a request that lie in bulk memory.
pub(crate) fn bulk(data: &Data<'_>, responder: &Responder) -> Result<Source, ProtocolError> {
    let source = |reference: &Reference| -> Result<Source, ProtocolError> {
        let address = GlobalAddress::from_bits(reference.address());
        Ok(responder.source(address, reference.len_bytes().into())?)
    };
    Ok(match data {
        // Decoding never gives the second.
        Data::Inline(_) | Data::Follows { .. } => Source::new(),
        Data::One(reference) => source(reference)?,
        Data::List(list) => {
            let mut all = Source::new();
            for reference in list.as_slice() {
                all.append(source(reference)?);
            }
            all
        }
    })
}

fn sink(reference: &Reference, responder: &Responder) -> Result<Sink, ProtocolError> {
    let address = GlobalAddress::from_bits(reference.address());
    Ok(responder.sink(address, reference.len_bytes().into())?)
}

/// A length that was within what the wire can say.
pub(crate) fn wire_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
