//! Calls queued because all ids are in use.

use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use tombolo_core::lock;

use super::message::Buffer;

/// A call queued for an id. The thread that frees an id sends the call, so calls proceed even if their
/// callers do not poll.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) kind: u32,
    pub(super) body: [u8; 48],
    pub(super) frame_len: usize,
    state: Mutex<QueuedState>,
}

#[derive(Debug)]
pub(super) struct QueuedState {
    pub(super) stage: QueuedStage,
    /// Woken when the call is sent, or the line ends.
    pub(super) waker: Option<Waker>,
    /// Variable part of the request.
    pub(super) frame: Option<Buffer>,
}

/// Progress of a queued call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuedStage {
    Waiting,
    /// Sent with this id.
    Sent(u32),
    /// The call was dropped.
    GivenUp,
}

impl QueuedRequest {
    pub(super) fn new(kind: u32, body: [u8; 48], frame: Option<Buffer>, frame_len: usize) -> Self {
        let state = Mutex::new(QueuedState { stage: QueuedStage::Waiting, waker: None, frame });
        Self { kind, body, frame_len, state }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueuedState> {
        lock(&self.state)
    }
}
