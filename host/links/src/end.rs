//! Why a link came to an end.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use tombolo_shm::address::AddressError;
use tombolo_shm::link::FRAME_BYTES;
use tombolo_shm::ring::StampFault;

/// Why a link came to an end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum End {
    /// The peer left in order.
    #[error("the peer left")]
    Left,
    /// The peer's process ended, or its heartbeat stopped.
    #[error("the peer died")]
    Died,
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
    /// The pages that this side writes are gone: there was no memory for them, or it is broken. The kernel says so only when they are
    /// touched.
    pub(super) fn own_memory_gone() -> End {
        End::Failed("the memory of this side is gone: the system has no more, or it is broken".into())
    }
}

/// How a peer broke the rules of a link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A request came with an id whose buffer belongs to one that is not answered yet: the client has more requests under way
    /// than there are slots, or used an id twice.
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
#[derive(Debug, Default)]
pub(super) struct EndState {
    why: OnceLock<End>,
    /// Whether it is decided: cheaper to look at.
    is_over: AtomicBool,
}

impl EndState {
    /// Decides it. False if it was decided before.
    pub(super) fn decide(&self, why: End) -> bool {
        let first = self.why.set(why).is_ok();
        self.is_over.store(true, Ordering::SeqCst);
        first
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
