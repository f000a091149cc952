//! A request in a descriptor chain.

use crate::session::{Exchange, Slot};
use std::sync::Arc;
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_vhost::{Chain, ChainToken};
use tombolo_mem::{Sink, Source};
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::reply::{self, HEADER_BYTES};
use tombolo_wire_fuse::{Errno, Extent, Unique};
use zerocopy::{FromBytes, IntoBytes};

/// A descriptor chain, returned to the guest with the reply in it.
#[derive(Debug)]
pub(super) struct ChainExchange {
    /// Readable bytes after the private ones.
    remaining: Source,
    /// Space for the reply; only for its header once the reply space has been taken.
    answer: Sink,
    /// `None` once the chain has been returned.
    token: Option<ChainToken>,
    unique: Unique,
    /// Free list of the device, which receives the slot back.
    spare: Arc<FreeList<Box<Slot>>>,
}

impl ChainExchange {
    /// Copies the request's private bytes from `chain` to `slot` once; later changes have no effect.
    pub(super) fn receive(chain: Chain, slot: &mut Slot, spare: Arc<FreeList<Box<Slot>>>) -> ChainExchange {
        let Chain { readable: mut remaining, writable: answer, token } = chain;
        let mut head = [0; size_of::<InHeader>()];
        let got = remaining.read_at(0, &mut head);
        let header = InHeader::read_from_bytes(&head).unwrap_or_default();
        // The header may state more bytes than the chain has: the decoder then refuses the request.
        let wanted = Extent::of(&header).map_or(got, |extent| extent.private_bytes);
        let private_bytes = wanted.min(remaining.len());
        slot.fill(private_bytes, |bytes| {
            remaining.read_at(0, bytes);
            // The header has been evaluated and must not change in between.
            if let Some(place) = bytes.get_mut(..head.len()) {
                place.copy_from_slice(&head);
            }
        });
        remaining.advance(private_bytes);
        let (token, unique) = (Some(token), Unique(header.unique));
        ChainExchange { remaining, answer, token, unique, spare }
    }

    fn complete(&mut self, written: usize) {
        if let Some(token) = self.token.take() {
            token.complete(written);
        }
    }
}

impl Exchange for ChainExchange {
    fn payload(&mut self, len_bytes: usize) -> Source {
        let mut payload = std::mem::take(&mut self.remaining);
        payload.truncate(len_bytes);
        payload
    }

    fn reply_space(&mut self, len_bytes: usize) -> Sink {
        if self.answer.len() <= HEADER_BYTES {
            return Sink::new();
        }
        let mut space = self.answer.split_off(HEADER_BYTES);
        space.truncate(len_bytes);
        space
    }

    fn send(&mut self, reply: &[u8]) -> bool {
        if reply.len() <= self.answer.len() {
            let written = self.answer.write_at(0, reply);
            self.complete(written);
            return true;
        }
        // The guest provided too little space for the reply.
        let error = reply::error(self.unique, Errno::EIO);
        let written = self.answer.write_at(0, error.as_bytes());
        self.complete(written);
        false
    }

    fn send_data(&mut self, header: &[u8], data_bytes: usize) -> bool {
        let written = self.answer.write_at(0, header);
        self.complete(written.saturating_add(data_bytes));
        true
    }

    fn send_nothing(&mut self) {
        self.complete(0);
    }

    fn retire(self, slot: Box<Slot>) {
        self.spare.give_back(slot);
    }
}

/// Replies to a request whose handler has panicked, so that the guest does not wait forever.
impl Drop for ChainExchange {
    fn drop(&mut self) {
        if self.token.is_some() {
            self.send(reply::error(self.unique, Errno::EIO).as_bytes());
        }
    }
}
