//! What a session needs of a transport.

use super::Slot;
use tombolo_mem::{Sink, Source};

/// One request's way in and out, as its transport has it: a buffer and a device, or a guest's descriptor
/// chain.
///
/// A session uses it from one thread at a time, but not always from the same one. One that is dropped before
/// any `send` must see to it that its caller does not wait for ever.
pub trait Exchange: Send + Sized + 'static {
    /// The first `len_bytes` of what follows the request's private bytes: the data of a WRITE. Less where
    /// less is there. Asked for once.
    fn payload(&mut self, len_bytes: usize) -> Source;

    /// May the file system retain a payload of this size after the answer, because nothing writes to its
    /// memory as long as it is held? Asked before the payload itself. Never where the memory is the
    /// requester's.
    fn keeps_payload(&mut self, _len_bytes: usize) -> bool {
        false
    }

    /// Space for `len_bytes` of data behind the reply's header. Less where the requester left less.
    /// Asked for once.
    fn reply_space(&mut self, len_bytes: usize) -> Sink;

    /// Sends a whole reply. False if it cannot reach its requester any more.
    fn send(&mut self, reply: &[u8]) -> bool;

    /// Sends a reply of this header and the first `data_bytes` of that space.
    fn send_data(&mut self, header: &[u8], data_bytes: usize) -> bool;

    /// Ends a request that has no reply.
    fn send_nothing(&mut self);

    /// Tells the kernel something that it did not ask for, before the reply. Where there is no way to it is
    /// not told.
    fn notify(&mut self, _notification: &[u8]) {}

    /// Takes itself and the slot back after an answer that came later, on whatever thread sent it.
    fn retire(self, slot: Box<Slot>);
}
