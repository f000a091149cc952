//! COMMITs of written bytes: the waits of flushes for them, and the pause of WRITEs during a truncation.

use std::sync::Arc;

use tombolo_core::{Answer, Result};
use tombolo_host_runtime::task;
use tombolo_wire_nfs3::Procedure;

use super::file::{FileState, unless_interrupted};
use super::piece::WriteSeq;
use super::sending::{all_so_far, send_what_may_leave};
use super::server::Server;

use crate::caller::Caller;

/// Maximum number of COMMITs for a server whose verifier changes at each call. By then each piece was also
/// sent as a stable WRITE.
const ROUNDS_MAX: u32 = 16;

/// Waits until all writes so far are answered. Does not report losses: writes and flushes do.
pub(crate) fn settle<S: Server>(server: &Arc<S>, node: &Arc<S::Node>, caller: &Caller) -> Answer<()> {
    let Some(file) = node.as_ref().as_ref().used() else { return Answer::ok(()) };
    let seq = all_so_far(file);
    if !file.look(|state| state.dirty.has_pending(seq)) {
        return Answer::ok(());
    }
    let (file, interruption) = (file.clone(), server.interruption(caller));
    Answer::later(unless_interrupted(interruption, async move { file.answered(seq).await }))
}

/// Waits until all writes so far are on stable storage. Fails with a loss that was not reported before, or
/// that occurred while this caller waited.
pub(crate) fn commit<S: Server>(server: &Arc<S>, node: &Arc<S::Node>, caller: &Caller) -> Answer<()> {
    let Some(file) = node.as_ref().as_ref().used() else { return Answer::ok(()) };
    let (seq, seen, is_done) = file.update(|state| {
        state.dirty.make_only_piece_stable();
        let seq = state.dirty.next_seq();
        (seq, state.losses.reported(), !state.dirty.has_pending(seq) && !state.dirty.has_uncommitted(seq))
    });
    if is_done {
        return Answer::Done(file.update(|state| state.losses.report(seen)));
    }
    let (file, interruption) = (file.clone(), server.interruption(caller));
    let (server, node) = (server.clone(), node.clone());
    Answer::later(async move {
        unless_interrupted(interruption, make_stable(&server, &node, &file, seq)).await??;
        file.update(|state| state.losses.report(seen))
    })
}

async fn make_stable<S: Server>(
    server: &Arc<S>,
    node: &Arc<S::Node>,
    file: &FileState,
    seq: WriteSeq,
) -> Result<()> {
    for _ in 0..ROUNDS_MAX {
        // One COMMIT at a time: a COMMIT sent before the last WRITE was answered does not cover that WRITE.
        file.until(|state| {
            let waits = state.dirty.has_pending(seq) || state.is_committing || state.pauses > 0;
            !waits || !has_any(state, seq)
        })
        .await;
        if !file.look(|state| has_any(state, seq)) {
            return Ok(());
        }
        start_commit(server, node);
    }
    Err(server.invalid_reply(Procedure::Commit, "the write verifier changes at every call"))
}

fn has_any(state: &super::file::State, seq: WriteSeq) -> bool {
    state.dirty.has_pending(seq) || state.dirty.has_uncommitted(seq)
}

/// Sends a COMMIT for all uncommitted pieces, unless one is pending, writes are paused, or there are none.
pub(super) fn start_commit<S: Server>(server: &Arc<S>, node: &Arc<S::Node>) {
    let caller = node.as_ref().as_ref().state().quietly(|state| {
        if state.is_committing || state.pauses > 0 {
            return None;
        }
        let caller = state.dirty.begin_commit()?;
        state.is_committing = true;
        Some(caller)
    });
    if let Some(caller) = caller {
        task::spawn(send_commit(server.clone(), node.clone(), caller));
    }
}

async fn send_commit<S: Server>(server: Arc<S>, node: Arc<S::Node>, caller: Caller) {
    let verifier = server.clone().commit(caller, node.clone()).await;
    node.as_ref().as_ref().state().update(|state| {
        state.is_committing = false;
        match verifier {
            Ok(verifier) => {
                // Data read ahead in these ranges since the server lost the writes are older than the writes.
                let lost = state.dirty.committed(verifier);
                lost.iter().for_each(|range| state.readers.forget(range));
            }
            Err(error) => {
                state.dirty.commit_failed();
                state.losses.add(error);
            }
        }
    });
    send_what_may_leave(&server, &node);
    server.budget().relieve();
}

/// Waits until all writes so far are answered and no COMMIT is pending. No WRITE or COMMIT of the file is
/// sent then until the result is dropped: a WRITE resent after a truncation could otherwise restore the
/// truncated data.
pub(crate) fn pause<S: Server>(server: &Arc<S>, node: &Arc<S::Node>, caller: &Caller) -> Answer<Paused<S>> {
    let file = node.as_ref().as_ref().state().clone();
    let seq = all_so_far(&file);
    let interruption = server.interruption(caller);
    let (server, node) = (server.clone(), node.clone());
    let may_pause = move |state: &super::file::State| !state.dirty.has_pending(seq) && !state.is_committing;
    let begin = move |file: &FileState| {
        file.update(|state| {
            let may = may_pause(state);
            state.pauses += u32::from(may);
            may.then(|| state.dirty.first_unanswered())
        })
    };
    if let Some(seq) = begin(&file) {
        return Answer::ok(Paused { server, node, seq });
    }
    Answer::later(unless_interrupted(interruption, async move {
        loop {
            file.until(may_pause).await;
            if let Some(seq) = begin(&file) {
                return Paused { server, node, seq };
            }
        }
    }))
}

/// Guard during which no WRITE or COMMIT of a file is sent.
pub(crate) struct Paused<S: Server> {
    server: Arc<S>,
    node: Arc<S::Node>,
    /// Sequence number of the first write that may follow a truncation made during the pause: the server may
    /// execute a write that was under way when the pause began after it.
    seq: WriteSeq,
}

impl<S: Server> Paused<S> {
    /// Updates the state after a truncation to this size.
    pub(crate) fn truncated(&self, size: u64) {
        self.node.as_ref().as_ref().state().truncated(size, self.seq);
    }
}

impl<S: Server> Drop for Paused<S> {
    fn drop(&mut self) {
        self.node.as_ref().as_ref().state().update(|state| state.pauses -= 1);
        send_what_may_leave(&self.server, &self.node);
        // A writer that waited for memory during the pause got no COMMIT.
        self.server.budget().relieve();
    }
}
