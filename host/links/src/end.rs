//! Why a link came to an end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use thiserror::Error;
use tombolo_shm::address::AddressError;
use tombolo_shm::link::FRAME_BYTES;
use tombolo_shm::ring::StampFault;

use tombolo_host_runtime::lock;

/// Why a link came to an end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum End {
    /// The peer left in order.
    #[error("the peer left")]
    Left,
    /// The peer's process ended, or its heartbeat stopped.
    #[error("the peer died")]
    Died,
    /// The peer's heartbeat stopped for longer than this side waits.
    #[error("the peer does not answer")]
    Silent,
    /// This side wished it.
    #[error("ended by this side")]
    Stopped,
    /// The peer broke the rules.
    #[error("protocol violation by peer: {0}")]
    ProtocolError(#[from] ProtocolError),
    /// Something failed on this side, which it does not survive on this link.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl End {
    /// The pages that this side writes are gone: there was no memory for them, or it is broken. The kernel
    /// says so only when they are touched.
    pub(super) fn own_memory_gone() -> End {
        End::Failed("the memory of this side is gone: the system has no more, or it is broken".into())
    }
}

/// How a peer broke the rules of a link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A request came with an id whose buffer belongs to one that is not answered yet: the client has more
    /// requests under way than there are slots, or used an id twice.
    #[error("request {id:#x} came while its buffer was in use")]
    StillOutstanding {
        /// The id.
        id: u32,
    },
    /// An answer came to an id that was not issued.
    #[error("an answer to {id:#x}, which was never asked")]
    NeverIssued {
        /// The id.
        id: u32,
    },
    /// A second answer came.
    #[error("{id:#x} was answered twice")]
    AnsweredTwice {
        /// The id.
        id: u32,
    },
    /// More bytes than a buffer holds.
    #[error("{id:#x} claims {len_bytes} bytes in a buffer of {FRAME_BYTES}")]
    FrameTooLong {
        /// The id.
        id: u32,
        /// The length that it claims.
        len_bytes: u32,
    },
    /// A reference to memory that is not there, or not for that.
    #[error("a reference that leads nowhere: {0}")]
    Reference(#[from] AddressError),
    /// The ring holds what no correct peer writes there, such as more messages than slots.
    #[error("{0}")]
    Slot(#[from] StampFault),
    /// The peer's memory was truncated.
    #[error("the memory of the link was truncated")]
    MemoryGone,
    /// What is above the link could not make sense of a message.
    #[error("{0}")]
    Malformed(Arc<str>),
}

/// The end of a link, decided once.
#[derive(Default)]
pub(super) struct EndState {
    why: OnceLock<End>,
    /// Whether it is decided: cheaper to look at.
    is_over: AtomicBool,
    /// What is to be called then.
    listeners: Mutex<Vec<Listener>>,
}

/// Told of the end of a link, once. It is called on the thread that ends the link, so it must not block, end
/// a link, or drop what may.
pub(super) type Listener = Box<dyn FnOnce() + Send>;

impl EndState {
    /// Decides it. False if it was decided before.
    pub(super) fn decide(&self, why: End) -> bool {
        let first = self.why.set(why).is_ok();
        self.is_over.store(true, Ordering::SeqCst);
        self.tell();
        first
    }

    /// Has it called when the link ends; at once if it has.
    pub(super) fn on_end(&self, listener: Listener) {
        lock(&self.listeners).push(listener);
        // If the end was decided before that, the other thread may not have found it.
        if self.is_over() {
            self.tell();
        }
    }

    fn tell(&self) {
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        listeners.into_iter().for_each(|listener| listener());
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Why, if it is over.
    pub(super) fn why(&self) -> Option<End> {
        self.why.get().cloned()
    }
}

impl std::fmt::Debug for EndState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndState").field("why", &self.why).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn the_end_is_told_once_to_those_that_ask_before_and_after() {
        let (end, told) = (EndState::default(), Arc::new(AtomicUsize::new(0)));
        let listener = || {
            let told = told.clone();
            Box::new(move || {
                told.fetch_add(1, Ordering::SeqCst);
            })
        };
        end.on_end(listener());
        assert_eq!(told.load(Ordering::SeqCst), 0);
        assert!(end.decide(End::Left) && !end.decide(End::Died));
        assert_eq!(told.load(Ordering::SeqCst), 1);
        end.on_end(listener());
        assert_eq!(told.load(Ordering::SeqCst), 2);
    }
}
