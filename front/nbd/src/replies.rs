//! Sending of replies. The thread that completes a request sends its reply, unless another thread is sending;
//! none blocks on the client.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tombolo_host_runtime::send_queue::{Message, Outgoing, SendQueue};
use tombolo_host_tls::Stream;
use tombolo_sys::Errno;
use tombolo_sys::epoll::EventFd;
use tombolo_sys::gather::Gather;

use crate::clients::Admitted;
use crate::memory::Memory;

/// Number of bytes after which replies are sent before more requests are handled: the client receives them
/// meanwhile, and they are still in the CPU cache.
const GATHERED_BYTES_MAX: usize = 256 << 10;

/// State shared by the threads of one connection.
pub(crate) struct Replies {
    pub(crate) stream: Stream,
    /// Event that wakes the connection's thread.
    pub(crate) wake: EventFd,
    queue: SendQueue<Option<Memory>>,
    /// Number of data bytes queued since the last flush.
    gathered_bytes: AtomicUsize,
    /// Number of requests whose replies have not been sent.
    under_way: AtomicUsize,
    /// `true` if the connection's thread must be woken when a reply has been sent.
    is_awaited: AtomicBool,
    is_dead: AtomicBool,
    /// Connection permit, held until the connection and its last request have ended.
    _admitted: Admitted,
}

impl Replies {
    pub(crate) fn new(stream: Stream, admitted: Admitted) -> tombolo_sys::Result<Self> {
        Ok(Self {
            stream,
            wake: EventFd::new()?,
            queue: SendQueue::default(),
            gathered_bytes: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            _admitted: admitted,
        })
    }

    /// Counts a received request.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// Requests one wake-up of the connection's thread when a reply has been sent. The caller must check
    /// [`Self::under_way`] again after this call, because a reply may have been sent before it.
    pub(crate) fn await_one(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Queues a reply for the next [`flush`](Self::flush); sends at once if many bytes are queued.
    pub(crate) fn push(&self, head: Vec<u8>, memory: Option<Memory>) {
        let data = memory.as_ref().map(Memory::source).unwrap_or_default();
        let bytes = data.len();
        self.queue.push(Message { head, data, held: memory });
        if self.gathered_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes >= GATHERED_BYTES_MAX {
            self.flush();
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Closes the connection; nothing more is sent.
    pub(crate) fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.stream.shut_down();
        self.wake.notify();
        let dropped = self.queue.clear();
        self.sent(dropped);
    }

    /// Returns how long sending has been blocked because the client receives nothing.
    pub(crate) fn blocked_for(&self) -> Duration {
        self.queue.blocked_for()
    }

    /// Continues sending, because the socket is writable again.
    pub(crate) fn writable(&self) {
        if self.queue.writable(self).is_err() {
            self.kill();
        }
    }

    /// Sends queued replies, as many as the socket accepts; the others follow when it is writable again.
    pub(crate) fn flush(&self) {
        self.gathered_bytes.store(0, Ordering::Relaxed);
        if self.queue.flush(self).is_err() {
            self.kill();
        }
    }
}

impl Outgoing for Replies {
    fn send(&self, gather: &mut Gather<'_>) -> tombolo_sys::Result<usize> {
        if self.is_dead() { Err(Errno::PIPE) } else { self.stream.send(gather) }
    }

    fn sent(&self, count: usize) {
        self.under_way.fetch_sub(count, Ordering::SeqCst);
        if self.is_awaited.load(Ordering::SeqCst) && self.is_awaited.swap(false, Ordering::SeqCst) {
            self.wake.notify();
        }
    }
}
