//! A request in a descriptor chain.

use tombolo_core::{Error, Result};
use tombolo_host_vhost::{Chain, ChainToken};
use tombolo_mem::{Sink, Source};

/// Maximum length of a serial number in bytes (virtio 1.2, §5.2.6).
pub const SERIAL_BYTES_MAX: usize = 20;

/// Request types (§5.2.6, `type`).
pub(crate) mod kind {
    pub(crate) const IN: u32 = 0;
    pub(crate) const OUT: u32 = 1;
    pub(crate) const FLUSH: u32 = 4;
    pub(crate) const GET_ID: u32 = 8;
    pub(crate) const DISCARD: u32 = 11;
    pub(crate) const WRITE_ZEROES: u32 = 13;
}

/// Outcome of a request (§5.2.6, `status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// A request, independent of its chain's segmentation.
pub(crate) struct Request {
    pub(crate) kind: u32,
    pub(crate) sector: u64,
    /// Readable bytes after the header.
    pub(crate) payload: Source,
    /// Writable bytes before the status.
    pub(crate) space: Sink,
    pub(crate) reply: Reply,
}

const HEADER_BYTES: usize = 16;

impl Request {
    /// Parses a chain. Returns `None` for an invalid chain, after answering it.
    pub(crate) fn receive(chain: Chain) -> Option<Self> {
        let Chain { readable: mut payload, writable: mut space, token, .. } = chain;
        let Some(data_bytes) = space.len().checked_sub(1) else {
            // The chain has no space for a status.
            token.complete(0);
            return None;
        };
        let status = space.split_off(data_bytes);
        let reply = Reply { status, data_bytes, token: Some(token) };
        let mut header = [0; HEADER_BYTES];
        if payload.read_at(0, &mut header) < HEADER_BYTES {
            reply.send(&Err(Error::InvalidArgument));
            return None;
        }
        payload.advance(HEADER_BYTES);
        let header = u128::from_le_bytes(header);
        Some(Self { kind: header as u32, sector: (header >> 64) as u64, payload, space, reply })
    }
}

/// The pending reply of a request.
pub(crate) struct Reply {
    status: Sink,
    data_bytes: usize,
    token: Option<ChainToken>,
}

impl Reply {
    /// Sends the reply. All data must be in place before, because the guest may read it at once.
    pub(crate) fn send(mut self, result: &Result<()>) {
        self.finish(match result {
            Ok(()) => Status::Ok,
            Err(Error::NotSupported) => Status::Unsupported,
            Err(_) => Status::IoError,
        });
    }

    fn finish(&mut self, status: Status) {
        if let Some(token) = self.token.take() {
            self.status.write_at(0, &[status as u8]);
            token.complete(self.data_bytes + 1);
        }
    }
}

/// Completes a request whose handler has panicked, so that the guest does not wait forever.
impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(Status::IoError);
    }
}

/// A range to discard or to zero (§5.2.6, `struct virtio_blk_discard_write_zeroes`).
pub(crate) struct Segment {
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    pub(crate) flags: u32,
}

/// The only flag: space may be deallocated.
pub(crate) const FLAG_UNMAP: u32 = 1;

impl Segment {
    const BYTES: usize = 16;

    /// Decodes the payload's segment: the device offers one segment per request.
    pub(crate) fn only(payload: &Source) -> Result<Self> {
        let mut bytes = [0; Self::BYTES];
        if payload.len() != bytes.len() || payload.read_at(0, &mut bytes) < bytes.len() {
            return Err(Error::InvalidArgument);
        }
        let word = u128::from_le_bytes(bytes);
        Ok(Self { sector: word as u64, sectors: (word >> 64) as u32, flags: (word >> 96) as u32 })
    }
}
