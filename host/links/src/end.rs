//! Reasons for the end of a link, and the record of the first one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use thiserror::Error;
use tombolo_shm::address::AddressError;
use tombolo_shm::link::FRAME_BYTES;
use tombolo_shm::ring::StampFault;

use tombolo_core::lock;

/// Reason for the end of a link, as this side sees it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndReason {
    /// The peer closed the link in order.
    #[error("the peer disconnected")]
    Left,
    /// The peer's process ended, or, on a link without a socket, its heartbeat stopped.
    #[error("the peer died")]
    Died,
    /// The server's heartbeat was silent for longer than this client waits, if it limits that time.
    #[error("the peer does not answer")]
    Silent,
    /// This side closed the link.
    #[error("closed locally")]
    Stopped,
    /// The peer violated the protocol.
    #[error("protocol violation by peer: {0}")]
    ProtocolError(#[from] ProtocolError),
    /// A failure ended the link: of this side, or of the peer, which reported it. This includes a violation
    /// by this side, if the peer cut the link because of it.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl EndReason {
    /// Returns the reason for an end because of lost local memory: pages that could not be allocated or are
    /// faulty. The kernel reports that only on access.
    pub(super) fn local_memory_lost() -> EndReason {
        EndReason::Failed("local memory lost: the system is out of memory, or it is faulty".into())
    }
}

/// Violation of the link protocol by the peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The buffer of a request's id belongs to an unanswered request: the client has more requests
    /// outstanding than slots, or reused an id.
    #[error("request {id:#x} received while its buffer was in use")]
    StillOutstanding {
        /// Id of the request.
        id: u32,
    },
    /// The answer's id was never issued, or is no longer in use.
    #[error("answer to {id:#x}, which was never requested")]
    NeverIssued {
        /// Id of the answer.
        id: u32,
    },
    /// The request was answered before.
    #[error("request {id:#x} answered twice")]
    AnsweredTwice {
        /// Id of the request.
        id: u32,
    },
    /// A frame exceeds its buffer.
    #[error("{id:#x} claims {len_bytes} bytes in a buffer of {FRAME_BYTES}")]
    FrameTooLong {
        /// Id of the request.
        id: u32,
        /// Length that the peer claims, in bytes.
        len_bytes: u32,
    },
    /// A memory reference is invalid, or not permitted for this use.
    #[error("invalid memory reference: {0}")]
    Reference(#[from] AddressError),
    /// The ring contains an invalid slot stamp, such as that of more messages than slots.
    #[error("{0}")]
    Slot(#[from] StampFault),
    /// The peer's memory was truncated.
    #[error("the memory of the link was truncated")]
    MemoryGone,
    /// A message on the ring or on the control socket could not be decoded, or was not expected.
    #[error("{0}")]
    Malformed(Arc<str>),
}

/// End of a link: the reason that was reported first, and callbacks.
#[derive(Default)]
pub(super) struct EndState {
    why: OnceLock<EndReason>,
    /// `true` once the end is decided; cheaper to read than `why`.
    is_over: AtomicBool,
    /// Callbacks for the end; none once they were called.
    listeners: Mutex<Vec<Listener>>,
}

/// A callback for the end of a link, called once. It runs on the thread that ends the link, or that registers
/// it afterwards, so it must not block, end a link, or drop an object whose destructor may do so.
pub(super) type Listener = Box<dyn FnOnce() + Send>;

impl EndState {
    /// Decides the end. Returns `false` if it was decided before.
    pub(super) fn decide(&self, why: EndReason) -> bool {
        let first = self.why.set(why).is_ok();
        self.is_over.store(true, Ordering::SeqCst);
        self.notify_listeners();
        first
    }

    /// Calls the listener when the link ends, or at once if it has ended.
    pub(super) fn on_end(&self, listener: Listener) {
        lock(&self.listeners).push(listener);
        // The thread that decided the end may have taken the listeners before this one was added.
        if self.is_over() {
            self.notify_listeners();
        }
    }

    fn notify_listeners(&self) {
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        listeners.into_iter().for_each(|listener| listener());
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns the reason, if the link has ended.
    pub(super) fn why(&self) -> Option<EndReason> {
        self.why.get().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn end_notifies_each_listener_once() {
        let (end, told) = (EndState::default(), Arc::new(AtomicUsize::new(0)));
        let listener = || {
            let told = told.clone();
            Box::new(move || {
                told.fetch_add(1, Ordering::SeqCst);
            })
        };
        end.on_end(listener());
        assert_eq!(told.load(Ordering::SeqCst), 0);
        assert!(end.decide(EndReason::Left) && !end.decide(EndReason::Died));
        assert_eq!(told.load(Ordering::SeqCst), 1);
        end.on_end(listener());
        assert_eq!(told.load(Ordering::SeqCst), 2);
    }
}
