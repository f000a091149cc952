//! Interface between a session and a transport.

use super::Slot;
use tombolo_mem::{Sink, Source};

/// One request and its reply path in the transport: a buffer and a device, or a guest's descriptor chain.
///
/// Used by one thread at a time, not always the same one. The drop of an exchange that has sent nothing must
/// reply with an error, so that the requester does not wait forever.
pub trait Exchange: Send + Sized + 'static {
    /// Returns the first `len_bytes` of what follows the request's private bytes (the data of a WRITE), or
    /// fewer if fewer were sent. Called at most once.
    fn payload(&mut self, len_bytes: usize) -> Source;

    /// Returns `true` if the file system may retain a payload of this size after the reply, because nothing
    /// writes to its memory while it is retained. Called before `payload`. Always `false` for memory of the
    /// requester.
    fn may_retain_payload(&mut self, _len_bytes: usize) -> bool {
        false
    }

    /// Returns space for `len_bytes` of data after the reply's header, or less if the requester provided
    /// less. Called at most once.
    fn reply_space(&mut self, len_bytes: usize) -> Sink;

    /// Sends a complete reply. Returns `false` if it did not reach the requester.
    fn send(&mut self, reply: &[u8]) -> bool;

    /// Sends a reply made of `header` and the first `data_bytes` of the reply space; returns as
    /// [`Exchange::send`].
    fn send_data(&mut self, header: &[u8], data_bytes: usize) -> bool;

    /// Completes a request that has no reply.
    fn send_nothing(&mut self);

    /// Sends a notification to the kernel; called before the reply is sent. Does nothing on transports
    /// without notifications.
    fn notify(&mut self, _notification: &[u8]) {}

    /// Reclaims the memory of the exchange and of its slot after a later reply, on the thread that sent it.
    fn retire(self, slot: Box<Slot>);
}
