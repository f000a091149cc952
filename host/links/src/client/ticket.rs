//! A call that waits for an id, because all are out.

use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use super::frame::Buffer;
use tombolo_host_runtime::lock;

/// A call that waits for an id. Whoever frees one sends it, so calls go on though nobody looks after them.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) kind: u32,
    pub(super) body: [u8; 48],
    pub(super) frame_len: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) stage: Stage,
    /// Who is to be told that it was sent.
    pub(super) waker: Option<Waker>,
    /// The arguments.
    pub(super) frame: Option<Buffer>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    /// It was sent, with that id.
    Sent(u32),
    /// Nobody wants it any more.
    GivenUp,
}

impl Ticket {
    pub(super) fn new(kind: u32, body: [u8; 48], frame: Option<Buffer>, frame_len: usize) -> Self {
        let state = Mutex::new(State { stage: Stage::Waiting, waker: None, frame });
        Self { kind, body, frame_len, state }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
