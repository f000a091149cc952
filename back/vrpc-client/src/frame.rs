//! Where a request's frame is encoded: nowhere (to measure it), in a call, or in private memory.

use tombolo_core::Error;
use tombolo_host_links::client::FrameWriter;
use tombolo_wire_vrpc::{BODY_BYTES, EncodeError, FRAME_BYTES, FrameSink, Header, Request};

pub(crate) fn put_frame(request: &Request<'_>, header: &Header, tail: &[u8], frame: &mut impl FrameSink) {
    // It was measured, so it fits; what did not would be a frame that the server refuses.
    let mut body = [0; BODY_BYTES];
    let _ = request.encode(header, &mut body, frame);
    let _ = frame.append(tail);
}

pub(crate) fn cannot_be_encoded(error: EncodeError) -> Error {
    tracing::debug!(%error, "a request that cannot be encoded");
    match error {
        EncodeError::FrameFull => Error::TooBig,
        _ => Error::InvalidArgument,
    }
}

/// In the place of a frame: counts what it would hold.
#[derive(Default)]
pub(crate) struct Measure(usize);

impl Measure {
    pub(crate) fn len_bytes(&self) -> usize {
        self.0
    }
}

impl FrameSink for Measure {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES - self.0
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.room_bytes();
        if fits {
            self.0 += bytes.len();
        }
        fits
    }
}

/// The frame of a call.
pub(crate) struct Frame<'a, 'w>(pub(crate) &'a mut FrameWriter<'w>);

impl FrameSink for Frame<'_, '_> {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES.saturating_sub(self.0.len())
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.room_bytes();
        if fits {
            self.0.put(bytes);
        }
        fits
    }
}

/// A frame in private memory, for a request that has to wait.
pub(crate) struct Private<'a>(pub(crate) &'a mut Vec<u8>);

impl FrameSink for Private<'_> {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES.saturating_sub(self.0.len())
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.room_bytes();
        if fits {
            self.0.extend_from_slice(bytes);
        }
        fits
    }
}
