//! WRITEs: selection of the next piece, and processing of replies.

use std::sync::Arc;

use tombolo_core::{Result, Stability};
use tombolo_host_runtime::task;
use tombolo_wire_nfs3::Procedure;

use super::file::{FileState, State};
use super::piece::{Piece, WriteSeq, Wrote};
use super::server::Server;
use super::started_call::StartedCall;

/// The next step for waiting pieces.
enum Next {
    Send(Piece),
    /// Spawn a task that waits for an in-flight permit.
    WaitForPermit,
    /// No piece may be sent, or a task waits for a permit already.
    Nothing,
}

impl State {
    fn next(&mut self, has_permit: bool) -> Next {
        if self.pauses > 0 || !self.dirty.has_next() {
            return Next::Nothing;
        }
        if !has_permit {
            let waits = std::mem::replace(&mut self.waits_for_permit, true);
            return if waits { Next::Nothing } else { Next::WaitForPermit };
        }
        self.dirty.next().map_or(Next::Nothing, Next::Send)
    }
}

/// Sends waiting pieces, as order and permits allow.
pub(super) fn send_what_may_leave<S: Server>(server: &Arc<S>, node: &Arc<S::Node>) {
    let file = node.as_ref().as_ref().state();
    loop {
        let has_permit = server.has_permit();
        // `update` wakes writers that wait for space in the queue.
        match file.update(|state| state.next(has_permit)) {
            Next::Send(piece) => send(server, node, piece),
            Next::WaitForPermit => task::spawn(send_with_next_permit(server.clone(), node.clone())),
            Next::Nothing => return,
        }
    }
}

async fn send_with_next_permit<S: Server>(server: Arc<S>, node: Arc<S::Node>) {
    server.permit().await;
    node.as_ref().as_ref().state().quietly(|state| state.waits_for_permit = false);
    send_what_may_leave(&server, &node);
}

/// Sends a WRITE. The task that receives the reply records the outcome.
fn send<S: Server>(server: &Arc<S>, node: &Arc<S::Node>, piece: Piece) {
    let from = piece.source();
    let Piece { offset, len, stability, caller, memory, .. } = piece;
    // The dirty ranges retain the memory until the bytes are on stable storage.
    drop(memory);
    let call = StartedCall::new(server.clone().write(caller, node.clone(), offset, from, stability));
    let (server, node) = (server.clone(), node.clone());
    task::spawn(async move {
        let wrote = call.await.and_then(|wrote| plausible(&*server, wrote, len, stability));
        node.as_ref().as_ref().state().update(|state| match wrote {
            Ok(wrote) => state.dirty.answered(offset, wrote),
            Err(error) => {
                state.dirty.failed(offset);
                state.losses.add(error);
            }
        });
        send_what_may_leave(&server, &node);
        server.budget().relieve();
    });
}

/// Validates the reply to a WRITE (RFC 1813 §3.3.7).
fn plausible<S: Server>(server: &S, wrote: Wrote, len: usize, asked: Stability) -> Result<Wrote> {
    let what = match wrote {
        Wrote { count: 0, .. } => "nothing written and no error",
        Wrote { count, .. } if count > len => "count exceeds the data sent",
        Wrote { stability, .. } if stability < asked => "less stable than requested",
        wrote => return Ok(wrote),
    };
    Err(server.invalid_reply(Procedure::Write, what))
}

/// Returns the sequence number after all writes so far.
pub(super) fn all_so_far(file: &FileState) -> WriteSeq {
    file.look(|state| state.dirty.next_seq())
}
