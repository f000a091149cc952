//! Memory of a request's data and of its reply's data.

use tombolo_host_links::ProtocolError;
use tombolo_host_links::server::Responder;
use tombolo_mem::{Sink, Source};
use tombolo_shm::address::GlobalAddress;
use tombolo_wire_vrpc::{Data, Destination, Reference, Returned};

use crate::parts::Parts;

/// Destination of a reply's data.
#[derive(Debug)]
pub(crate) enum ReplyBuffer {
    /// In the reply's frame, at most this many bytes.
    Frame(usize),
    /// Bulk memory of this domain, from which the client reads.
    Bulk(Sink),
}

impl ReplyBuffer {
    /// Returns the destination that a request names; an error if the peer may not use that memory.
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

    /// Limits the destination's length.
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

    /// Writes bytes, which must fit, to bulk memory, or returns them for the frame.
    pub(crate) fn put<'a>(&self, bytes: &'a [u8]) -> Returned<'a> {
        match self {
            Self::Frame(_) => Returned::Inline(bytes),
            Self::Bulk(sink) => Returned::Placed { len_bytes: wire_len(sink.write_at(0, bytes)) },
        }
    }

    /// Returns the memory into which the file system reads: the bulk memory itself, or a buffer of `parts`
    /// whose contents are then sent in the frame.
    pub(crate) fn sink(&self, parts: &mut Parts) -> Sink {
        match self {
            Self::Frame(len_bytes) => parts.inline_sink(*len_bytes),
            Self::Bulk(sink) => sink.clone(),
        }
    }
}

/// Returns the data of a request without a copy, unless it is inline. Valid until the request is answered.
pub(crate) fn source(
    data: &Data<'_>,
    parts: &mut Parts,
    responder: &Responder,
) -> Result<Source, ProtocolError> {
    match data {
        Data::Inline(bytes) => Ok(parts.copy_inline(bytes)),
        _ => bulk(data, responder),
    }
}

/// Returns the bulk memory with the data of a request.
pub(crate) fn bulk(data: &Data<'_>, responder: &Responder) -> Result<Source, ProtocolError> {
    let source = |reference: &Reference| -> Result<Source, ProtocolError> {
        let address = GlobalAddress::from_bits(reference.address());
        Ok(responder.source(address, reference.len_bytes().into())?)
    };
    Ok(match data {
        // Decoding never yields `Follows`.
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

/// Converts a length that fits the wire format.
pub(crate) fn wire_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
