//! The frame of a request, which is the part that does not fit in the ring's slot: encoded in private memory,
//! then copied to the shared memory.

use smallvec::SmallVec;
use tombolo_core::Error;
use tombolo_wire_vrpc::{BODY_BYTES, Body, EncodeError, FRAME_BYTES, FrameSink, Header, Request};

/// Size in bytes up to which a frame needs no allocation: enough for a name or for attributes. File data is
/// not part of the frame.
const SHORT_BYTES: usize = 512;

/// A frame in private memory.
#[derive(Default)]
pub(crate) struct Frame(SmallVec<[u8; SHORT_BYTES]>);

impl Frame {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the frame and the bytes that follow it, for a request that has to wait.
    pub(crate) fn with_tail(&self, tail: &[u8]) -> Vec<u8> {
        [self.as_bytes(), tail].concat()
    }
}

impl FrameSink for Frame {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES.saturating_sub(self.0.len())
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.room_bytes();
        if fits {
            self.0.extend_from_slice(bytes);
        }
        fits
    }
}

/// Encodes a request in private memory; fails with [`Error::TooBig`] if it exceeds the frame.
pub(crate) fn encoded(request: &Request<'_>, header: &Header) -> Result<(Body, Frame), Error> {
    let (mut body, mut frame) = ([0; BODY_BYTES], Frame::default());
    request.encode(header, &mut body, &mut frame).map_err(cannot_be_encoded)?;
    Ok((body, frame))
}

pub(crate) fn cannot_be_encoded(error: EncodeError) -> Error {
    tracing::debug!(%error, "cannot encode a request");
    match error {
        EncodeError::FrameFull => Error::TooBig,
        _ => Error::InvalidArgument,
    }
}
